// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

func (e *explainer) deployment(name string) *Answer {
	d, ok := facts.Find(e.Deployments, e.in, name)
	if !ok {
		return nil
	}
	want := wanted(d.Spec.Replicas)
	if d.Spec.Paused {
		return reply.Stuck("it is paused: changes of its template are not rolled out").Or("let it go on",
			"kubectl rollout resume deployment/%s -n %s", name, e.in)
	}
	if d.Status.ObservedGeneration < d.Generation {
		return reply.Stuck("its controller has not seen the last change yet")
	}
	if d.Status.UpdatedReplicas >= want && d.Status.AvailableReplicas >= want && d.Status.Replicas == d.Status.UpdatedReplicas {
		return reply.Well("all of its %d pods are available", want)
	}
	slow := ""
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse {
			slow = ", for longer than its progressDeadlineSeconds"
		}
	}
	// The newest ReplicaSet is the one that does not get on.
	var newest *appsv1.ReplicaSet
	for _, rs := range e.ReplicaSets {
		if metav1.IsControlledBy(rs, d) && (newest == nil || newest.CreationTimestamp.Before(&rs.CreationTimestamp)) {
			newest = rs
		}
	}
	if newest == nil {
		return reply.Stuck("it has no ReplicaSet yet")
	}
	return e.making(made{"ReplicaSet", newest.Name, newest.UID, int(want), failure(newest.Status.Conditions)}).
		Of("%d of %d updated pods are available%s", newest.Status.AvailableReplicas, want, slow)
}

func wanted(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}

func (e *explainer) replicaSet(name string) *Answer {
	rs, ok := facts.Find(e.ReplicaSets, e.in, name)
	if !ok {
		return nil
	}
	want := wanted(rs.Spec.Replicas)
	if rs.Status.AvailableReplicas >= want {
		return reply.Well("all of its %d pods are available", want)
	}
	return e.making(made{"ReplicaSet", name, rs.UID, int(want), failure(rs.Status.Conditions)}).Of("%d of %d pods are available",
		rs.Status.AvailableReplicas, want)
}

func failure(conditions []appsv1.ReplicaSetCondition) string {
	for _, c := range conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

func (e *explainer) statefulSet(name string) *Answer {
	s, ok := facts.Find(e.StatefulSets, e.in, name)
	if !ok {
		return nil
	}
	want := wanted(s.Spec.Replicas)
	if s.Status.AvailableReplicas >= want {
		return reply.Well("all of its %d pods are available", want)
	}
	m := made{"StatefulSet", name, s.UID, int(want), ""}
	if s.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		return e.making(m).Of("%d of %d pods are available", s.Status.AvailableReplicas, want)
	}
	first := int32(0)
	if s.Spec.Ordinals != nil {
		first = s.Spec.Ordinals.Start
	}
	for i := first; i < first+want; i++ {
		next := fmt.Sprintf("%s-%d", name, i)
		p, ok := facts.Find(e.Pods, e.in, next)
		if ok && p.DeletionTimestamp == nil && condition(p, corev1.PodReady).Status == corev1.ConditionTrue {
			continue
		}
		later := ""
		if i+1 < first+want {
			later = fmt.Sprintf(", and those after it wait for %s", next)
		}
		if ok {
			return e.explainPod(p).Of("%d of %d pods are available%s: pod %s", s.Status.AvailableReplicas, want, later, next)
		}
		return e.making(m).Of("%d of %d pods are available: %s is the next%s", s.Status.AvailableReplicas, want, next, later)
	}
	return e.making(m).Of("%d of %d pods are available", s.Status.AvailableReplicas, want)
}

func (e *explainer) daemonSet(name string) *Answer {
	s, ok := facts.Find(e.DaemonSets, e.in, name)
	if !ok {
		return nil
	}
	if s.Status.NumberAvailable >= s.Status.DesiredNumberScheduled {
		return reply.Well("its pods are available on all %d nodes that it selects", s.Status.DesiredNumberScheduled)
	}
	return e.making(made{"DaemonSet", name, s.UID, int(s.Status.DesiredNumberScheduled), ""}).
		Of("its pods are available on %d of %d nodes", s.Status.NumberAvailable, s.Status.DesiredNumberScheduled)
}

// made is what has pods made.
type made struct {
	kind, name string
	uid        types.UID
	want       int
	failure    string // why no pod could be made, as its status says
}

// making is why an owner has fewer pods that are available than it wants: it cannot make
// them, or one of them does not get on.
func (e *explainer) making(m made) *Answer {
	var pods []*corev1.Pod
	for _, p := range e.Pods {
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil && ref.UID == m.uid && p.DeletionTimestamp == nil {
			pods = append(pods, p)
		}
	}
	message := m.failure
	if ev := e.Last(m.kind, e.in, m.name, "FailedCreate"); ev != nil && message == "" && len(pods) < m.want {
		message = strings.TrimPrefix(ev.Message, "Error creating: ")
	}
	if message != "" {
		return e.refusedPod(message, m.want-len(pods))
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range pods {
		if a := e.explainPod(p); !a.Well {
			instead := ""
			if p.Spec.NodeName == "" {
				instead = e.replaced(m, p)
			}
			return a.Of("pod %s%s", p.Name, instead)
		}
	}
	if len(pods) < m.want {
		return reply.Stuck("%s %s has made %d of %d pods, and nothing says why it makes no more", strings.ToLower(m.kind), m.name, len(pods),
			m.want)
	}
	return reply.Well("its pods run and are ready; they are not counted as available yet")
}

// refusedPod: the API took no pod.
func (e *explainer) refusedPod(message string, missing int) *Answer {
	_, about, ok := strings.Cut(message, "exceeded quota: ")
	if !ok {
		if a := e.refusedBy(message); a != nil {
			return a
		}
		a := reply.Stuck("the API refuses its pods: %s", message)
		if strings.Contains(message, "serviceaccount") || strings.Contains(message, "service account") {
			if _, name, found := strings.Cut(message, `serviceaccount "`); found {
				name, _, _ = strings.Cut(name, `"`)
				a.Or("make the service account", "kubectl create serviceaccount %s -n %s", name[strings.LastIndex(name, "/")+1:], e.in)
			}
		}
		return a
	}
	name, _, _ := strings.Cut(about, ",")
	a := reply.Stuck("quota %s leaves no room for its pods", name).More("exceeded quota: %s", about)
	requested, used := facts.Amounts(about, "requested: "), facts.Amounts(about, "used: ")
	hard := []string{}
	for _, what := range slices.Sorted(maps.Keys(requested)) {
		sum := used[what]
		for range max(missing, 1) {
			sum.Add(requested[what])
		}
		hard = append(hard, fmt.Sprintf("%q:%q", what, sum.String()))
	}
	if len(hard) > 0 {
		a.Or("raise the quota", `kubectl patch resourcequota %s -n %s --type=merge -p '{"spec":{"hard":{%s}}}'`, name, e.in,
			facts.JSON(hard))
	}
	return a
}
