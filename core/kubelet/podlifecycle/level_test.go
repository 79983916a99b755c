// SPDX-License-Identifier: Apache-2.0

package podlifecycle_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// whole is a list of resources for a pod as a whole: requests that are its limits.
func whole(cpu string) *corev1.ResourceRequirements {
	l := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return &corev1.ResourceRequirements{Requests: l, Limits: l.DeepCopy()}
}

func (w *world) askWhole(cpu string) {
	q := w.p.DeepCopy()
	q.Generation++
	q.Spec.Resources = whole(cpu)
	w.p = q
	w.step(pod.Updated{Pod: q})
}

// A pod's cgroup gets more before the containers that share it, and less after them.
func TestAPodsOwnResourcesChangeInPlace(t *testing.T) {
	p := aPod(corev1.RestartPolicyAlways, "main1", "main2")
	p.Spec.Resources = whole("1")
	p.Spec.Containers[1].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
	w := newWorld(p)
	w.settle()
	w.expect(t, "sandbox", "start main1", "start main2")
	w.askWhole("2")
	w.settle()
	w.expect(t, "pod to 2000m", "resize main1 to 0", "note ResizeCompleted") // main2 has a limit of its own
	w.askWhole("1")
	w.settle()
	w.expect(t, "resize main1 to 0", "pod to 1000m", "note ResizeCompleted")
	if v := w.m.View(); v.Resizing.Active || v.Bounds.CPULimit != 1000 {
		t.Errorf("%+v, bounds %+v", v.Resizing, v.Bounds)
	}
}

func TestAContainerIsRestartedForItsPodsResources(t *testing.T) {
	p := aPod(corev1.RestartPolicyAlways, "main")
	p.Spec.Resources = whole("1")
	p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
		{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer},
	}
	w := newWorld(p)
	w.settle()
	w.expect(t, "sandbox", "start main")
	w.askWhole("2")
	w.settle()
	w.expect(t, "pod to 2000m", "kill main", "start main", "note ResizeCompleted")
	if c := w.last("main"); c.Level.Limits.Cpu().String() != "2" {
		t.Errorf("it was made in a pod of %+v", c.Level)
	}
	w.askWhole("1")
	w.settle()
	w.expect(t, "kill main", "note BackOff", "pod to 1000m")
	w.pass(time.Minute)
	w.expect(t, "start main", "note ResizeCompleted")
}

// While a change waits the pod keeps what it has, also over a restart of the kubelet.
func TestAPodsOwnResourcesWait(t *testing.T) {
	p := aPod(corev1.RestartPolicyAlways, "main")
	p.Spec.Resources = whole("1")
	w := newWorld(p)
	w.settle()
	w.refuse = "Deferred"
	w.askWhole("2")
	w.settle()
	check := func() {
		t.Helper()
		v := w.m.View()
		if v.Resizing.Pending != "Deferred" || v.Granted.Spec.Resources.Requests.Cpu().String() != "1" || v.Bounds.CPULimit != 1000 {
			t.Errorf("%+v, granted %v, bounds %+v", v.Resizing, v.Granted.Spec.Resources, v.Bounds)
		}
	}
	check()
	w.p = w.p.DeepCopy()
	w.p.Status.Phase, w.p.Status.AllocatedResources, w.p.Status.Resources = corev1.PodRunning, whole("1").Requests, whole("1")
	w.p.Status.StartTime = w.p.CreationTimestamp.DeepCopy()
	w.start()
	w.settle()
	check()
	w.expect(t, "sandbox", "start main")
	w.refuse = ""
	w.pass(11e9)
	w.expect(t, "pod to 2000m", "resize main to 0", "note ResizeCompleted")
}

// A resize that is complete is not brought about once more by a kubelet that starts anew.
func TestResourcesAreKeptOverARestart(t *testing.T) {
	p := aPod(corev1.RestartPolicyAlways, "main")
	p.Spec.Containers[0].Resources = ask("1")
	w := newWorld(p)
	w.settle()
	q := w.p.DeepCopy()
	q.Generation++
	q.Spec.Containers[0].Resources = ask("2")
	w.p = q
	w.step(pod.Updated{Pod: q})
	w.settle()
	w.expect(t, "sandbox", "start main", "pod to 2000m", "resize main to 2")
	w.p = w.p.DeepCopy()
	r := ask("2")
	w.p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", ContainerID: "containerd://" + w.last("main").ID, Resources: &r,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	w.start()
	w.settle()
	w.expect(t)
}
