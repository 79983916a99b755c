// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/permission"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// bind carries a decision out and says whether the pod has its node. Waiting for
// permission ends when the scheduler stops; a binding that has begun is finished, unless the scheduler no longer leads.
func (s *Scheduler) bind(ctx context.Context, t *taken) bool {
	_, end := t.seen.Begin(ctx, "bind")
	defer end(t.decision)
	return s.take(ctx, t, s.permit(ctx, t))
}

// take the node, if the pod is permitted to; the pod goes back where anything fails.
func (s *Scheduler) take(ctx context.Context, t *taken, permitted *framework.Status) bool {
	prof, it, d, st := t.profile, t.item, t.decision, permitted
	if st.IsSuccess() && !t.voted {
		if framework.Prepares(prof.PreBinds, d.State, it.Info, d.Node) {
			s.expect(ctx, t)
		}
		st = s.prepare(ctx, prof, it, d)
	}
	if t.gang != nil {
		st = s.together(ctx, t, st)
	}
	if st.IsSuccess() {
		if t.gang != nil {
			ctx = context.WithoutCancel(ctx) // others of the gang may be bound already
		}
		st = s.bindNow(ctx, prof, it, d)
	}
	if !st.IsSuccess() {
		last, cancel := run.ToFinish(ctx, longestWrite)
		prof.Unreserve(last, d, it.Info, d.Node)
		cancel()
		s.undo(ctx, prof, it, d, st)
		if t.expected {
			s.withdraw(ctx, it.Info.Pod)
		}
		return false
	}
	s.queue.Done(it.Info.Pod.UID)
	s.event(prof, it.Info.Pod, corev1.EventTypeNormal, "Scheduled", "Binding",
		fmt.Sprintf("Successfully assigned %s/%s to %s", it.Info.Pod.Namespace, it.Info.Pod.Name, d.Node))
	return true
}

// expect has it written to a pod which node it is about to be bound to, where that takes a while (KEP-5278): those who add
// and remove nodes see that it needs no other one. A virtual scheduler binds at once.
func (s *Scheduler) expect(ctx context.Context, t *taken) {
	p, node := t.item.Info.Pod, t.decision.Node
	if s.reports == nil || t.expected {
		return
	}
	t.expected = true
	s.nominated.Expect(p.UID, node)
	if p.Status.NominatedNodeName == node {
		return
	}
	s.reports.Submit(ctx, p.UID, func(ctx context.Context, _ bool) {
		err := s.effects.PatchStatus(ctx, p, map[string]any{"nominatedNodeName": node})
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			s.cfg.Logger.WarnContext(ctx, "the node that a pod is about to get could not be written to it", "kind", "Pod", "namespace", p.Namespace,
				"name", p.Name, "error", err)
		}
	})
}

func (s *Scheduler) bindNow(ctx context.Context, prof *decision.Compiled, it *queue.Item, d *Decision) *framework.Status {
	select {
	case s.binding <- struct{}{}:
		defer func() { <-s.binding }()
	case <-ctx.Done():
		return framework.AsStatus(ctx.Err())
	}
	bindCtx, cancel := run.ToFinish(ctx, longestWrite)
	defer cancel()
	s.reports.Cancel(bindCtx, it.Info.Pod.UID) // nothing that was said against the pod comes after its binding
	if st := s.write(bindCtx, prof, d, it.Info); !st.IsSuccess() {
		return st
	}
	end := prof.Metrics.Point(prof.Name, "PostBind")
	for _, post := range prof.PostBinds {
		post.PostBind(bindCtx, d.State, it.Info, d.Node)
	}
	end(nil)
	return nil
}

const (
	// longestWait bounds how long Permit plugins may hold a pod back.
	longestWait = 15 * time.Minute
	// longestWrite bounds a binding, and a PreBind plugin that is not a Patient one.
	longestWrite = 30 * time.Second
)

// permit asks the Permit plugins. One that says Wait is asked again when its time
// is over. A waiting pod that is deleted, or whose room somebody of higher priority
// needs, waits no longer.
func (s *Scheduler) permit(ctx context.Context, t *taken) (st *framework.Status) {
	prof, it, d := t.profile, t.item, t.decision
	end := prof.Metrics.Point(prof.Name, "Permit")
	defer func() { end(st) }()
	if len(prof.Permits) == 0 {
		return nil
	}
	refused := s.waiting.Add(it.Info.Pod.UID)
	defer s.waiting.Remove(it.Info.Pod.UID)
	began := time.Now()
	way := permission.Way{Permits: prof.Permits, Waiting: func() { s.expect(ctx, t) }}
	st, waited := way.Wait(ctx, d.State, it.Info, d.Node, refused, longestWait)
	if waited {
		s.metrics.PermitWait(st, time.Since(began))
	}
	return st
}

// prepare asks the PreBind plugins. They take no place among the bindings in flight,
// for some wait long for others.
func (s *Scheduler) prepare(ctx context.Context, prof *decision.Compiled, it *queue.Item, d *Decision) (st *framework.Status) {
	end := prof.Metrics.Point(prof.Name, "PreBind")
	defer func() { end(st) }()
	for _, pre := range prof.PreBinds {
		if st := s.prepareWith(ctx, pre, it, d); !st.IsSuccess() {
			return framework.By(st, pre)
		}
	}
	return nil
}

func (s *Scheduler) prepareWith(ctx context.Context, pre framework.PreBind, it *queue.Item, d *Decision) *framework.Status {
	patient, waits := pre.(framework.Patient)
	if !waits {
		ctx, cancel := run.ToFinish(ctx, longestWrite)
		defer cancel()
		return pre.PreBind(ctx, d.State, it.Info, d.Node)
	}
	uid := it.Info.Pod.UID
	refused := s.waiting.Add(uid)
	defer s.waiting.Remove(uid)
	ctx, cancel := context.WithTimeout(ctx, patient.Patience())
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	done := make(chan *framework.Status, 1)
	s.bindings.Go(func() { done <- pre.PreBind(ctx, d.State, it.Info, d.Node) })
	select {
	case st := <-done:
		return st
	case why := <-refused:
		giveUp(errors.New(why))
		<-done
		return framework.NewStatus(framework.Unschedulable, why)
	}
}

// write binds as the first Bind plugin that doesn't Skip says.
func (s *Scheduler) write(ctx context.Context, prof *decision.Compiled, d *Decision, p *framework.PodInfo) (st *framework.Status) {
	end := prof.Metrics.Point(prof.Name, "Bind")
	defer func() { end(st) }()
	var how framework.Binding
	for _, b := range prof.Binds {
		answer, st := b.Bind(ctx, d.State, p, d.Node)
		if st.IsSuccess() {
			how = answer
			break
		}
		if st.Code != framework.Skip {
			return framework.By(st, b)
		}
	}
	if how.Done {
		return nil
	}
	err := s.effects.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Pod.Namespace, Name: p.Pod.Name, UID: p.Pod.UID, Annotations: how.Annotations},
		Target:     corev1.ObjectReference{Kind: "Node", Name: d.Node},
	})
	return framework.AsStatus(err)
}

// undo gives the node back after a reservation or binding that failed.
func (s *Scheduler) undo(ctx context.Context, prof *decision.Compiled, it *queue.Item, d *Decision, st *framework.Status) {
	s.cache.Forget(it.Info.Pod.UID)
	// The room that the pod would have taken may be what others wait for.
	s.happened(framework.PodRemoved|framework.Unreserved, d.Node)
	if ctx.Err() != nil {
		return
	}
	d.Whole, d.Node = st, ""
	if apierrors.IsNotFound(st.Err) {
		s.queue.Done(it.Info.Pod.UID)
		return
	}
	s.refuse(ctx, prof, it, d, "")
}
