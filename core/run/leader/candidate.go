// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/run"
)

// mark is the annotation by which those that wait for a lease say so, with the time.
const mark = "leader.wasmplane.dev/awaited"

// candidate waits for a lease.
type candidate struct {
	Election
	pace *pace
	// witness looks at the holder; nil: nobody does.
	witness *witness
	// seen is the lease as it was seen last, at by this process's clock since when it has been so.
	seen coordinationv1.LeaseSpec
	at   time.Time
	// mark is the one that was seen last, and since when.
	mark   string
	marked time.Time
}

// acquire waits until this process holds the lease; nil: ctx has ended.
func (e Election) acquire(ctx context.Context, p *pace) *term {
	c := &candidate{Election: e, pace: p}
	var sooner <-chan struct{}
	if e.Probe != nil {
		c.witness = newWitness(e)
		sooner = c.witness.sooner
		looking, cancel := context.WithCancel(ctx)
		ended := run.Go("leader election: looks", func() error { return c.witness.run(looking) })
		defer func() { cancel(); <-ended }()
	}
	for {
		one, cancel := context.WithTimeout(ctx, trusted(p.long))
		t, wait := c.try(one)
		cancel()
		if t != nil || !run.SleepOr(ctx, wait, sooner, 0) {
			if t != nil && ctx.Err() != nil {
				t.release(context.WithoutCancel(ctx))
				t = nil
			}
			return t
		}
	}
}

// try takes the lease if it is free, or says after how long to try again.
func (c *candidate) try(ctx context.Context) (*term, time.Duration) {
	asked := time.Now()
	lease, err := c.leases().Get(ctx, c.Name, metav1.GetOptions{})
	c.pace.answered(time.Now(), time.Since(asked))
	if apierrors.IsNotFound(err) {
		return c.take(ctx, nil)
	}
	if err != nil {
		return nil, interval(c.pace.quick)
	}
	// It was stored before this moment: its holder counts from before that.
	now := time.Now()
	if c.at.IsZero() || !equality.Semantic.DeepEqual(lease.Spec, c.seen) {
		c.see(lease.Spec, now)
	}
	lasts := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	left := c.at.Add(lasts).Sub(now)
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder == "" || holder == c.Identity || left <= 0 {
		return c.take(ctx, lease)
	}
	if c.witness != nil {
		if c.witness.follow(lease); c.witness.gone(lease, c.pace.quick) {
			return c.take(ctx, lease)
		}
	}
	c.wait(ctx, lease, now)
	return nil, min(left, look(lasts))
}

func (c *candidate) see(spec coordinationv1.LeaseSpec, now time.Time) {
	holder := ptr.Deref(spec.HolderIdentity, "")
	if c.Follows != nil && holder != "" && holder != c.Identity && (c.at.IsZero() || holder != ptr.Deref(c.seen.HolderIdentity, "")) {
		c.Follows()
	}
	c.seen, c.at = spec, now
}

// wait marks the lease, so that its holder knows that somebody waits. One of those that wait suffices.
func (c *candidate) wait(ctx context.Context, lease *coordinationv1.Lease, now time.Time) {
	is := lease.Annotations[mark]
	if is != c.mark {
		c.mark, c.marked = is, now
	}
	if c.pace.quick == c.pace.long || is != "" && now.Sub(c.marked) < marksEvery {
		return
	}
	next := lease.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, mark, now.UTC().Format(time.RFC3339Nano))
	if _, err := c.leases().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		c.Logger.DebugContext(ctx, "the lease could not be marked", "lease", c.Namespace+"/"+c.Name, "error", err)
	}
}

// take writes this process into the lease, or makes it.
func (c *candidate) take(ctx context.Context, was *coordinationv1.Lease) (*term, time.Duration) {
	if was != nil && was.Annotations[mark] != "" {
		c.pace.taken(time.Now())
	}
	r := renewal{time.Now(), c.pace.lease(time.Now())}
	now := r.time()
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}}
	write := func() (*coordinationv1.Lease, error) { return c.leases().Create(ctx, next, metav1.CreateOptions{}) }
	if was != nil {
		next = was.DeepCopy()
		delete(next.Annotations, mark) // of those that waited for another, and of this process
		write = func() (*coordinationv1.Lease, error) { return c.leases().Update(ctx, next, metav1.UpdateOptions{}) }
	}
	if ptr.Deref(next.Spec.HolderIdentity, "") != c.Identity {
		next.Spec.AcquireTime = &now
		if was != nil {
			next.Spec.LeaseTransitions = ptr.To(ptr.Deref(was.Spec.LeaseTransitions, 0) + 1)
		}
	}
	next.Spec.HolderIdentity, next.Spec.RenewTime, next.Spec.LeaseDurationSeconds = &c.Identity, &now, ptr.To(int32(r.lasts/time.Second))
	if c.Address != "" {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, placed, c.Address+" "+c.Identity)
	}
	stored, err := write()
	c.pace.answered(time.Now(), time.Since(r.began))
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // somebody was faster: his lease counts from when it is seen
		return nil, look(c.pace.quick)
	case err != nil:
		return nil, interval(c.pace.quick)
	case time.Since(r.began) >= trusted(r.lasts):
		return nil, 0 // the answer came so late that another may have followed already
	}
	return newTerm(ctx, c.Election, c.pace, stored, r), 0
}
