// SPDX-License-Identifier: Apache-2.0

package callgraph

import (
	"slices"
	"testing"
)

// TestCyclesAndDepth: 0 calls 1 and 2, 1 and 2 call each other, 3 calls itself, 4 calls 0.
func TestCyclesAndDepth(t *testing.T) {
	g := Graph{Edges: [][]int32{{1, 2}, {2}, {1}, {3}, {0}}}
	recursive, deepest := g.Analyse([]int64{10, 1, 1, 100, 5})
	if want := []bool{false, true, true, true, false}; !slices.Equal(recursive, want) {
		t.Errorf("recursive: %v, want %v", recursive, want)
	}
	if deepest != 15 { // 4 and 0; what is recursive is counted when it runs
		t.Errorf("the heaviest path weighs %d, want 15", deepest)
	}
}
