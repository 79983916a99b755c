// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

func (c *profile) reserve(ctx context.Context, d *Decision, p *framework.PodInfo) *framework.Status {
	end := c.metrics.Point(c.name, "Reserve")
	for i, r := range c.reserves {
		if st := r.Reserve(ctx, d.State, p, d.Node); !st.IsSuccess() {
			end(st)
			for ; i >= 0; i-- {
				c.reserves[i].Unreserve(ctx, d.State, p, d.Node)
			}
			return by(st, r)
		}
	}
	end(nil)
	return nil
}

// bind carries a decision out and says whether the pod has its node. Waiting for
// permission ends when the scheduler stops; a binding that has begun is finished.
func (s *Scheduler) bind(ctx context.Context, prof *profile, it *queue.Item, d *Decision, o *observation) bool {
	_, end := o.begin(ctx, "bind")
	defer end(d)
	return s.take(ctx, prof, it, d, s.permit(ctx, prof, it, d))
}

// take the node, if the pod is permitted to; the pod goes back where anything fails.
func (s *Scheduler) take(ctx context.Context, prof *profile, it *queue.Item, d *Decision, permitted *framework.Status) bool {
	st := permitted
	if st.IsSuccess() {
		st = s.prepare(ctx, prof, it, d)
	}
	if st.IsSuccess() {
		st = s.bindNow(ctx, prof, it, d)
	}
	if !st.IsSuccess() {
		for i := len(prof.reserves) - 1; i >= 0; i-- {
			prof.reserves[i].Unreserve(context.WithoutCancel(ctx), d.State, it.Info, d.Node)
		}
		s.undo(ctx, prof, it, d, st)
		return false
	}
	s.queue.Done(it.Info.Pod.UID)
	s.event(prof, it.Info.Pod, corev1.EventTypeNormal, "Scheduled", "Binding",
		fmt.Sprintf("Successfully assigned %s/%s to %s", it.Info.Pod.Namespace, it.Info.Pod.Name, d.Node))
	return true
}

func (s *Scheduler) bindNow(ctx context.Context, prof *profile, it *queue.Item, d *Decision) *framework.Status {
	select {
	case s.binding <- struct{}{}:
		defer func() { <-s.binding }()
	case <-ctx.Done():
		return framework.AsStatus(ctx.Err())
	}
	bindCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestWrite)
	defer cancel()
	if st := s.write(bindCtx, prof, d, it.Info); !st.IsSuccess() {
		return st
	}
	end := prof.metrics.Point(prof.name, "PostBind")
	for _, post := range prof.postBinds {
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
func (s *Scheduler) permit(ctx context.Context, prof *profile, it *queue.Item, d *Decision) (st *framework.Status) {
	end := prof.metrics.Point(prof.name, "Permit")
	defer func() { end(st) }()
	if len(prof.permits) == 0 {
		return nil
	}
	return s.wait(ctx, prof, it, d)
}

// wait is for permission.
func (s *Scheduler) wait(ctx context.Context, prof *profile, it *queue.Item, d *Decision) (answer *framework.Status) {
	began, waited := time.Now(), false
	defer func() {
		if waited {
			s.metrics.PermitWait(answer, time.Since(began))
		}
	}()
	uid := it.Info.Pod.UID
	refused := s.waiting.add(uid)
	defer s.waiting.remove(uid)
	end := time.NewTimer(longestWait)
	defer end.Stop()
	way := permission{permits: prof.permits}
	for {
		st, wait := way.ask(ctx, d, it.Info)
		if st.IsSuccess() || st.Code != framework.Wait {
			return st
		}
		waited = true
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case why := <-refused:
			again.Stop()
			return way.denied(why)
		case <-end.C:
			again.Stop()
			return way.denied(tooLong)
		case <-ctx.Done():
			again.Stop()
			return framework.AsStatus(ctx.Err())
		}
	}
}

const tooLong = "timed out while waiting for permission to bind"

// permission is a pod's way through the Permit plugins.
type permission struct {
	permits []framework.Permit
	next    int // to be asked
}

// ask one plugin after the other until one refuses, or says Wait: it is asked again after
// the time that comes with it.
func (w *permission) ask(ctx context.Context, d *Decision, p *framework.PodInfo) (*framework.Status, time.Duration) {
	for ; w.next < len(w.permits); w.next++ {
		st, wait := w.permits[w.next].Permit(ctx, d.State, p, d.Node)
		switch {
		case st.IsSuccess():
		case st.Code == framework.Wait:
			return st, max(wait, time.Millisecond)
		default:
			return by(st, w.permits[w.next]), 0
		}
	}
	return nil, 0
}

// denied ends the wait for the plugin that is asked now.
func (w *permission) denied(why string) *framework.Status {
	return by(framework.NewStatus(framework.Unschedulable, why), w.permits[w.next])
}

// waiters are the pods that Permit plugins hold back.
type waiters struct {
	mu   sync.Mutex
	pods map[types.UID]chan string
}

// add announces a waiting pod; what comes from the channel is why it must not wait any longer.
func (w *waiters) add(uid types.UID) <-chan string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[types.UID]chan string{}
	}
	c := make(chan string, 1)
	w.pods[uid] = c
	return c
}

func (w *waiters) remove(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

// refuse ends the wait of a pod; it says whether the pod waited.
func (w *waiters) refuse(uid types.UID, why string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.pods[uid]
	if !ok {
		return false
	}
	select {
	case c <- why:
	default: // told already
	}
	return true
}

// prepare asks the PreBind plugins. They take no place among the bindings in flight,
// for some wait long for others.
func (s *Scheduler) prepare(ctx context.Context, prof *profile, it *queue.Item, d *Decision) (st *framework.Status) {
	end := prof.metrics.Point(prof.name, "PreBind")
	defer func() { end(st) }()
	for _, pre := range prof.preBinds {
		if st := s.prepareWith(ctx, pre, it, d); !st.IsSuccess() {
			return by(st, pre)
		}
	}
	return nil
}

func (s *Scheduler) prepareWith(ctx context.Context, pre framework.PreBind, it *queue.Item, d *Decision) *framework.Status {
	patient, waits := pre.(framework.Patient)
	if !waits {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestWrite)
		defer cancel()
		return pre.PreBind(ctx, d.State, it.Info, d.Node)
	}
	uid := it.Info.Pod.UID
	refused := s.waiting.add(uid)
	defer s.waiting.remove(uid)
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
func (s *Scheduler) write(ctx context.Context, prof *profile, d *Decision, p *framework.PodInfo) (st *framework.Status) {
	end := prof.metrics.Point(prof.name, "Bind")
	defer func() { end(st) }()
	var how framework.Binding
	for _, b := range prof.binds {
		answer, st := b.Bind(ctx, d.State, p, d.Node)
		if st.IsSuccess() {
			how = answer
			break
		}
		if st.Code != framework.Skip {
			return by(st, b)
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
func (s *Scheduler) undo(ctx context.Context, prof *profile, it *queue.Item, d *Decision, st *framework.Status) {
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
