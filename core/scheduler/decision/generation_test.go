// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// TestSimulatedNodesAreNotMistakenForOneAnother: a table of nodes, which is kept over cycles, knows
// nodes by their generations; what one cycle promised must not be what the next one finds in it.
func TestSimulatedNodesAreNotMistakenForOneAnother(t *testing.T) {
	node := &framework.NodeInfo{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, Generation: 7}
	snap := &framework.Snapshot{Nodes: []*framework.NodeInfo{node}, Index: map[string]int{"a": 0}, Generation: 7}
	seen := map[int64]bool{7: true, -1: true} // -1: a table has no row yet
	for _, name := range []string{"x", "y", "z"} {
		pod := framework.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
		with := snapshotWith(snap, map[string][]*framework.PodInfo{"a": {pod}})
		if seen[with.Generation] || seen[with.Nodes[0].Generation] {
			t.Errorf("with pod %s the snapshot has generation %d and its node %d, which others had", name, with.Generation, with.Nodes[0].Generation)
		}
		seen[with.Generation], seen[with.Nodes[0].Generation] = true, true
	}
	if node.Generation != 7 || snap.Generation != 7 {
		t.Error("the real ones were changed")
	}
}
