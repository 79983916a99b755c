// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"

	"github.com/wasmplane/wasmplane/core/run"
)

// elections end calls that were on their way to a member that no longer leads. Those
// are lost, as a rule; etcd would have their callers wait for 7 s, and fail.
type elections struct {
	mu     sync.Mutex
	term   context.Context //nolint:containedctx // it is no call's: it ends with the leader's term
	finish context.CancelCauseFunc
}

// afterElection is how long calls may still take that began before one: enough for those
// that the new leader has.
const afterElection = 500 * time.Millisecond

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

// run follows elections until ctx ends.
func (e *elections) run(ctx context.Context, s *etcdserver.EtcdServer) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.LeaderChangedNotify():
			lost := e.begin(ctx)
			time.AfterFunc(afterElection, func() { lost(errLeaderLost) })
		}
	}
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

// outlive calls again what a change of leaders has ended, until ctx ends. What it calls may
// have been done each time.
func (s *Store) outlive(ctx context.Context, call func(context.Context) error) error {
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

// leaderless tells whether nobody led, or another member from some moment on.
func leaderless(err error) bool {
	return errors.Is(err, rpctypes.ErrLeaderChanged) || errors.Is(err, rpctypes.ErrNoLeader) ||
		errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail) ||
		strings.HasSuffix(plain(err), raft.ErrProposalDropped.Error())
}
