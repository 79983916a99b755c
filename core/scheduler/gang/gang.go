// SPDX-License-Identifier: Apache-2.0

// Package gang decides about pods that belong together: those of a PodGroup that get their
// nodes all or not at all.
//
// A decision is made for all of them against one snapshot, on a copy that has those
// already placed, and takes effect only where enough of them fit: a gang that does not
// fit holds nothing, so that two of them cannot block each other. It knows neither
// queue nor plugins: Cycle is asked about one pod after the other.
package gang

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Problem is a gang without nodes and the cluster that it is to have them in.
type Problem struct {
	// Members that have no node yet, in the order in which they are tried.
	Members []*framework.PodInfo
	// Need is how many of them have to get a node for any to get one; at least 1.
	Need int
	// Topology is the label whose value the nodes of all members have in common; "" = none
	// is. Domain is the value, where members that have nodes decided it.
	Topology string
	Domain   *string
	Snapshot *framework.Snapshot
}

// Where narrows the search for a member's node.
type Where struct {
	// Only these places of the snapshot, which ascend; nil = all.
	Only []int
	// First is looked at before all others; "" = none.
	First string
}

// Answer is the decision about one member.
type Answer struct {
	Node string            // "" = none fits
	Err  *framework.Status // a plugin could not do its work: the whole decision ends
}

// Cycle decides about single members, by their place in the problem.
type Cycle interface {
	// Template of a member: those with the same one are refused alike on the same cluster; "" = no
	// other is like it.
	Template(member int) string
	// Decide finds the node of a member on a snapshot that nobody else has.
	Decide(ctx context.Context, member int, snap *framework.Snapshot, where Where) Answer
	// Reserve is told that a member will be on the node unless Unreserve is called, with the
	// latest decision about it. Where it refuses, nothing stays reserved.
	Reserve(ctx context.Context, member int, node string) *framework.Status
	Unreserve(ctx context.Context, member int, node string)
}

// Plan is the decision.
type Plan struct {
	// Nodes of the members; "" for those that got none. All are where too few fit.
	Nodes []string
	// Fit is how many fit, where too few did: at the best of the domains.
	Fit int
	// Failed is the first member that did not fit; -1 = all did.
	Failed int
	// Domain that was chosen, or was the best; Domains that were tried.
	Domain  string
	Domains int
	Err     *framework.Status
	// Placed: at least as many fit as had to. They are reserved.
	Placed bool
}

// Message says how many of the pods fit, before the reason why the next one does not. needs is
// how many the gang needs with those that have nodes.
func (plan *Plan) Message(p *Problem, needs int) string {
	text := fmt.Sprintf("gang needs %d pods", needs)
	if have := needs - p.Need; have > 0 && p.Need > 1 {
		text += fmt.Sprintf(", %d have nodes", have)
	}
	if p.Topology != "" {
		return text + fmt.Sprintf(" in one %s, %d fit in the best of %d: ", p.Topology, plan.Fit, plan.Domains)
	}
	return text + fmt.Sprintf(", %d fit: ", plan.Fit)
}

// Decide finds nodes for the members.
func Decide(ctx context.Context, p Problem, c Cycle) Plan {
	t := newTrial(p.Snapshot)
	if p.Topology == "" {
		return decide(ctx, &p, c, t, Where{})
	}
	return decideInOneDomain(ctx, &p, c, t)
}

// decide tries the members in their order and, where that fails and they differ, the large ones
// first, since the small ones fit into what those leave; where not all are needed, the small ones first.
func decide(ctx context.Context, p *Problem, c Cycle, t *trial, where Where) Plan {
	order := make([]int, len(p.Members))
	for i := range order {
		order[i] = i
	}
	best := attempt(ctx, p, c, t, where, order)
	if best.Placed || best.Err != nil || alike(p.Members) {
		return best
	}
	bySize := func(a, b int) int { return size(p.Members[b], p.Members[a]) }
	orders := [][]int{slices.SortedStableFunc(slices.Values(order), bySize)}
	if p.Need < len(order) {
		orders = append(orders, slices.SortedStableFunc(slices.Values(order), func(a, b int) int { return bySize(b, a) }))
	}
	for _, other := range orders {
		if slices.Equal(other, order) {
			continue
		}
		plan := attempt(ctx, p, c, t, where, other)
		if plan.Placed || plan.Err != nil {
			return plan
		}
		if plan.Fit > best.Fit {
			best = plan
		}
	}
	return best
}

func size(a, b *framework.PodInfo) int {
	return cmp.Or(cmp.Compare(a.Requests.MilliCPU, b.Requests.MilliCPU), cmp.Compare(a.Requests.Memory, b.Requests.Memory))
}

func alike(members []*framework.PodInfo) bool {
	return !slices.ContainsFunc(members, func(m *framework.PodInfo) bool { return size(m, members[0]) != 0 })
}

// attempt tries the members in one order. Where too few fit it leaves nothing behind.
func attempt(ctx context.Context, p *Problem, c Cycle, t *trial, where Where, order []int) Plan {
	plan := Plan{Nodes: make([]string, len(p.Members)), Failed: -1}
	refused := map[string]bool{} // templates, since the latest placement
	left := len(order)
	for _, i := range order {
		if plan.Fit+left < p.Need {
			break
		}
		left--
		template := c.Template(i)
		if refused[template] {
			continue
		}
		a := c.Decide(ctx, i, &t.snap, where)
		st := a.Err
		if st == nil && a.Node != "" {
			st = c.Reserve(ctx, i, a.Node)
		}
		switch {
		case st != nil && st.Code == framework.Error:
			plan.Err, plan.Failed = st, i
			undo(ctx, &plan, c, t, p)
			return plan
		case a.Node == "" || !st.IsSuccess():
			if plan.Failed < 0 {
				plan.Failed = i
			}
			refused[template] = template != ""
		default:
			plan.Nodes[i] = a.Node
			plan.Fit++
			t.place(p.Members[i], a.Node)
			clear(refused)
		}
	}
	if plan.Placed = plan.Fit >= p.Need; !plan.Placed {
		undo(ctx, &plan, c, t, p)
	}
	return plan
}

// undo takes back what an attempt placed.
func undo(ctx context.Context, plan *Plan, c Cycle, t *trial, p *Problem) {
	for i := len(plan.Nodes) - 1; i >= 0; i-- {
		if node := plan.Nodes[i]; node != "" {
			c.Unreserve(ctx, i, node)
			t.remove(p.Members[i], node)
			plan.Nodes[i] = ""
		}
	}
}
