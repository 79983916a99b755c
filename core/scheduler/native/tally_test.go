// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// What nobody asks for any more is forgotten, and so are the oldest counts where there are too many.
func TestCountsThatNobodyAsksForAreForgotten(t *testing.T) {
	counts := tallies{all: map[string]*tally{}}
	ask := func(key string, nodes []*framework.NodeInfo) {
		counts.count(subject{key: key, topology: "zone", pods: func(*corev1.Pod) bool { return true }}, nodes)
	}
	ask("once", nil)
	for range 3 * longestIdle {
		ask("often", nil)
	}
	if counts.all["once"] != nil || counts.all["often"] == nil {
		t.Errorf("kept are %d counts", len(counts.all))
	}
	nodes := make([]*framework.NodeInfo, mostCounted/4)
	for i := range nodes {
		nodes[i] = &framework.NodeInfo{Node: &corev1.Node{}}
	}
	for i := range 6 {
		ask(fmt.Sprint(i), nodes)
	}
	if len(counts.all) > 4 || counts.all["5"] == nil || counts.all["0"] != nil {
		t.Errorf("%d counts of %d nodes are kept", len(counts.all), len(nodes))
	}
}
