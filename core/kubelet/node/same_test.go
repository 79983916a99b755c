// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAStatusIsComparedOncePerStateOfItsNode: a look that finds the node as the last one did costs a part of a
// comparison, and one that finds something else is never taken for the last one.
func TestAStatusIsComparedOncePerStateOfItsNode(t *testing.T) {
	status := func() *corev1.NodeStatus {
		return &corev1.NodeStatus{
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"), "pods": resource.MustParse("110")},
			Conditions: []corev1.NodeCondition{
				{Type: "Ready", Status: "True", LastHeartbeatTime: metav1.Now()},
				{Type: "MemoryPressure", Status: "False"},
				{Type: "DiskPressure", Status: "False"},
				{Type: "PIDPressure", Status: "False"},
			},
			NodeInfo: corev1.NodeSystemInfo{MachineID: "a", KubeletVersion: "v1"},
		}
	}
	r := &Registrar{}
	have := &corev1.Node{Status: *status()}
	for range 2 { // compared, and then known by its digest
		if !r.unchanged(have, status()) {
			t.Error("what is the same is taken for another")
		}
	}
	before := status()
	whole := testing.AllocsPerRun(50, func() { same(&have.Status, before) })
	if again := testing.AllocsPerRun(50, func() { r.unchanged(have, before) }); again > whole/2 {
		t.Errorf("a comparison allocates %.0f times, and again %.0f", whole, again)
	}
	changed := status()
	changed.Conditions[1].Status = "True"
	if r.unchanged(have, changed) {
		t.Error("pressure is not seen")
	}
	other := have.DeepCopy() // as somebody else has written it
	other.Status.Conditions[0].Status = "Unknown"
	if r.unchanged(other, status()) {
		t.Error("what somebody else wrote is not seen")
	}
	if !r.unchanged(have, status()) {
		t.Error("what is the same again is taken for another")
	}
}
