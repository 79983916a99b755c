// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/clearance"
	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/scheduler/sweep"
)

// departing is a pod that has to leave its node.
type departing struct {
	pod  *corev1.Pod
	node string
}

// clearing is how room is made: what the pod itself lets go of, and who is removed for it.
type clearing struct {
	profile *decision.Compiled
	forPod  *corev1.Pod // in whose name
	waiting []types.UID // are not tried meanwhile
	free    func(ctx context.Context) error
	victims []departing
	failed  func(ctx context.Context, err error)
}

// nominate keeps the room on the nominated node for the pod and has the victims
// removed. It returns the node, and what begins the removal. The removal's failure is an error only
// where it is not carried out beside the loop.
func (s *Scheduler) nominate(ctx context.Context, prof *decision.Compiled, p *framework.PodInfo, d *Decision,
) (node string, begin func(), err error) {
	c := &clearing{profile: prof, forPod: p.Pod, waiting: []types.UID{p.Pod.UID}}
	if prof.Frees(d) {
		c.free = func(ctx context.Context) error {
			if st := prof.Free(ctx, d, p); !st.IsSuccess() {
				return errors.New(st.Joined())
			}
			return nil
		}
	}
	c.failed = func(ctx context.Context, err error) {
		s.unpromise(p.Pod.UID)
		s.withdraw(ctx, p.Pod)
		s.cfg.Logger.ErrorContext(ctx, "no room could be made for a pod; it is tried again", "kind", "Pod", "namespace", p.Pod.Namespace,
			"name", p.Pod.Name, "error", err)
		s.report(ctx, prof, p.Pod, reasonError, err.Error(), "", true)
	}
	if n := d.Nomination; n != nil {
		s.promise(ctx, c, p, n)
		node = n.Node
	}
	if begin, err = s.clear(ctx, c); err != nil {
		s.unpromise(p.Pod.UID)
		return "", begin, fmt.Errorf("make room on node %s: %w", node, err)
	}
	if node != "" {
		s.supersede(ctx, prof, p.Pod, node)
	}
	return node, begin, nil
}

// ahead are the pods whose room a pod may not take, by node. Where a plugin says which groups make room
// priority is no reason to take what others were promised.
func (s *Scheduler) ahead(prof *decision.Compiled, p *corev1.Pod) map[string][]*framework.PodInfo {
	if prof.Reclaims() {
		return s.nominated.Others(p.UID)
	}
	return s.nominated.Ahead(p)
}

// promise the pod a node, where others have to go; an empty node takes back what it was promised.
func (s *Scheduler) promise(ctx context.Context, c *clearing, p *framework.PodInfo, n *framework.Nomination) {
	s.unpromise(p.Pod.UID)
	s.nominated.Set(p, n.Node)
	if n.Node == "" {
		if p.Pod.Status.NominatedNodeName != "" {
			s.withdraw(ctx, p.Pod)
		}
		return
	}
	s.metrics.Victims(len(n.Victims))
	seen := map[types.UID]bool{} // several victims may be of one group
	for _, v := range n.Victims {
		for _, victim := range append(s.gangs.WithIt(v.Pod), v.Pod) {
			if !seen[victim.UID] {
				seen[victim.UID] = true
				c.victims = append(c.victims, departing{victim, n.Node})
			}
		}
	}
}

// clear makes room, beside the loop where there is one. begin is for the caller, once it has put
// back those who wait for the room: they are held back until the victims are seen to go.
func (s *Scheduler) clear(ctx context.Context, c *clearing) (begin func(), err error) {
	if c.free == nil && len(c.victims) == 0 {
		return func() {}, nil
	}
	if s.removals == nil {
		return func() {}, s.carryOut(ctx, c)
	}
	one := &clearance.Removal{
		Do:     func(ctx context.Context) error { return s.carryOut(ctx, c) },
		Failed: c.failed, Ended: func(failed bool) { s.queue.Release(c.waiting, failed) },
	}
	for _, v := range c.victims {
		if v.pod.DeletionTimestamp == nil {
			one.Victims = append(one.Victims, v.pod.UID)
		}
	}
	s.queue.Hold(c.waiting)
	return func() {
		s.removals.Submit(one)
		for _, uid := range one.Victims {
			if !s.cache.Holds(uid) { // it has gone since the decision
				s.removals.Seen(uid)
			}
		}
	}, nil
}

func (s *Scheduler) carryOut(ctx context.Context, c *clearing) error {
	if c.free != nil {
		if err := c.free(ctx); err != nil {
			return err
		}
	}
	var failed sweep.FirstFailure
	workers := 1
	if s.removals != nil {
		workers = int(s.workers.Load()) * 4 // they wait for the API, not for a processor
	}
	sweep.Each(len(c.victims), workers, failed.None, func(i int) {
		v := c.victims[i]
		if err := s.preempt(ctx, c.profile, c.forPod, v.pod, v.node); err != nil {
			failed.At(i, framework.AsStatus(fmt.Errorf("remove pod %s for %s: %w", key(v.pod), key(c.forPod), err)))
		}
	})
	if failed.Status != nil {
		return failed.Status.Err
	}
	return nil
}

// supersede takes the promise of a node off pods of lower priority: the room that they waited for is
// somebody else's now.
func (s *Scheduler) supersede(ctx context.Context, prof *decision.Compiled, p *corev1.Pod, node string) {
	if prof.Reclaims() {
		return // what was promised holds whatever the priority
	}
	for _, other := range s.nominated.Behind(node, corev1helpers.PodPriority(p)) {
		s.unpromise(other.UID)
		s.withdraw(ctx, other)
	}
}

// withdraw has it written to a pod that it is promised no node any more.
func (s *Scheduler) withdraw(ctx context.Context, p *corev1.Pod) {
	s.reports.Also(ctx, p.UID, func(ctx context.Context, _ bool) {
		if s.nominated.Own(p.UID) {
			return // it is promised another one by now
		}
		err := s.effects.PatchStatus(ctx, p, map[string]any{"nominatedNodeName": nil})
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			s.cfg.Logger.WarnContext(ctx, "the node that a pod was promised could not be taken off it", "kind", "Pod", "namespace", p.Namespace,
				"name", p.Name, "error", err)
		}
	})
}

// preempt removes a pod, and writes to it why.
func (s *Scheduler) preempt(ctx context.Context, prof *decision.Compiled, p, victim *corev1.Pod, node string) error {
	if s.waiting.Refuse(victim.UID, fmt.Sprintf("preempted by pod %s", p.UID)) {
		s.removals.Seen(victim.UID)
		return nil // it was not bound yet: nothing runs that would have to be deleted
	}
	if victim.DeletionTimestamp != nil {
		return nil
	}
	why := "preempting to accommodate a higher priority pod"
	if prof.Reclaims() {
		why = "reclaiming what its group has beyond its share, or for a higher priority pod of the same group"
	}
	now := metav1.Now()
	err := s.effects.PatchStatus(ctx, victim, map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: victim.Generation, LastTransitionTime: now,
		Reason: corev1.PodReasonPreemptionByScheduler, Message: prof.Name + ": " + why,
	}}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write its DisruptionTarget condition: %w", err)
	}
	err = s.effects.Delete(ctx, victim)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	s.event(prof, victim, corev1.EventTypeNormal, "Preempted", "Preempting", fmt.Sprintf("Preempted by pod %v on node %v", p.UID, node))
	return nil
}

// asPromised has a pod say which node it is promised, also while that is still being written to it:
// plugins that make room go by it.
func (s *Scheduler) asPromised(it *queue.Item) {
	node := s.nominated.Of(it.Info.Pod.UID)
	if node == "" || node == it.Info.Pod.Status.NominatedNodeName {
		return
	}
	pod, info := *it.Info.Pod, *it.Info
	pod.Status.NominatedNodeName = node
	info.Pod = &pod
	it.Info = &info
}
