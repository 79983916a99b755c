// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/gang"
)

// Reclaims says whether a plugin names the groups that make room, instead of the preemption by priority.
func (c *Compiled) Reclaims() bool { return c.reclaimer != nil }

// mayReclaim says whether room may help a pod that was refused before any node was looked at: it was
// by the one that makes room, for what others have now.
func (c *Compiled) mayReclaim(refusal *framework.Status) bool {
	return c.reclaimer != nil && refusal.Code == framework.Unschedulable && refusal.Plugin == c.reclaimer.Name()
}

// Reclaimable are the pods that may make room for a pod, or for a gang whose requests it has.
func (c *Compiled) Reclaimable(ctx context.Context, s *framework.State, p *framework.PodInfo, snap *framework.Snapshot,
	whole func(*corev1.Pod) bool,
) ([]gang.Unit, *framework.Status) {
	allowed, st := c.reclaimer.Reclaim(ctx, s, p, snap)
	if !st.IsSuccess() {
		return nil, by(st, c.reclaimer)
	}
	claim := gang.Claim{Allowed: allowed, GroupOf: c.reclaimer.GroupOf, Whole: whole}
	if rules := c.GroupPostFilter(); rules != nil {
		claim.Protected = rules.Protected
	}
	units, err := claim.Units(snap)
	return units, framework.AsStatus(err)
}

// reclaim finds the fewest and least important of the pods that may make room for one pod.
func (c *Compiled) reclaim(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, in Circumstances, d *Decision) {
	d.Effort.Preempted = true
	if policy := p.Pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		d.PostFilter = append(d.PostFilter, "preemption: not eligible due to preemptionPolicy=Never.")
		return
	}
	units, st := c.Reclaimable(ctx, d.State, p, snap, in.Whole)
	if st != nil && st.Code == framework.Error {
		d.Whole = st
		return
	}
	if st != nil {
		d.PostFilter = append(d.PostFilter, st.Reasons...)
		return
	}
	if len(units) == 0 {
		d.PostFilter = append(d.PostFilter, "reclaiming: no pod may make room.")
		c.unpromise(p, d)
		return
	}
	in.Gang, in.Trial = true, true
	plan, victims := gang.Reclaim(ctx, gang.Problem{Members: []*framework.PodInfo{p}, Need: 1, Snapshot: snap}, &alone{c, p, in, d}, units)
	switch {
	case ctx.Err() != nil:
		d.Whole = framework.AsStatus(context.Cause(ctx))
	case plan.Err != nil:
		d.Whole = plan.Err
	case !plan.Placed:
		d.PostFilter = append(
			d.PostFilter,
			fmt.Sprintf("reclaiming: it would not fit without the %d pods and gangs that may make room.", len(units)),
		)
		c.unpromise(p, d)
	default:
		d.Nomination = &framework.Nomination{Node: plan.Nodes[0]}
		for _, u := range victims {
			for _, v := range u {
				d.Nomination.Victims = append(d.Nomination.Victims, v.Pod)
			}
		}
	}
}

// unpromise takes back what the pod was promised: that room will not come.
func (c *Compiled) unpromise(p *framework.PodInfo, d *Decision) {
	if p.Pod.Status.NominatedNodeName != "" {
		d.Nomination = &framework.Nomination{}
	}
}

// alone is the gang.Cycle of a single pod.
type alone struct {
	c   *Compiled
	pod *framework.PodInfo
	in  Circumstances
	of  *Decision // is told who refuses the pod in a trial
}

// Template implements gang.Cycle.
func (*alone) Template(int) string { return "" }

// Decide implements gang.Cycle.
func (a *alone) Decide(ctx context.Context, _ int, snap *framework.Snapshot, where gang.Where) gang.Answer {
	in := a.in
	in.Only, in.Promised = where.Only, where.First
	d := a.c.Decide(ctx, a.pod, snap, in, Blind{})
	a.of.hinder(d.RefusedBy()...)
	return gang.Answer{Node: d.Node, Err: d.Fatal()}
}

// Reserve implements gang.Cycle: nothing is taken yet.
func (*alone) Reserve(context.Context, int, string) *framework.Status { return nil }

// Unreserve implements gang.Cycle.
func (*alone) Unreserve(context.Context, int, string) {}
