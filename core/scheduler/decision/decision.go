// SPDX-License-Identifier: Apache-2.0

// Package decision finds the node for one pod as a profile says: it asks the profile's plugins,
// native and Wasm alike, about a snapshot of the cluster. It is pure: it knows no queue
// and no API, and the same arguments give the same decision. A Decision also has the words for
// what was decided.
package decision

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/measure"
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
	// Standing is the pod, "namespace/name", that was tried instead: one of the same template,
	// whose refusal still holds. Nothing was decided anew; the refusal is that pod's.
	Standing string
	// Gang is why the pods that this one is to be placed with are not placed, where it is one of
	// several; "" = it is refused for itself.
	Gang string
	// Ignored are failures of extenders that the decision went on without, in the order of the profile.
	Ignored []*framework.Status

	// Effort that it took.
	Effort measure.Effort

	outside int             // nodes that the search was not to look at: those of other topology domains
	refused []Refused       // counted once
	hinders map[string]bool // plugins that refused the pod where room was made for it, as a trial
}

// Refused are the nodes that a plugin left out for the same reasons.
type Refused struct {
	Plugin  string
	Reasons []string
	Nodes   int
}

// Refusals groups the nodes that were left out.
func (d *Decision) Refusals() []Refused {
	if d.refused != nil || len(d.Statuses) == 0 && d.outside == 0 {
		return d.refused
	}
	if d.outside > 0 {
		d.refused = []Refused{{Reasons: []string{"node(s) were outside of the topology domain"}, Nodes: d.outside}}
	}
	// Most refusals are one status, said of many nodes.
	same := map[*framework.Status]int{}
	for _, st := range d.Statuses {
		same[st]++
	}
	at := map[string]int{}
	for st, n := range same {
		key := st.Plugin + "\x00" + strings.Join(st.Reasons, "\x00")
		i, ok := at[key]
		if !ok {
			i = len(d.refused)
			at[key], d.refused = i, append(d.refused, Refused{Plugin: st.Plugin, Reasons: st.Reasons})
		}
		d.refused[i].Nodes += n
	}
	slices.SortFunc(d.refused, func(a, b Refused) int {
		return cmp.Or(cmp.Compare(a.Plugin, b.Plugin), slices.Compare(a.Reasons, b.Reasons))
	})
	return d.refused
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
	for _, r := range d.Refusals() {
		if r.Plugin != "" {
			names[r.Plugin] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// HeldBy names the plugins of RefusedBy, and those because of which no room could be made: a filter that
// nobody asked about a full node refuses the pod there once others are thought away. Whatever helps
// against one of them may let the pod in.
func (d *Decision) HeldBy() []string {
	names := map[string]bool{}
	if d.Nomination == nil { // the pod waits for its victims otherwise
		maps.Copy(names, d.hinders)
	}
	for _, name := range d.RefusedBy() {
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// hinder records who refuses the pod in a trial.
func (d *Decision) hinder(plugins ...string) {
	if d.hinders == nil {
		d.hinders = map[string]bool{}
	}
	for _, name := range plugins {
		if name != "" {
			d.hinders[name] = true
		}
	}
}

// FailedNodes copies the statuses for a PostFilter, which may keep them.
func (d *Decision) FailedNodes() map[string]*framework.Status { return maps.Clone(d.Statuses) }

// Kept is the refusal of a pod as it holds for others, without what only its own cycle needs.
func (d *Decision) Kept(pod string) *Decision {
	return &Decision{
		Seed: d.Seed, Start: d.Start, Total: d.Total, PostFilter: d.PostFilter, Whole: d.Whole,
		Standing: pod, Gang: d.Gang, refused: d.Refusals(),
	}
}

// Message says why no node fits, in upstream's words, such as "0/3 nodes are
// available: 1 Insufficient cpu, 2 node(s) were unschedulable".
func (d *Decision) Message() string {
	if d.Gang != "" {
		return d.Gang
	}
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
	for _, refused := range d.Refusals() {
		for _, r := range refused.Reasons {
			count[r] += refused.Nodes
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

// shown bounds how many nodes a span names.
const shown = 10

// NodesLeftOut is "2 of 3 nodes fit; left out: node-1: Insufficient cpu".
func (d *Decision) NodesLeftOut() string {
	text := fmt.Sprintf("%d of %d nodes fit", len(d.Feasible), d.Total)
	if d.Evaluated < d.Total && d.Whole == nil {
		text += fmt.Sprintf(" (%d looked at)", d.Evaluated)
	}
	for _, st := range d.Ignored {
		text += "; ignored: " + strings.Join(st.Reasons, ", ")
	}
	// Thousands of nodes may be left out, and a few are named: those are kept in order, not all.
	names := make([]string, 0, shown+1)
	for name := range d.Statuses {
		if at, _ := slices.BinarySearch(names, name); at < shown {
			names = slices.Insert(names, at, name)
			names = names[:min(len(names), shown)]
		}
	}
	for i, name := range names {
		if i == 0 {
			text += "; left out: "
		} else {
			text += "; "
		}
		st := d.Statuses[name]
		text += name + ": " + strings.Join(st.Reasons, ", ") + " [" + st.Plugin + "]"
	}
	if more := len(d.Statuses) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// ScoresByNode is JSON: {"node": {"total": 180, "NodeResourcesFit": 90, ...}, ...}, the best nodes first in count.
func (d *Decision) ScoresByNode() string {
	totals := make([]int64, len(d.Feasible))
	for _, scores := range d.Scores {
		for i, score := range scores {
			totals[i] += score
		}
	}
	// There are thousands of nodes, and a few are shown: those are kept in order, not all.
	order := make([]int, 0, shown+1)
	for i, total := range totals {
		at := len(order)
		for at > 0 && totals[order[at-1]] < total {
			at--
		}
		if at == shown {
			continue
		}
		order = slices.Insert(order, at, i)[:min(len(order)+1, shown)]
	}
	out := map[string]map[string]int64{}
	for _, i := range order {
		row := map[string]int64{"total": totals[i]}
		for plugin, scores := range d.Scores {
			row[plugin] = scores[i]
		}
		out[d.Feasible[i].Node.Name] = row
	}
	text, err := json.Marshal(out)
	if err != nil {
		return ""
	}
	return string(text)
}
