// SPDX-License-Identifier: Apache-2.0

package job

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// ruling is what a pod failure policy says about a failed pod.
type ruling struct {
	action batchv1.PodFailurePolicyAction // empty: no rule matched
	// counts towards the backoff limit.
	counts bool
	// message, where the whole Job is to fail.
	message string
}

func rule(policy *batchv1.PodFailurePolicy, pod *corev1.Pod) ruling {
	if policy == nil {
		return ruling{counts: true}
	}
	for i, r := range policy.Rules {
		var reason string
		switch {
		case r.OnExitCodes != nil:
			if s := exited(pod, r.OnExitCodes); s != nil {
				reason = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
					s.Name, pod.Namespace, pod.Name, s.State.Terminated.ExitCode, r.Action, i)
			}
		case r.OnPodConditions != nil:
			if c := matching(pod, r.OnPodConditions); c != nil {
				reason = fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", pod.Namespace, pod.Name, c.Type, r.Action, i)
			}
		}
		if reason == "" {
			continue
		}
		out := ruling{action: r.Action, counts: r.Action != batchv1.PodFailurePolicyActionIgnore}
		if r.Action == batchv1.PodFailurePolicyActionFailJob {
			out.message = reason
		}
		return out
	}
	return ruling{counts: true}
}

func exited(pod *corev1.Pod, want *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			s := &list[i]
			if s.State.Terminated == nil || s.State.Terminated.ExitCode == 0 || (want.ContainerName != nil && *want.ContainerName != s.Name) {
				continue
			}
			listed := slices.Contains(want.Values, s.State.Terminated.ExitCode)
			if listed == (want.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
				return s
			}
		}
	}
	return nil
}

func matching(pod *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		for _, p := range patterns {
			if c.Type == p.Type && c.Status == p.Status {
				return c
			}
		}
	}
	return nil
}

// succeededEarly tells which rule of a success policy is met.
func succeededEarly(policy *batchv1.SuccessPolicy, succeeded indexes, completions int) (message string, met bool) {
	if policy == nil || len(succeeded) == 0 {
		return "", false
	}
	for i, r := range policy.Rules {
		message := fmt.Sprintf("Matched rules at index %d", i)
		switch {
		case r.SucceededIndexes != nil:
			required := parseIndexes(*r.SucceededIndexes, completions)
			if len(required) == 0 {
				continue
			}
			n := required.overlap(succeeded)
			if n == required.count() || (r.SucceededCount != nil && n >= int(*r.SucceededCount)) {
				return message, true
			}
		case r.SucceededCount != nil && succeeded.count() >= int(*r.SucceededCount):
			return message, true
		}
	}
	return "", false
}

const (
	firstBackoff = 10 * time.Second
	lastBackoff  = 10 * time.Minute
)

// backoff delays the replacement of failed pods, longer with each failure since the
// last success. It is kept in memory: after a restart the next replacement comes
// at once, and failures are counted in the Job's status anyway.
type backoff struct {
	failures int
	last     time.Time
}

// after is the backoff once these pods have ended.
func (b backoff) after(succeeded, failed []*corev1.Pod) backoff {
	if len(succeeded) > 0 {
		b = backoff{}
	}
	var lastSuccess time.Time
	for _, p := range succeeded {
		if t := finishedAt(p); t.After(lastSuccess) {
			lastSuccess = t
		}
	}
	for _, p := range failed {
		t := finishedAt(p)
		if len(succeeded) > 0 && !t.After(lastSuccess) {
			continue
		}
		b.failures++
		if t.After(b.last) {
			b.last = t
		}
	}
	return b
}

func (b backoff) left(now time.Time) time.Duration {
	if b.failures == 0 {
		return 0
	}
	delay := firstBackoff
	for range b.failures - 1 {
		if delay *= 2; delay >= lastBackoff {
			delay = lastBackoff
			break
		}
	}
	return max(b.last.Add(delay).Sub(now), 0)
}

// finishedAt is when the pod's last container ended, as far as its status tells.
func finishedAt(pod *corev1.Pod) time.Time {
	var last time.Time
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.FinishedAt.IsZero() {
			last = time.Time{}
			break
		}
		if s.State.Terminated.FinishedAt.After(last) {
			last = s.State.Terminated.FinishedAt.Time
		}
	}
	if !last.IsZero() {
		return last
	}
	if c := controllers.PodCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if pod.DeletionTimestamp != nil {
		return pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
	}
	return pod.CreationTimestamp.Time
}

// indexOf is a pod's completion index; none is -1.
func indexOf(pod *corev1.Pod) int {
	i, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return -1
	}
	return i
}

// failuresOf reads how often an index had failed when this pod was made, counted
// and ignored ones.
func failuresOf(pod *corev1.Pod) (counted, ignored int) {
	read := func(key string) int {
		n, err := strconv.Atoi(pod.Annotations[key])
		if err != nil || n < 0 {
			return 0
		}
		return n
	}
	return read(batchv1.JobIndexFailureCountAnnotation), read(batchv1.JobIndexIgnoredFailureCountAnnotation)
}
