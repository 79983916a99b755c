// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

func mayRestartAll(v pod.View) pod.View {
	v.Pod.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	return v
}

// A pod that starts again in place is running all the while, and was initialized once for all.
func TestAPodThatRestartsAllItsContainers(t *testing.T) {
	const never = corev1.RestartPolicyNever
	prev := status.Generate(mayRestartAll(view(never, pod.Syncing, "init:ok", "a:ready", "b:ready")), &corev1.PodStatus{}, status.Node{}, now)
	if got := conditions(&prev); !strings.HasSuffix(got, "PodScheduled=True AllContainersRestarting=False") {
		t.Errorf("before: %s", got)
	}
	v := mayRestartAll(view(never, pod.Syncing, "init:ok", "a:fail", "b:ready"))
	v.RestartingAll = true
	st := status.Generate(v, &prev, status.Node{}, now)
	if got := conditions(&st); st.Phase != corev1.PodRunning ||
		!strings.HasSuffix(got, "AllContainersRestarting=True(RestartAllContainersStarted)") {
		t.Errorf("while they are removed: %s %s", st.Phase, got)
	}
	v = mayRestartAll(view(never, pod.Syncing, "init:again", "a:again", "b:again"))
	for i := range v.Containers {
		c := &v.Containers[i]
		c.Current.ID, c.Current.ExitCode, c.Current.Reason = "", 137, pod.RestartingAllContainers
		c.Waiting = pod.Waiting{Reason: pod.RestartingAllContainers}
	}
	st = status.Generate(v, &st, status.Node{}, now)
	if got := conditions(&st); st.Phase != corev1.PodRunning || !strings.Contains(got, "Initialized=True ") ||
		!strings.HasSuffix(got, "AllContainersRestarting=False") {
		t.Errorf("when they are removed: %s %s", st.Phase, got)
	}
	for _, c := range append(st.ContainerStatuses, st.InitContainerStatuses...) {
		last := c.LastTerminationState.Terminated
		if c.State.Waiting == nil || c.State.Waiting.Reason != pod.RestartingAllContainers ||
			last == nil || last.Reason != pod.RestartingAllContainers {
			t.Errorf("%s: %+v, last %+v", c.Name, c.State, last)
		}
	}
	// Pods without such a rule have no such condition.
	st = status.Generate(view(never, pod.Syncing, "a:ready"), &corev1.PodStatus{}, status.Node{}, now)
	if got := conditions(&st); strings.Contains(got, "AllContainersRestarting") {
		t.Error(got)
	}
}
