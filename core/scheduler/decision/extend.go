// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"slices"
	"sync"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// narrow asks the extenders about the nodes that all plugins have left, one extender after the other: each is asked
// about what the one before has left. Where a pod is only thought of with others away nobody is asked: an extender
// that knows the nodes itself would go by the pods that are there.
func (c *Compiled) narrow(ctx context.Context, p *framework.PodInfo, s *search, in *Circumstances, d *Decision) {
	if in.Trial {
		return
	}
	for _, x := range c.extenders {
		if len(d.Feasible) == 0 || ctx.Err() != nil {
			return
		}
		if !x.Asked(framework.AtFilter, p.Pod) {
			continue
		}
		d.Effort.Count("Filter", x.Name(), len(d.Feasible))
		refused, st := x.Narrow(ctx, p, d.Feasible)
		if !st.IsSuccess() {
			if x.Ignorable() {
				d.ignore(x, st)
				continue
			}
			d.Whole = by(asError(st), x)
			return
		}
		nodes, places := d.Feasible[:0:0], s.places[:0:0]
		for i, n := range d.Feasible {
			if st := refused[i]; st.IsSuccess() {
				nodes, places = append(nodes, n), append(places, s.places[i])
			} else {
				d.Statuses[n.Node.Name] = by(st, x)
			}
		}
		d.Feasible, s.places = nodes, places
	}
}

// ignore records a failure that changes nothing.
func (d *Decision) ignore(x framework.Extender, st *framework.Status) {
	d.Ignored = append(d.Ignored, by(asError(st), x))
}

// rates says whether an extender adds to the scores of a pod's nodes.
func (c *Compiled) rates(p *framework.PodInfo) bool {
	return slices.ContainsFunc(c.extenders, func(x framework.Extender) bool { return x.Asked(framework.AtScore, p.Pod) })
}

// rate is what the extenders add to the scores, each by its name. They are asked at the same time, and one that fails adds
// nothing.
func (c *Compiled) rate(ctx context.Context, p *framework.PodInfo, d *Decision, add func(name string, scores []int64)) {
	if !c.rates(p) {
		return
	}
	scores, failed := make([][]int64, len(c.extenders)), make([]*framework.Status, len(c.extenders))
	var all sync.WaitGroup
	for i, x := range c.extenders {
		if x.Asked(framework.AtScore, p.Pod) {
			d.Effort.Count("Score", x.Name(), len(d.Feasible))
			all.Go(func() { scores[i], failed[i] = x.Rate(ctx, p, d.Feasible) })
		}
	}
	all.Wait()
	for i, x := range c.extenders {
		if !failed[i].IsSuccess() {
			d.ignore(x, failed[i])
		} else if scores[i] != nil {
			add(x.Name(), scores[i])
		}
	}
}

// Vet implements framework.Vetter.
func (m *simulator) Vet(ctx context.Context, candidates []framework.Candidate) ([]framework.Candidate, *framework.Status) {
	for _, x := range m.profile.extenders {
		if len(candidates) == 0 || !x.Asked(framework.AtPostFilter, m.pod.Pod) {
			continue
		}
		m.d.Effort.Count("PostFilter", x.Name(), 1)
		left, st := x.Vet(ctx, m.pod, m.snap, candidates)
		switch {
		case st.IsSuccess():
		case x.Ignorable():
			m.d.ignore(x, st)
			continue
		default:
			return nil, by(asError(st), x)
		}
		if len(left) == 0 {
			m.d.hinder(x.Name())
			return nil, by(framework.NewStatus(framework.Unschedulable, x.Name()+" agrees to no node"), x)
		}
		candidates = left
	}
	return candidates, nil
}
