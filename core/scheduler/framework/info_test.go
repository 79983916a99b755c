// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"pgregory.net/rapid"
)

// A changed pod's info is what a new one of it would be, whatever is taken over from the one before.
func TestAChangedPodIsCountedLikeANewOne(t *testing.T) {
	cpu := func(amount string) corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse(amount)} }
	made := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p", Generation: 1}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: cpu("1")}, Ports: []corev1.ContainerPort{{HostPort: 80}},
	}}}}
	bound := made.DeepCopy()
	bound.Spec.NodeName = "n"
	running := bound.DeepCopy()
	running.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", AllocatedResources: cpu("2"),
		Resources: &corev1.ResourceRequirements{
			Requests: cpu("3"),
		},
	}}
	larger := bound.DeepCopy()
	larger.Generation, larger.Spec.Containers[0].Resources.Requests = 2, cpu("4")
	labelled := bound.DeepCopy()
	labelled.Labels = map[string]string{"app": "web"}
	states := []*corev1.Pod{made, bound, running, bound, larger, bound, labelled, made}
	info := NewPodInfo(made)
	for i, now := range states {
		if info = info.Changed(now); info.Pod != now || !reflect.DeepEqual(info, NewPodInfo(now)) {
			t.Errorf("state %d: %+v, want %+v", i, info, NewPodInfo(now))
		}
	}
	if running := NewPodInfo(running); running.Requests.MilliCPU != 3000 {
		t.Errorf("a running pod counts with %+v", running.Requests)
	}
}

// TestRequestsAreUpstreams, of whatever pod, with and without what its status says: what is left out of the sum changes nothing.
func TestRequestsAreUpstreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := func(what string) corev1.ResourceList {
			out := corev1.ResourceList{}
			for _, name := range []corev1.ResourceName{"cpu", "memory", "ephemeral-storage", "example.com/gpu"} {
				if n := rapid.IntRange(-1, 3).Draw(t, what+" "+string(name)); n >= 0 {
					out[name] = *resource.NewQuantity(int64(n), resource.DecimalSI)
				}
			}
			return out
		}
		p := &corev1.Pod{}
		containers := func(what string) (all []corev1.Container) {
			for i := range rapid.IntRange(0, 2).Draw(t, what) {
				c := corev1.Container{Name: fmt.Sprint(what, i), Resources: corev1.ResourceRequirements{Requests: list(what)}}
				if rapid.Bool().Draw(t, "restartable") {
					c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
				}
				all = append(all, c)
			}
			return all
		}
		p.Spec.Containers, p.Spec.InitContainers = containers("container"), containers("init")
		if rapid.Bool().Draw(t, "as a whole") {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("pod")}
		}
		if rapid.Bool().Draw(t, "overhead") {
			p.Spec.Overhead = list("overhead")
		}
		if rapid.Bool().Draw(t, "status") {
			for _, c := range p.Spec.Containers {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
					Name: c.Name, AllocatedResources: list("allocated"), Resources: &corev1.ResourceRequirements{Requests: list("actuated")},
				})
			}
		}
		if rapid.Bool().Draw(t, "pod's status") {
			p.Status.AllocatedResources, p.Status.Resources = list("pod allocated"), &corev1.ResourceRequirements{Requests: list("pod actuated")}
		}
		if reason := rapid.SampledFrom([]string{"", corev1.PodReasonInfeasible, corev1.PodReasonDeferred}).Draw(t, "resize"); reason != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: reason}}
		}
		how := resourcehelper.PodResourcesOptions{
			UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: p.Spec.Resources != nil && len(p.Spec.Overhead) == 0,
		}
		want := NewResources(resourcehelper.PodRequests(p, how))
		how.NonMissingContainerRequests = defaultRequests
		wantNonZero := NewResources(resourcehelper.PodRequests(p, how))
		want.Pods, wantNonZero.Pods = 1, 1
		got := NewPodInfo(p)
		if !reflect.DeepEqual(got.Requests, want) || !reflect.DeepEqual(got.NonZero, wantNonZero) {
			t.Fatalf("%+v and %+v, want %+v and %+v", got.Requests, got.NonZero, want, wantNonZero)
		}
		if got.NonZero.Scalar != nil {
			got.NonZero.Scalar["example.com/other"] = 1
			if _, shared := got.Requests.Scalar["example.com/other"]; shared {
				t.Fatal("both have one map")
			}
		}
	})
}

// BenchmarkNewPodInfo is of a pod as scheduler_perf has it: the work for each pod that comes, and once more when it is bound.
func BenchmarkNewPodInfo(b *testing.B) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("500Mi")},
	}}}}}
	b.ReportAllocs()
	for b.Loop() {
		NewPodInfo(p)
	}
}

// A pod that gives back resources that it has as a whole has them until its node has taken them.
func TestAPodThatShrinksAsAWholeCountsAsItIs(t *testing.T) {
	cpu := func(amount string) corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse(amount)} }
	p := &corev1.Pod{Spec: corev1.PodSpec{
		Resources: &corev1.ResourceRequirements{Requests: cpu("1")}, Containers: []corev1.Container{{Name: "c"}},
	}}
	p.Status.AllocatedResources, p.Status.Resources = cpu("1"), &corev1.ResourceRequirements{Requests: cpu("3")}
	if got := NewPodInfo(p).Requests.MilliCPU; got != 3000 {
		t.Errorf("it counts with %dm", got)
	}
	p.Status.Resources.Requests = cpu("1")
	if got := NewPodInfo(p).Requests.MilliCPU; got != 1000 {
		t.Errorf("it counts with %dm when its node has taken them", got)
	}
}
