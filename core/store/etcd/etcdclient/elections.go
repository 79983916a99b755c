// SPDX-License-Identifier: Apache-2.0

package etcdclient

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc/codes"

	"github.com/wasmplane/wasmplane/core/run"
)

// elections end calls that were on their way to a member that no longer leads. Those
// are lost, as a rule; etcd would have their callers wait for 7 s, and fail.
type elections struct {
	mu     sync.Mutex
	term   context.Context //nolint:containedctx // it is no call's: it ends with the leader's term
	finish context.CancelCauseFunc
}

const (
	// afterElection is the longest that calls may still take that began before one.
	afterElection = 500 * time.Millisecond
	// awakes is how long those may take to see their answer that have one.
	awakes = 20 * time.Millisecond
)

var errLeaderLost = errors.New("another member leads the store since")

func newElections(ctx context.Context) *elections {
	e := &elections{}
	e.begin(ctx)
	return e
}

func (e *elections) begin(ctx context.Context) (before context.CancelCauseFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before = e.finish
	e.term, e.finish = context.WithCancelCause(ctx)
	return before
}

// run follows elections until ctx ends. changed is closed by the next change of leaders; passed
// returns nil when all has been answered that reached the new leader from this member before.
func (e *elections) run(ctx context.Context, changed func() <-chan struct{}, passed func(context.Context) error) error {
	var tasks run.Tasks
	defer tasks.Wait()
	for next := changed(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-next:
			next = changed()
			lost := e.begin(ctx)
			tasks.Go("etcd election", func() {
				awaitAnswers(ctx, passed)
				lost(errLeaderLost)
			})
		}
	}
}

// awaitAnswers returns when no call is answered any more that began before an election: those on
// their way to the new leader are then done, the others were lost with the old one.
func awaitAnswers(ctx context.Context, passed func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, afterElection)
	defer cancel()
	again := run.Backoff{First: 10 * time.Millisecond, Longest: 100 * time.Millisecond}
	for passed(ctx) != nil {
		if !again.Wait(ctx) {
			return
		}
	}
	run.Sleep(ctx, awakes)
}

// FollowElections has calls begin again that a change of leaders has lost, until end is called. changed is closed by the next change.
// It is for a store of several members in this process, before its first call.
func (s *Store) FollowElections(ctx context.Context, changed func() <-chan struct{}) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	s.elections = newElections(ctx)
	ended := run.Go("etcd elections", func() error { return s.elections.run(ctx, changed, s.Pass) })
	return func() { cancel(); <-ended }
}

// Pass has a transaction that changes nothing take the way of all writes. Those of this member that
// were on that way before it are done when it is answered.
func (s *Store) Pass(ctx context.Context) error {
	const none = "\x00" // is never written
	_, err := s.client.KV.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(none), ">", 0)).
		Then(clientv3.OpDelete(none)).
		Commit()
	return err
}

// bound ends ctx with the term in which the call begins.
func (e *elections) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	e.mu.Lock()
	term := e.term
	e.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(term, func() { cancel(context.Cause(term)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Outlive calls again what a change of leaders has ended, until ctx ends. What it calls may
// have been done each time.
func (s *Store) Outlive(ctx context.Context, call func(context.Context) error) error {
	if s.endpoints != nil {
		return s.again(ctx, call)
	}
	if s.elections == nil {
		return call(ctx)
	}
	again := run.Backoff{First: 10 * time.Millisecond, Longest: 200 * time.Millisecond}
	for {
		term, cancel := s.elections.bound(ctx)
		err := call(term)
		lost := err != nil && ctx.Err() == nil && (errors.Is(context.Cause(term), errLeaderLost) || leaderless(err))
		cancel()
		if !lost || !again.Wait(ctx) {
			return err
		}
	}
}

// leaderPatience is how long a call is tried again while no member of an external etcd has a
// leader. An election takes one to two seconds with etcd's own settings.
const leaderPatience = 5 * time.Second

// again calls once more what a member of an external etcd could not do, until ctx ends: while
// none has a leader as long as an election may take, and where connections break once for each other member.
func (s *Store) again(ctx context.Context, call func(context.Context) error) error {
	wait := run.Backoff{First: 10 * time.Millisecond, Longest: 200 * time.Millisecond}
	began := time.Now()
	for broken := 1; ; {
		err := call(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case leaderless(err) || errors.Is(err, rpctypes.ErrTimeoutDueToConnectionLost):
			if time.Since(began) > leaderPatience {
				return err
			}
		case Code(err) == codes.Unavailable && broken < s.endpoints.Len():
			broken++
		default:
			return err
		}
		if !wait.Wait(ctx) {
			return err
		}
	}
}

// leaderless tells whether nobody led, or another member from some moment on.
func leaderless(err error) bool {
	return errors.Is(err, rpctypes.ErrLeaderChanged) || errors.Is(err, rpctypes.ErrNoLeader) ||
		errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail) ||
		strings.HasSuffix(Plain(err), raft.ErrProposalDropped.Error())
}
