// SPDX-License-Identifier: Apache-2.0

package allot

import (
	"maps"
	"slices"

	"k8s.io/utils/cpuset"
)

// Policy of the topology manager.
type Policy string

// The policies.
const (
	AnyNodes       Policy = "none"
	BestEffort     Policy = "best-effort"
	Restricted     Policy = "restricted"
	SingleNUMANode Policy = "single-numa-node"
)

// Hint is a set of NUMA nodes from which a request can be had. Preferred: no fewer could do.
type Hint struct {
	Nodes     Nodes
	Preferred bool
}

// Hints of one resource. nil: any nodes will do; empty: no nodes can.
type Hints []Hint

// merged is a choice of one hint for each resource.
type merged = Hint

// Merge finds the nodes that suit all resources best, and says whether the policy takes a
// container there. all are the machine's nodes.
func Merge(policy Policy, all Nodes, resources []Hints) (best Hint, admit bool) {
	if policy == AnyNodes || policy == "" {
		return Hint{all, true}, true
	}
	choices := map[merged]bool{{all, true}: true}
	fewest := 0    // nodes that the largest request needs
	cared := false // a resource before this one cared
	for _, hints := range resources {
		if hints == nil {
			continue
		}
		if policy == SingleNUMANode {
			hints = slices.DeleteFunc(slices.Clone(hints), func(h Hint) bool { return h.Nodes.Len() != 1 || !h.Preferred })
		}
		if len(hints) == 0 {
			hints = Hints{{all, false}}
		}
		need := MostNodes
		next := map[merged]bool{}
		for _, h := range hints {
			need = min(need, h.Nodes.Len())
			for c := range choices {
				if nodes := c.Nodes & h.Nodes; nodes != 0 {
					// Preferred by all are the very same nodes alone, not some of what one of them prefers.
					next[merged{nodes, c.Preferred && h.Preferred && (!cared || c.Nodes == h.Nodes)}] = true
				}
			}
		}
		choices, fewest, cared = next, max(fewest, need), true
	}
	best = Hint{all, false}
	sorted := slices.SortedFunc(maps.Keys(choices), func(a, b merged) int { return compare(a, b, fewest) })
	if len(sorted) > 0 {
		best = sorted[0]
	}
	return best, policy == BestEffort || best.Preferred
}

// compare hints: preferred ones first, then the narrowest; of those that are not preferred, the
// widest that are no wider than the largest request needs.
func compare(a, b Hint, fewest int) int {
	if a.Preferred != b.Preferred {
		if a.Preferred {
			return -1
		}
		return 1
	}
	x, y := a.Nodes.Len(), b.Nodes.Len()
	if !a.Preferred {
		x, y = tooNarrow(x, fewest), tooNarrow(y, fewest)
	}
	if x != y {
		return x - y
	}
	return int(int64(a.Nodes) - int64(b.Nodes)) //nolint:gosec // at most eight bits
}

// tooNarrow by so many nodes; what is too wide comes after all that are not.
func tooNarrow(n, fewest int) int {
	if n > fewest {
		return MostNodes + n
	}
	return fewest - n
}

// hints are the sets of nodes from which a request can be had now, preferred where no fewer
// nodes of the empty machine could do.
func hints(nodes Nodes, ever, now func(Nodes) bool) Hints {
	out := Hints{}
	fewest := MostNodes + 1
	for _, s := range Subsets(nodes) {
		if ever(s) {
			fewest = min(fewest, s.Len())
		}
		if now(s) {
			out = append(out, Hint{s, s.Len() == fewest})
		}
	}
	return out
}

// CPUHints are where n CPUs can be had: of all that pods may have, some are free.
func (m *Machine) CPUHints(n int, all, free cpuset.CPUSet) Hints {
	return hints(m.Nodes(), func(s Nodes) bool { return m.Of(s).Intersection(all).Size() >= n },
		func(s Nodes) bool { return m.Of(s).Intersection(free).Size() >= n })
}

// DeviceHints are where n devices can be had, each on its nodes: nil where no device says on
// which it is.
func DeviceHints(all Nodes, n int, devices, free []Nodes) Hints {
	on := func(list []Nodes, s Nodes) (count int) {
		for _, d := range list {
			if d&s != 0 {
				count++
			}
		}
		return count
	}
	if on(devices, all) == 0 {
		return nil
	}
	return hints(all, func(s Nodes) bool { return on(devices, s) >= n }, func(s Nodes) bool { return on(free, s) >= n })
}
