// SPDX-License-Identifier: Apache-2.0

// Package leader runs work that only one of several processes may do at a time, by
// leader election on a Lease.
//
// Two never work at once. The others count a lease's duration from when they saw its renewal; the
// leader counts four fifths of it from before it asked for that renewal, and its work's context then
// ends, whether or not the API answers. What is left is for clocks that run at different speeds,
// and for work to return. A process that the system holds up for longer than a whole lease (SIGSTOP)
// ends its work when it goes on; one whose machine slept, for which no time has passed, with its next renewal.
// Until then what it writes is compared and swapped.
//
// Leases are short while another process waits to take over (it marks the lease) and renewals are in
// time, and long otherwise, see pace: a process alone writes seldom, and a machine out of breath keeps its leadership.
// The lease itself says how long it is, so the others wait as long as its holder counts on.
//
// Work that may overlap for a moment, such as answering for an address, need not wait so long: with Election.Probe those that wait
// connect to the holder four times a second. Whom they have seen to accept, and who then refuses twice, has ended; who does not answer
// for a second while its lease is short is off or cut off. Another then takes the lease at once, with the store's consent. It is
// the system of the holder's machine that accepts, so one that is busy, or that waits for a slow store, keeps its lease; so does
// one whose renewal was late within the last minute, unless it refuses. A look of a process that was held up itself does not count.
// A holder that is cut off from one that waits, and not from the store, finds out with its next renewal, a sixth of a short lease later
// at the most; one that is cut off from the store too works until four fifths of its lease are over.
package leader

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// Election is one lease that several processes compete for.
type Election struct {
	Client kubernetes.Interface
	// Namespace and Name of the Lease; Identity of this process, unique among the
	// competitors.
	Namespace, Name, Identity string
	Logger                    *slog.Logger
	// LeaseDuration is how long the others wait for a leader of which they hear nothing; 15 s, upstream's,
	// where 0. Quick is the same while another process waits and renewals are in time; 0, or more than
	// LeaseDuration: never shorter. Leases last whole seconds.
	LeaseDuration, Quick time.Duration
	// Watch is told whether the lease is renewed in time; nil = nobody is.
	Watch *Watch
	// Follows is called, perhaps more than once, when another process is seen to hold the
	// lease: this one waits for as long as that lives. Nil = nobody is told.
	Follows func()
	// Address is where this process accepts connections for as long as it lives, for others' Probe; "" = nowhere. Probe connects to such
	// an address, and fails with what the system says. With it a holder is followed before its lease ends, see above; nil: never.
	Address string
	Probe   func(ctx context.Context, address string) error
}

// ErrLeadershipLost ends the work of a leader that could not renew its lease:
// another process may already have taken over, so this one has to stop.
var ErrLeadershipLost = errors.New("leadership was lost")

// Lead waits until this process holds the lease and then calls work with a
// context that ends with the leadership. The lease is given up once work has
// returned, so that a successor need not wait for its expiry and never works
// beside its predecessor.
func (e Election) Lead(ctx context.Context, work func(ctx context.Context) error) error {
	return e.lead(ctx, newPace(e), work)
}

func (e Election) lead(ctx context.Context, p *pace, work func(ctx context.Context) error) error {
	t := e.acquire(ctx, p)
	if t == nil {
		return nil
	}
	e.Watch.follow(t)
	defer e.Watch.follow(nil)
	e.Logger.InfoContext(ctx, "this process leads now", "lease", e.Namespace+"/"+e.Name)
	// The lease outlives ctx by as long as work needs to stop.
	renewing, finish := context.WithCancel(context.WithoutCancel(ctx))
	working, stop := context.WithCancel(run.Within(ctx, t.over))
	defer stop()
	defer context.AfterFunc(t.over, stop)() //nolint:contextcheck // the term ends the work too
	renewed := run.Go("leader election", func() error { t.keep(renewing); return nil })
	err := work(working)
	lost := t.over.Err() != nil
	finish()
	<-renewed
	if lost && ctx.Err() == nil {
		return ErrLeadershipLost // whatever work says of its context's end
	}
	t.release(context.WithoutCancel(ctx))
	return err
}

// Stand leads whenever it may, until ctx ends or work fails: work that lost the
// leadership is begun afresh when it is won again. A process that was held up, by
// a laptop's sleep or a machine out of breath, so goes on where it would end.
func (e Election) Stand(ctx context.Context, work func(ctx context.Context) error) error {
	p := newPace(e)
	for {
		err := e.lead(ctx, p, work)
		if !errors.Is(err, ErrLeadershipLost) || ctx.Err() != nil {
			return err
		}
		p.lost(time.Now())
		e.Logger.WarnContext(ctx, "this process could not renew its lease in time and stopped leading; it stands for it again", "lease", e.Namespace+"/"+e.Name)
	}
}

func (e Election) leases() coordinationclient.LeaseInterface {
	return e.Client.CoordinationV1().Leases(e.Namespace)
}
