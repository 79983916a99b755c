// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/run"
)

// term is one time in which this process leads.
type term struct {
	Election
	pace *pace
	// over ends with the leadership, on time even if nobody answers.
	over context.Context //nolint:containedctx // it is the term itself
	end  context.CancelFunc

	lease   *coordinationv1.Lease // as it was stored last, as far as is known
	lasts   time.Duration         // of the lease
	renewed time.Time             // when the last renewal was asked for that was done
	// unsure is a renewal of which nobody said whether it was done.
	unsure *renewal

	mu    sync.Mutex
	until time.Time
	timer *time.Timer
}

func newTerm(ctx context.Context, e Election, p *pace, stored *coordinationv1.Lease, r renewal) *term {
	t := &term{Election: e, pace: p, lease: stored, lasts: r.lasts, renewed: r.began, until: r.began.Add(trusted(r.lasts))}
	t.over, t.end = context.WithCancel(context.WithoutCancel(ctx))
	t.timer = time.AfterFunc(time.Until(t.until), t.end)
	return t
}

// moveEnd has the term end at another time.
func (t *term) moveEnd(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = until
	t.timer.Reset(time.Until(until)) // what has ended stays so
}

func (t *term) endsAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until
}

// keep renews the lease until ctx ends or the leadership is lost.
func (t *term) keep(ctx context.Context) {
	defer t.timer.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.over, cancel)() //nolint:contextcheck // the term ends it too
	for run.Sleep(ctx, interval(t.lasts)) {
		again := run.Backoff{First: t.lasts / 50, Longest: interval(t.lasts)}
		for !t.renew(ctx) {
			if !again.Wait(ctx) {
				return
			}
		}
	}
}

// renewal is what is asked for: a lease that lasts so long.
type renewal struct {
	began time.Time
	lasts time.Duration
}

func (r renewal) time() metav1.MicroTime {
	return metav1.NewMicroTime(r.began.Truncate(time.Microsecond))
}

// request bounds one request: a connection may be dead, and the next one not.
func (t *term) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, trusted(t.lasts)/4)
}

// renew asks for the lease to run on, and says whether it does.
func (t *term) renew(ctx context.Context) bool {
	if t.unsure != nil {
		was := *t.unsure
		if known := t.lookUp(ctx); !known || t.renewed.Equal(was.began) {
			return known
		}
	}
	r := renewal{time.Now(), t.pace.lease(time.Now())}
	if until := r.began.Add(trusted(r.lasts)); until.Before(t.endsAt()) {
		t.moveEnd(until) // a shorter lease may be stored though nobody says so
	}
	now := r.time()
	next := t.lease.DeepCopy()
	next.Spec.HolderIdentity, next.Spec.RenewTime, next.Spec.LeaseDurationSeconds = &t.Identity, &now, ptr.To(int32(r.lasts/time.Second))
	one, cancel := t.request(ctx)
	stored, err := t.leases().Update(one, next, metav1.UpdateOptions{})
	cancel()
	if err != nil {
		t.unsure = &r
		return apierrors.IsConflict(err) && t.renew(ctx)
	}
	return t.done(stored, r)
}

// done takes on a renewal that is stored, unless it comes too late.
func (t *term) done(stored *coordinationv1.Lease, r renewal) bool {
	t.lease, t.unsure = stored, nil
	if t.over.Err() != nil {
		return false
	}
	answered := time.Now()
	t.pace.renewed(answered, answered.Sub(t.renewed)-interval(t.lasts))
	t.lasts, t.renewed = r.lasts, r.began
	t.moveEnd(r.began.Add(trusted(r.lasts)))
	return true
}

// lookUp reads the lease, and what became of a renewal. It ends the term if another process holds it.
func (t *term) lookUp(ctx context.Context) bool {
	ctx, cancel := t.request(ctx)
	defer cancel()
	is, err := t.leases().Get(ctx, t.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		t.end() // somebody deleted it, and another may have made it since
		return false
	case err != nil:
		return false
	case ptr.Deref(is.Spec.HolderIdentity, "") != t.Identity:
		t.end()
		return false
	}
	if m := is.Annotations[mark]; m != "" && m != t.lease.Annotations[mark] {
		t.pace.marked(time.Now())
	}
	if r, now := *t.unsure, t.unsure.time(); is.Spec.RenewTime.Equal(&now) {
		return t.done(is, r)
	}
	t.lease, t.unsure = is, nil
	return true
}

// release gives up the lease, if this process still holds it. A failure is no harm:
// the lease then ends by itself.
func (t *term) release(ctx context.Context) {
	t.timer.Stop()
	t.end()
	ctx, cancel := context.WithTimeout(ctx, trusted(t.pace.long))
	defer cancel()
	err := t.giveUp(ctx)
	for apierrors.IsConflict(err) && ctx.Err() == nil { // who waits has marked it meanwhile, as each does that has just come
		err = t.giveUp(ctx)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		t.Logger.WarnContext(ctx, "the lease could not be released; a successor waits until it ends", "lease", t.Namespace+"/"+t.Name, "error",
			err)
	}
}

// giveUp has the lease be nobody's, if it is this process's.
func (t *term) giveUp(ctx context.Context) error {
	is, err := t.leases().Get(ctx, t.Name, metav1.GetOptions{})
	if err != nil || ptr.Deref(is.Spec.HolderIdentity, "") != t.Identity {
		return err
	}
	now := metav1.NowMicro()
	is.Spec.HolderIdentity, is.Spec.LeaseDurationSeconds = ptr.To(""), ptr.To(int32(1))
	is.Spec.RenewTime, is.Spec.AcquireTime = &now, &now
	_, err = t.leases().Update(ctx, is, metav1.UpdateOptions{})
	return err
}
