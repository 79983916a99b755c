// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/gang"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// Template implements gang.Cycle.
func (t *team) Template(i int) string { return t.like[i] }

// Decide implements gang.Cycle.
func (t *team) Decide(ctx context.Context, i int, snap *framework.Snapshot, where gang.Where) gang.Answer {
	if ctx.Err() != nil {
		return gang.Answer{Err: framework.AsStatus(context.Cause(ctx))}
	}
	s, promised := t.s, where.First
	if promised == "" {
		promised = s.nominated.Of(t.infos[i].Pod.UID)
	}
	t.seed++
	d := t.prof.Decide(ctx, t.infos[i], snap, decision.Circumstances{
		Promised: promised, Ahead: t.ahead, Gang: true, Of: t.of, Trial: t.hinders != nil, Only: where.Only,
		Start: t.start, Workers: int(s.workers.Load()), Seed: t.seed, Now: s.now,
	}, t.seen[i])
	s.metrics.Decided(t.prof.Name, &d.Effort)
	if d.Total > 0 {
		t.start = (t.start + d.Evaluated) % d.Total
	}
	t.choices[i] = d
	if t.hinders != nil {
		for _, name := range d.RefusedBy() {
			t.hinders[name] = true
		}
	}
	return gang.Answer{Node: d.Node, Err: d.Fatal()}
}

// Reserve implements gang.Cycle.
func (t *team) Reserve(ctx context.Context, i int, _ string) *framework.Status {
	st := t.prof.Reserve(ctx, t.choices[i], t.infos[i])
	if !st.IsSuccess() {
		t.choices[i].Node, t.choices[i].Whole = "", st
	}
	return st
}

// Unreserve implements gang.Cycle.
func (t *team) Unreserve(ctx context.Context, i int, node string) {
	t.prof.Unreserve(ctx, t.choices[i], t.infos[i], node)
}

// template that the queue knows the gang's pods by.
func (t *team) template() string { return "gang\x00" + t.group.String() }

// wait puts the pods back that may not be tried yet, and says why on them and on their group.
func (t *team) wait(ctx context.Context, why string) {
	for _, it := range t.items {
		t.s.queue.Gated(it.Info.Pod.UID, queue.Refusal{
			Interest: framework.GroupChanged, Template: t.template(), Why: &standing{gang: t.group.Key},
		})
		t.s.reportGated(ctx, t.prof, it.Info.Pod, t.group.Each(why))
	}
	t.setCondition(ctx, metav1.ConditionFalse, schedulingv1beta1.PodGroupReasonUnschedulable, why, false)
}

// take the room for those that were placed, and have them bound together.
func (t *team) take(ctx context.Context, need int, plan *gang.Plan, decided func(*corev1.Pod, *Decision)) []*taken {
	s, placed := t.s, 0
	for _, node := range plan.Nodes {
		if node != "" {
			placed++
		}
	}
	barrier := gang.NewBarrier(placed, need, func() {
		ctx, cancel := run.ToFinish(ctx, longestWrite)
		defer cancel()
		t.setCondition(ctx, metav1.ConditionTrue, "Scheduled", "", false)
	})
	var out []*taken
	for i, it := range t.items {
		d, pod := t.choices[i], it.Info.Pod
		if plan.Nodes[i] == "" {
			if d == nil || d.Node != "" {
				d = t.choices[plan.Failed] // it was refused with that one
			}
			decided(it.Info.Pod, d)
			s.refuse(ctx, t.prof, it, d, t.template())
			t.seen[i].Finish(d)
			continue
		}
		decided(it.Info.Pod, d)
		one := &taken{ctx: t.traced[i], profile: t.prof, item: it, decision: d, seen: t.seen[i], gang: barrier}
		out = append(out, one)
		if err := s.cache.Assume(it.Info, d.Node); err != nil {
			s.cfg.Logger.WarnContext(ctx, "a pod of a gang is already placed", "kind", "Pod", "name", key(pod), "error", err)
		}
		s.unpromise(pod.UID)
		s.queue.Placed(pod.UID, t.template())
	}
	return out
}

// refuse puts all pods back, and says why once for all of them. Where others can make room, they
// are removed first.
// What is still to be found out is within bounded.
func (t *team) refuse(ctx, bounded context.Context, p *gang.Problem, plan *gang.Plan, decided func(*corev1.Pod, *Decision)) {
	s, failed := t.s, t.choices[max(plan.Failed, 0)]
	if failed == nil {
		failed = &Decision{Total: len(t.snap.Nodes), Whole: framework.NewStatus(framework.Unschedulable, "no node has the label "+p.Topology)}
	}
	err := plan.Err
	message := plan.Message(p, t.group.Need()) + failed.Message()
	var promised map[int]string
	begin := func() {}
	if err == nil {
		var why string
		if promised, why, begin, err = t.makeRoom(ctx, bounded, p); why != "" {
			message += " " + why
		}
	}
	reason := schedulingv1beta1.PodGroupReasonUnschedulable
	if err != nil {
		reason, message = schedulingv1beta1.PodGroupReasonSchedulerError, err.Joined()
		s.cfg.Logger.ErrorContext(ctx, "a gang could not be scheduled because of an error", "kind", "PodGroup",
			"namespace", t.group.Namespace, "name", t.group.Name, "error", message)
	}
	by, mixed := failed.RefusedBy(), t.mixed()
	held := by
	if len(promised) == 0 { // what kept them from being given room may change, too
		held = slices.AppendSeq(slices.Clone(by), maps.Keys(t.hinders))
		slices.Sort(held)
		held = slices.Compact(held)
	}
	interest := t.prof.Interest(held) | framework.GroupChanged
	if t.prof.Reclaims() {
		interest |= framework.PodRemoved
	}
	for i, it := range t.items {
		// The decision is the gang's: that its pod fits alone is no comfort to a pod.
		d := failed.Kept("")
		d.Gang = message
		if err != nil {
			d.Whole = err
		}
		decided(it.Info.Pod, d)
		pod := it.Info.Pod
		if err != nil {
			s.queue.Errored(pod.UID)
		} else {
			s.queue.Failed(pod.UID, queue.Refusal{
				Interest: interest, Template: t.template(),
				Why: &standing{
					profile: t.prof, pod: t.infos[max(plan.Failed, 0)], decision: d, by: by, held: held, asks: context.WithoutCancel(ctx),
					gang: t.group.Key, any: plan.Domains != 0 || mixed || t.prof.Reclaims(),
				},
			})
		}
		s.report(ctx, t.prof, pod, reason, message, promised[i], true)
		t.seen[i].Finish(d)
	}
	t.setCondition(ctx, metav1.ConditionFalse, reason, message, true)
	begin()
}

// mixed says whether the pods are not all alike.
func (t *team) mixed() bool {
	return t.like[0] == "" || slices.ContainsFunc(t.like, func(other string) bool { return other != t.like[0] })
}

// makeRoom finds pods of lower priority without which all that the gang needs fit, has them removed
// once begin is called, and keeps their room for it. It returns the nodes that members are promised, or
// why there are none.
func (t *team) makeRoom(ctx, bounded context.Context, p *gang.Problem,
) (promised map[int]string, why string, begin func(), failed *framework.Status) {
	s, first := t.s, t.infos[0].Pod
	rules, begin := t.prof.GroupPostFilter(), func() {}
	policy := t.group.Object.Spec.PreemptionPolicy
	switch {
	case rules == nil && !t.prof.Reclaims():
		return nil, "", begin, nil
	case policy != nil && *policy == schedulingv1beta1.PreemptNever,
		policy == nil && first.Spec.PreemptionPolicy != nil && *first.Spec.PreemptionPolicy == corev1.PreemptNever:
		return nil, "preemption: not eligible due to preemptionPolicy=Never.", begin, nil
	}
	if t.prof.Reclaims() {
		return t.reclaim(ctx, bounded, p)
	}
	if promised := gang.Awaited(t.snap, t.infos, s.nominated.Of); promised != nil {
		return promised, "preemption: waiting for the pods that were removed.", begin, nil
	}
	units, err := gang.Units(t.snap, s.gangs, gang.GroupPriority(t.group.Object), rules.Protected)
	if err != nil || len(units) == 0 {
		return nil, "preemption: no pod has a lower priority.", begin, framework.AsStatus(err)
	}
	return t.clearFor(ctx, bounded, p, units, gang.Preempt, "preemption: %d would fit without all pods of lower priority.")
}

// reclaim is makeRoom where a plugin says which groups make room.
func (t *team) reclaim(ctx, bounded context.Context, p *gang.Problem) (map[int]string, string, func(), *framework.Status) {
	state := framework.NewStateAt(t.s.now)
	state.Accompany(framework.Company{Snapshot: t.snap, Gang: t.of, Ahead: t.ahead})
	whole := *t.infos[0]
	whole.Requests = t.of.Requests
	units, st := t.prof.Reclaimable(bounded, state, &whole, t.snap, t.s.gangs.Whole)
	switch {
	case st != nil && st.Code == framework.Error:
		return nil, "", func() {}, st
	case st != nil:
		return nil, st.Joined(), func() {}, nil
	case len(units) == 0:
		return nil, "reclaiming: no pod may make room.", func() {}, nil
	}
	return t.clearFor(ctx, bounded, p, units, gang.Reclaim, "reclaiming: %d would fit without all pods that may make room.")
}

// clearFor has those of some units removed that have to go for the gang.
func (t *team) clearFor(ctx, bounded context.Context, p *gang.Problem, units []gang.Unit,
	preempt func(context.Context, gang.Problem, gang.Cycle, []gang.Unit) (gang.Plan, []gang.Unit), tooFew string,
) (promised map[int]string, why string, begin func(), failed *framework.Status) {
	s, begin := t.s, func() {}
	refused := append([]*Decision(nil), t.choices...)
	t.hinders = map[string]bool{}
	plan, victims := preempt(bounded, *p, t, units)
	t.choices = refused
	if plan.Err == nil && bounded.Err() != nil { // who may stay was not found out
		plan.Err = framework.AsStatus(context.Cause(bounded))
	}
	switch {
	case plan.Err != nil:
		return nil, "", begin, plan.Err
	case !plan.Placed:
		return nil, fmt.Sprintf(tooFew, plan.Fit), begin, nil
	}
	c := &clearing{profile: t.prof, forPod: t.infos[0].Pod, failed: t.notCleared}
	for _, it := range t.items {
		c.waiting = append(c.waiting, it.Info.Pod.UID)
	}
	for _, u := range victims {
		for _, v := range u {
			c.victims = append(c.victims, departing{v.Pod.Pod, v.Node})
		}
	}
	begin, err := s.clear(ctx, c)
	if err != nil {
		return nil, "", begin, framework.AsStatus(fmt.Errorf("make room for pod group %s: %w", t.group.Key, err))
	}
	s.metrics.Victims(len(c.victims))
	return t.promise(ctx, plan.Nodes), fmt.Sprintf("preemption: %d pods were removed for it.", len(c.victims)), begin, nil
}

// promise the members the nodes on which others make room for them.
func (t *team) promise(ctx context.Context, nodes []string) map[int]string {
	promised := map[int]string{}
	for i, node := range nodes {
		if node != "" {
			promised[i] = node
			t.s.nominated.Set(t.infos[i], node)
			t.s.supersede(ctx, t.prof, t.infos[0].Pod, node)
		}
	}
	return promised
}

// notCleared takes back what the members were promised: somebody could not be removed.
func (t *team) notCleared(ctx context.Context, err error) {
	message := fmt.Sprintf("make room for pod group %s: %s", t.group.Key, err)
	t.s.cfg.Logger.ErrorContext(ctx, "no room could be made for a gang; it is tried again", "kind", "PodGroup",
		"namespace", t.group.Namespace, "name", t.group.Name, "error", err)
	for _, p := range t.infos {
		t.s.unpromise(p.Pod.UID)
		t.s.withdraw(ctx, p.Pod)
		t.s.report(ctx, t.prof, p.Pod, schedulingv1beta1.PodGroupReasonSchedulerError, message, "", true)
	}
	t.setCondition(ctx, metav1.ConditionFalse, schedulingv1beta1.PodGroupReasonSchedulerError, message, true)
}

// together waits until as many pods of the gang as it needs may be bound.
func (s *Scheduler) together(ctx context.Context, t *taken, st *framework.Status) *framework.Status {
	if !t.voted {
		t.gang.Vote(st.IsSuccess())
	}
	if !st.IsSuccess() {
		return st
	}
	uid := t.item.Info.Pod.UID
	refused := s.waiting.Add(uid)
	defer s.waiting.Remove(uid)
	select {
	case <-t.gang.Done():
	case why := <-refused:
		t.gang.Withdraw()
		return framework.NewStatus(framework.Unschedulable, why)
	case <-ctx.Done():
		return framework.AsStatus(ctx.Err())
	}
	if !t.gang.Open() {
		return framework.NewStatus(framework.Unschedulable, "too few of the other pods of its gang may be bound")
	}
	return st
}

// setCondition writes one to the group.
func (t *team) setCondition(ctx context.Context, status metav1.ConditionStatus, reason, message string, event bool) {
	g := t.group.Object
	if g == nil {
		return
	}
	kind := schedulingv1beta1.PodGroupInitiallyScheduled
	if old := meta.FindStatusCondition(g.Status.Conditions, kind); old != nil && old.Message == message {
		event = false
	}
	t.s.reports.Submit(ctx, g.UID, func(ctx context.Context, _ bool) {
		if event {
			t.s.event(t.prof, g, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", message)
		}
		err := t.s.effects.PatchGroup(ctx, g, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
		})
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			t.s.cfg.Logger.WarnContext(ctx, "the state of a pod group could not be written to it", "kind", "PodGroup",
				"namespace", g.Namespace, "name", g.Name, "error", err)
		}
	})
}

// podGroup is told of a group.
func (s *Scheduler) podGroup(old, now k8sruntime.Object) {
	if now == nil {
		s.gangs.RemoveGroup(old.(*schedulingv1beta1.PodGroup))
		return
	}
	g := now.(*schedulingv1beta1.PodGroup)
	if !s.gangs.SetGroup(g) {
		return
	}
	key := gang.Key{Namespace: g.Namespace, Name: g.Name}
	s.queue.Happened(framework.GroupChanged, func(r *queue.Refusal) bool {
		why, ok := r.Why.(*standing)
		return ok && why.gang == key
	})
}
