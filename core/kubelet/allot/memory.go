// SPDX-License-Identifier: Apache-2.0

package allot

import (
	"fmt"
	"maps"
	"slices"
)

// Block is memory that a container has of NUMA nodes together.
type Block struct {
	Kind  string
	Nodes Nodes
	Bytes int64
}

// Ledger of a machine's memory.
type Ledger struct {
	// Allocatable by node and kind.
	Allocatable map[int]map[string]int64
	// Blocks that are taken.
	Blocks []Block
}

func (l *Ledger) nodes() (s Nodes) {
	for id := range l.Allocatable {
		s |= NodesOf(id)
	}
	return s
}

// room of nodes together. Who has memory of several nodes shares these with nobody who has
// other ones: how much of each it takes is the kernel's choice.
func (l *Ledger) room(kind string, nodes Nodes, taken bool) (n int64) {
	for _, id := range nodes.List() {
		n += l.Allocatable[id][kind]
	}
	if !taken {
		return n
	}
	for _, b := range l.Blocks {
		if b.Nodes&nodes == 0 {
			continue
		}
		if b.Nodes != nodes {
			return 0
		}
		if b.Kind == kind {
			n -= b.Bytes
		}
	}
	return n
}

// Hints where memory can be had, by the kinds that are asked for in their order.
func (l *Ledger) Hints(asked map[string]int64) (out []Hints) {
	// All of them come from the same nodes.
	fits := func(s Nodes, taken bool) bool {
		for kind, bytes := range asked {
			if l.room(kind, s, taken) < bytes {
				return false
			}
		}
		return true
	}
	if len(asked) == 0 {
		return nil
	}
	return []Hints{hints(l.nodes(), func(s Nodes) bool { return fits(s, false) }, func(s Nodes) bool { return fits(s, true) })}
}

// Take memory of the nodes that are near, of more where these do not have enough, of the
// fewest others where that does not do. near may be none.
func (l *Ledger) Take(asked map[string]int64, near Nodes) ([]Block, error) {
	if len(asked) == 0 {
		return nil, nil
	}
	can := l.Hints(asked)[0]
	if len(can) == 0 {
		return nil, fmt.Errorf("not enough memory of NUMA nodes available to satisfy request: %v", asked)
	}
	best := can[0].Nodes
	if at := slices.IndexFunc(can, func(h Hint) bool { return h.Nodes&near == near }); at >= 0 {
		best = can[at].Nodes
	}
	var out []Block
	for _, kind := range slices.Sorted(maps.Keys(asked)) {
		out = append(out, Block{kind, best, asked[kind]})
	}
	l.Blocks = append(l.Blocks, out...)
	return out, nil
}
