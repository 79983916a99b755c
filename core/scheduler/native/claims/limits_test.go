// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
)

func csiVolume(name, driver string) *corev1.PersistentVolume {
	pv := volumeOn(name, "a", "made", "1Gi")
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "handle-" + name}
	return pv
}

// TestANodeTakesSoManyVolumes: as its CSINode says, of that driver; a volume that a pod
// of the node uses already is no further one.
func TestANodeTakesSoManyVolumes(t *testing.T) {
	const full, missing = "node(s) exceed max volume count", "needed.example CSI driver is not installed on the node"
	c := newCluster(t, node("two"), node("none"), node("free"), node("unknown"),
		class("made", "disk.example", waits),
		csiVolume("one", "disk.example"), csiVolume("two", "disk.example"), csiVolume("three", "disk.example"),
		csiVolume("other", "other.example"), csiVolume("needs", "needed.example"),
		claim("one", "made", "1Gi", boundTo("one")), claim("two", "made", "1Gi", boundTo("two")), claim("three", "made", "1Gi", boundTo("three")),
		claim("other", "made", "1Gi", boundTo("other")), claim("needs", "made", "1Gi", boundTo("needs")), claim("new", "made", "1Gi"),
		&storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: "needed.example"},
			Spec:       storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: ptr.To(true)},
		},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "disk.example", NodeID: "two", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(2))}}, {Name: "needed.example", NodeID: "two"},
		}}},
		&storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: "free"},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "disk.example", NodeID: "free"}}},
		},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "disk.example", NodeID: "none", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(0))}},
		}}},
	)
	l := claims.NewLimits(c.inf)
	c.start()
	for _, r := range []struct {
		there, wants []string
		node, want   string
	}{
		{nil, []string{"one", "two"}, "two", ""},
		{nil, []string{"one", "two", "three"}, "two", full},
		{[]string{"one", "two"}, []string{"three"}, "two", full},
		{[]string{"one", "two"}, []string{"two"}, "two", ""},
		{[]string{"one", "two"}, []string{"new"}, "two", full},
		{[]string{"one", "new"}, []string{"new"}, "two", ""},
		{[]string{"one", "two"}, []string{"other"}, "two", ""},
		{[]string{"one", "other"}, []string{"two"}, "two", ""},
		{nil, []string{"one"}, "none", full},
		{[]string{"one", "two"}, []string{"three"}, "free", ""},
		{[]string{"one", "two"}, []string{"three"}, "unknown", ""},
		{nil, []string{"needs"}, "two", ""},
		{nil, []string{"needs"}, "free", missing},
		{nil, []string{"needs"}, "unknown", missing},
	} {
		n := framework.NewNodeInfo(c.nodes[r.node].Node)
		if len(r.there) > 0 {
			n.Pods = append(n.Pods, podWith("there", r.there...))
		}
		s, p := framework.NewState(), podWith("web", r.wants...)
		if _, st := l.PreFilter(t.Context(), s, p, nil); st != nil {
			t.Fatalf("%v: %v", r.wants, st)
		}
		if got := reason(l.Filter(t.Context(), s, p, n)); got != r.want {
			t.Errorf("%v beside %v on node %s: %q, want %q", r.wants, r.there, r.node, got, r.want)
		}
	}
	if _, st := l.PreFilter(t.Context(), framework.NewState(), podWith("plain"), nil); st == nil || st.Code != framework.Skip {
		t.Errorf("a pod without volumes: %v", st)
	}
}

// TestWhatMayMakeRoomForVolumes: a pod that no node has room for is tried again when a node comes.
func TestWhatMayMakeRoomForVolumes(t *testing.T) {
	for _, e := range []framework.ClusterEvent{framework.NodeAdded, framework.PodRemoved, framework.VolumesChanged} {
		if (&claims.Limits{}).Hints()&e == 0 {
			t.Errorf("event %b does not bring the pod back", e)
		}
	}
}
