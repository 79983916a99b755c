// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// The status has what is granted to the pod as a whole, and, once it runs, what its cgroup has.
func TestResourcesOfAWholePod(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	granted := &corev1.ResourceRequirements{Requests: list("1", "64Mi"), Limits: list("2", "128Mi")}
	made := func(v pod.View, whole *corev1.ResourceRequirements) corev1.PodStatus {
		v.Granted = v.Pod.DeepCopy()
		v.Granted.Spec.Resources = whole
		v.Bounds = podbounds.Bounds{CPU: 500, CPULimit: 1000, Memory: 64 << 20, MemoryLimit: 128 << 20}
		return status.Generate(v, &corev1.PodStatus{}, status.Node{}, now)
	}
	st := made(view(corev1.RestartPolicyAlways, pod.Syncing, "a:none"), granted)
	if !equality.Semantic.DeepEqual(st.AllocatedResources, granted.Requests) || !equality.Semantic.DeepEqual(st.Resources, granted) {
		t.Errorf("before it runs: %v %v", st.AllocatedResources, st.Resources)
	}
	st = made(view(corev1.RestartPolicyAlways, pod.Syncing, "a:ready"), granted)
	want := &corev1.ResourceRequirements{Requests: list("500m", "64Mi"), Limits: list("1", "128Mi")}
	if !equality.Semantic.DeepEqual(st.AllocatedResources, granted.Requests) || !equality.Semantic.DeepEqual(st.Resources, want) {
		t.Errorf("while its cgroup is small: %v %v", st.AllocatedResources, st.Resources)
	}
	st = made(view(corev1.RestartPolicyAlways, pod.Syncing, "a:none"), nil)
	if st.AllocatedResources != nil || st.Resources == nil {
		t.Errorf("a pod that asks for nothing: %v %v", st.AllocatedResources, st.Resources)
	}
}
