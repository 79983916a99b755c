// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// domain is the nodes that have one value of the topology label.
type domain struct {
	value string
	nodes []int // by their places in the snapshot
	free  framework.Resources
}

// decideInOneDomain tries one domain after the other, the fullest first, so that large ones stay
// free for large gangs. The first that takes all members is chosen, else the one that takes
// the most.
func decideInOneDomain(ctx context.Context, p *Problem, c Cycle, t *trial) Plan {
	all := domains(p)
	best := Plan{Nodes: make([]string, len(p.Members)), Failed: 0, Domains: len(all)}
	var chosen *domain
	for _, d := range all {
		plan := decide(ctx, p, c, t, Where{Only: d.nodes})
		plan.Domain, plan.Domains = d.value, len(all)
		if plan.Err != nil {
			return plan
		}
		if plan.Placed && plan.Fit == len(p.Members) {
			return plan
		}
		if plan.Fit > best.Fit || best.Domain == "" {
			best = plan
			chosen = d
		}
		undo(ctx, &plan, c, t, p)
	}
	if !best.Placed {
		return best
	}
	again := decide(ctx, p, c, t, Where{Only: chosen.nodes})
	again.Domain, again.Domains = best.Domain, best.Domains
	return again
}

func domains(p *Problem) []*domain {
	byValue := map[string]*domain{}
	for at, n := range p.Snapshot.Nodes {
		value, ok := n.Node.Labels[p.Topology]
		if !ok || p.Domain != nil && *p.Domain != value {
			continue
		}
		d := byValue[value]
		if d == nil {
			d = &domain{value: value}
			byValue[value] = d
		}
		d.nodes = append(d.nodes, at)
		d.free = d.free.Plus(n.Allocatable, 1).Plus(n.Requested, -1)
	}
	return slices.SortedFunc(maps.Values(byValue), func(a, b *domain) int {
		return cmp.Or(cmp.Compare(a.free.MilliCPU, b.free.MilliCPU), cmp.Compare(a.free.Memory, b.free.Memory), cmp.Compare(a.value, b.value))
	})
}

// Common is the value of a topology label that the nodes of placed pods have; nil where none is
// placed. It says what is wrong where they have several.
func Common(snap *framework.Snapshot, topology string, nodes iter.Seq[string]) (value *string, why string) {
	found := map[string]bool{}
	for node := range nodes {
		if n := snap.Node(node); n != nil {
			found[n.Node.Labels[topology]] = true
		}
	}
	values := slices.Sorted(maps.Keys(found))
	switch len(values) {
	case 0:
		return nil, ""
	case 1:
		return &values[0], ""
	}
	return nil, fmt.Sprintf("the pods of the gang that have nodes are in %d domains of %s: %v", len(values), topology, values)
}
