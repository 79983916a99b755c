// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/gang"
	"github.com/wasmplane/wasmplane/core/scheduler/observation"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// team is a gang in one cycle: those of its pods that have no node, and what was decided about
// each. It is the gang.Cycle.
type team struct {
	s     *Scheduler
	prof  *decision.Compiled
	group *gang.Group
	// placed are the pods that have nodes, by the node.
	placed  map[string][]*corev1.Pod
	items   []*queue.Item
	infos   []*framework.PodInfo
	like    []string          // their templates
	traced  []context.Context //nolint:containedctx // the traces of the tries
	seen    []*observation.Observation
	choices []*Decision // the latest
	// hinders are the plugins that refused members while room was made for them, as a trial; nil before.
	hinders map[string]bool
	ahead   map[string][]*framework.PodInfo
	snap    *framework.Snapshot
	of      *framework.Gang
	start   int
	seed    uint64
}

// gangCycle is cycle for a pod of a gang, and all others of it that wait.
func (s *Scheduler) gangCycle(ctx context.Context, prof *decision.Compiled, first *queue.Item, g *gang.Group,
	decided func(*corev1.Pod, *Decision),
) []*taken {
	t := &team{s: s, prof: prof, group: g, placed: map[string][]*corev1.Pod{}, items: []*queue.Item{first}}
	if why := t.gather(ctx); why != "" {
		t.wait(ctx, why)
		return nil
	}
	if len(t.items) == 0 {
		return nil
	}
	t.snap, t.seed, t.start = s.cache.Snapshot(), s.seed(), s.start
	problem, why := t.problem(ctx)
	if why != "" {
		t.wait(ctx, why)
		return nil
	}
	began := s.now()
	defer func() { s.debts.add(g.Namespace, len(t.items), s.now().Sub(began), s.now()) }()
	bounded, cancel := t.bounded(ctx)
	defer cancel()
	plan := gang.Decide(bounded, problem, t)
	s.start = t.start
	if ctx.Err() != nil {
		return nil
	}
	if !plan.Placed {
		t.refuse(ctx, bounded, &problem, &plan, decided)
		return nil
	}
	return t.take(ctx, problem.Need, &plan, decided)
}

// bounded is a context that ends when the gang has been looked at for as long as one may be: its members
// are tried in all domains, and with all pods of lower priority away.
func (t *team) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.s.gang == nil {
		return ctx, func() {}
	}
	return t.s.gang(ctx, fmt.Errorf("pod group %s takes longer than %s to place: fewer pods, pods that are alike, or no constraint of topology take less", t.group.Key, longestGang))
}

// gather the pods that are tried together. It says why they are not tried yet.
func (t *team) gather(ctx context.Context) string {
	s, g := t.s, t.group
	switch {
	case g.Object == nil:
		return fmt.Sprintf("waiting for pod group %s, which does not exist", g.Key)
	case g.Count < g.Need():
		t.items = append(t.items, s.queue.Take(gang.Waiting(g.Pods))...)
		return fmt.Sprintf("gang needs %d pods, %d exist", g.Need(), g.Count)
	}
	var waiting []types.UID
	for _, p := range g.Pods {
		switch node := s.cache.NodeOf(p.UID); {
		case p.Spec.NodeName != "" || node != "":
			t.placed[max(node, p.Spec.NodeName)] = append(t.placed[max(node, p.Spec.NodeName)], p)
		default:
			waiting = append(waiting, p.UID)
		}
		if p.Spec.SchedulerName != t.items[0].Info.Pod.Spec.SchedulerName || corev1helpers.PodPriority(p) != gang.GroupPriority(g.Object) {
			t.items = append(t.items, s.queue.Take(waiting)...)
			return fmt.Sprintf("all pods of pod group %s need one schedulerName, and its priority (%d); pod %s has %s and %d",
				g.Name, gang.GroupPriority(g.Object), p.Name, p.Spec.SchedulerName, corev1helpers.PodPriority(p))
		}
	}
	all := append(t.items, s.queue.Take(waiting)...)
	order := map[types.UID]int{}
	for i, uid := range waiting {
		order[uid] = i
	}
	slices.SortStableFunc(all, func(a, b *queue.Item) int { return order[a.Info.Pod.UID] - order[b.Info.Pod.UID] })
	t.items = nil
	for _, it := range all {
		if st := t.prof.PreEnqueue(ctx, it.Info); st != nil {
			s.gate(ctx, t.prof, it, st)
			continue
		}
		t.items = append(t.items, it)
	}
	return ""
}

// problem is what has to be decided, or why nothing can be.
func (t *team) problem(ctx context.Context) (gang.Problem, string) {
	s, have := t.s, 0
	p := gang.Problem{Topology: t.group.Topology(), Snapshot: t.snap}
	for _, pods := range t.placed {
		have += len(pods)
	}
	if p.Topology != "" {
		var why string
		if p.Domain, why = gang.Common(t.snap, p.Topology, maps.Keys(t.placed)); why != "" {
			return p, why
		}
	}
	p.Need = max(1, t.group.Need()-have)
	if len(t.items) < p.Need {
		return p, fmt.Sprintf("gang needs %d pods, %d have nodes or may be tried", t.group.Need(), have+len(t.items))
	}
	members := map[types.UID]bool{}
	for _, it := range t.items {
		traced, o := observation.Of(ctx, it, t.prof.Name, s.cfg.Tracer, s.metrics, s.now)
		t.infos, t.traced, t.seen = append(t.infos, it.Info), append(t.traced, traced), append(t.seen, o)
		t.like = append(t.like, t.prof.Template(it.Info))
		members[it.Info.Pod.UID] = true
	}
	t.choices, p.Members = make([]*Decision, len(t.items)), t.infos
	t.of = &framework.Gang{Name: t.group.Name, Need: p.Need}
	for _, m := range t.infos[:p.Need] {
		t.of.Requests = t.of.Requests.Plus(m.Requests, 1)
	}
	t.ahead = s.ahead(t.prof, t.infos[0].Pod)
	for node, pods := range t.ahead {
		t.ahead[node] = slices.DeleteFunc(pods, func(o *framework.PodInfo) bool { return members[o.Pod.UID] })
	}
	maps.DeleteFunc(t.ahead, func(_ string, pods []*framework.PodInfo) bool { return len(pods) == 0 })
	return p, ""
}
