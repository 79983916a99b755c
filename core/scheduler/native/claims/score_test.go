// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
	"github.com/wasmplane/wasmplane/core/scheduler/native/shape"
)

func room(name, class, node, amount string) *storagev1.CSIStorageCapacity {
	q := resource.MustParse(amount)
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, StorageClassName: class, Capacity: &q,
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "disk-of-" + node}},
	}
}

// TestNodesAreRatedByTheirStorage: as upstream's VolumeBinding scores since 1.37.
func TestNodesAreRatedByTheirStorage(t *testing.T) {
	yes := true
	objects := func() []runtime.Object {
		held := volumeOn("held", "a", "made", "50Gi")
		held.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "bound", UID: "claim-bound"}
		return []runtime.Object{
			node("a"), node("b"), node("c"),
			class("static", "kubernetes.io/no-provisioner", waits), class("static-2", "kubernetes.io/no-provisioner", waits),
			class("made", "example.com/tracked", waits), class("made-2", "example.com/tracked", waits), class("unsaid", "example.com/disk", waits),
			&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "example.com/tracked"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &yes}},
			room("a", "made", "a", "100Gi"), room("a-smaller", "made", "a", "80Gi"), room("b", "made", "b", "200Gi"),
			room("a-2", "made-2", "a", "40Gi"), room("b-2", "made-2", "b", "400Gi"),
			volumeOn("va", "a", "static", "100Gi"), volumeOn("vb", "b", "static", "50Gi"), volumeOn("va-2", "a", "static-2", "40Gi"),
			held, claim("bound", "made", "50Gi", boundTo("held")),
			claim("static", "static", "50Gi"), claim("static-2", "static-2", "10Gi"),
			claim("made", "made", "50Gi"), claim("too", "made", "30Gi"), claim("made-2", "made-2", "10Gi"), claim("unsaid", "unsaid", "50Gi"),
		}
	}
	for _, r := range []struct {
		claims string
		shape  shape.Shape
		want   map[string]int64 // "" = the plugin is left out
	}{
		{"", nil, nil},
		{"bound", nil, nil},
		{"made", nil, map[string]int64{"a": 50, "b": 75}},
		{"made too", nil, map[string]int64{"a": 20, "b": 60}},
		{"made made-2", nil, map[string]int64{"a": 63, "b": 87}}, // (50+75)/2, (75+98)/2, to the nearest
		{"made bound", nil, map[string]int64{"a": 50}},
		{"unsaid", nil, map[string]int64{"a": 0, "b": 0, "c": 0}},
		{"made unsaid", nil, map[string]int64{"a": 50, "b": 75}},
		{"static", nil, map[string]int64{"a": 50, "b": 0}},
		{"static static-2", nil, map[string]int64{"a": 63}},     // (50+75)/2
		{"static made", nil, map[string]int64{"a": 50, "b": 0}}, // volumes that there are count alone
		{"made", shape.Shape{{Utilization: 0, Score: 0}, {Utilization: 100, Score: 100}}, map[string]int64{"a": 50, "b": 25}},
		{"made", shape.Shape{{Utilization: 50, Score: 30}}, map[string]int64{"a": 30, "b": 30}},
		{"made", shape.Shape{{Utilization: 10, Score: 0}, {Utilization: 30, Score: 80}, {Utilization: 100, Score: 10}}, map[string]int64{"a": 60, "b": 60}},
	} {
		t.Run(r.claims, func(t *testing.T) {
			c := newCluster(t, objects()...)
			b := claims.NewBinding(c.client, c.inf, claims.Settings{Shape: r.shape})
			c.start()
			s, p := framework.NewState(), podWith("web", strings.Fields(r.claims)...)
			if _, st := b.PreFilter(t.Context(), s, p, nil); !st.IsSuccess() && st.Code != framework.Skip {
				t.Fatal(st)
			}
			st := b.PreScore(t.Context(), s, p, nil)
			if left := st != nil && st.Code == framework.Skip; left != (r.want == nil) || st != nil && !left {
				t.Fatalf("before scores: %v", st)
			}
			for name, want := range r.want {
				if st := b.Filter(t.Context(), s, p, c.nodes[name]); !st.IsSuccess() {
					t.Fatalf("node %s: %v", name, st)
				}
				if got, st := b.Score(t.Context(), s, p, c.nodes[name]); got != want || !st.IsSuccess() {
					t.Errorf("node %s scores %d (%v), want %d", name, got, st, want)
				}
			}
		})
	}
}
