// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
