// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Decision is the outcome of one cycle for one pod.
type Decision struct {
	// Node that the pod should run on; "" where there is none.
	Node string
	// Seed that decided among equals, and Start, the node where the search began: with
	// the same snapshot and pod they give the same decision.
	Seed  uint64
	Start int
	// State of the cycle, for the points that follow.
	State *framework.State
	// Nomination by a PostFilter, where Node is "": nil = none.
	Nomination *framework.Nomination
	// PostFilter is why no room can be made, in the words of those who tried.
	PostFilter []string
	// Statuses of the nodes that were left out, by name; Whole is set instead when
	// the pod was refused before any node was looked at.
	Statuses map[string]*framework.Status
	Whole    *framework.Status
	// Evaluated nodes of Total; Feasible ones among them.
	Total, Evaluated int
	Feasible         []*framework.NodeInfo
	// Scores by plugin, weighted, in the order of Feasible; nil where one node was left.
	Scores map[string][]int64

	effort effort
}

// Fatal is the error of a plugin that could not do its work, if there was one.
func (d *Decision) Fatal() *framework.Status {
	if d.Whole != nil && d.Whole.Code == framework.Error {
		return d.Whole
	}
	return nil
}

// RefusedBy names the plugins that left nodes out.
func (d *Decision) RefusedBy() []string {
	names := map[string]bool{}
	if d.Whole != nil && d.Whole.Plugin != "" {
		names[d.Whole.Plugin] = true
	}
	for _, st := range d.Statuses {
		if st.Plugin != "" {
			names[st.Plugin] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// failedNodes copies the statuses for a PostFilter, which may keep them.
func (d *Decision) failedNodes() map[string]*framework.Status { return maps.Clone(d.Statuses) }

// Message says why no node fits, in upstream's words, such as "0/3 nodes are
// available: 1 Insufficient cpu, 2 node(s) were unschedulable".
func (d *Decision) Message() string {
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available", d.Total)
	if d.Whole != nil {
		if r := strings.Join(d.Whole.Reasons, ", "); r != "" {
			b.WriteString(": " + r)
		}
		b.WriteString(".")
		return b.String()
	}
	count := map[string]int{}
	for _, st := range d.Statuses {
		for _, r := range st.Reasons {
			count[r]++
		}
	}
	parts := make([]string, 0, len(count))
	for reason, n := range count {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	if len(parts) > 0 {
		b.WriteString(": " + strings.Join(parts, ", "))
	}
	b.WriteString(".")
	for _, why := range d.PostFilter {
		b.WriteString(" " + why)
	}
	return b.String()
}
