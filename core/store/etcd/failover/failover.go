// SPDX-License-Identifier: Apache-2.0

// Package failover keeps calls away from members of an etcd in other processes that have no leader, as
// behind a partition, or that are silent. etcd's client takes them for good for as long as their
// connections stand, and a call would wait there until it has no time left.
//
// A member without a leader refuses calls at once, because they ask for one; who calls does it
// again, at another member. A call that was on its way before the member had noticed,
// or one to a member that is silent, is overdue after a second: then all members are asked,
// those that are not well get no calls until they are, and what is overdue ends with an error that says that
// the leader has changed: it may have been done.
package failover

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// overdue is how long a call may be on its way before the members are asked how they are.
	overdue = time.Second
	// answering bounds how long a member may take to say how it is.
	answering = 2 * time.Second
)

var errAbandoned = errors.New("the member has no leader, or is silent")

// Endpoints are the members of one etcd. They are safe for concurrent use.
type Endpoints struct {
	log *slog.Logger
	// doubted has something in it if members are to be asked.
	doubted chan struct{}

	mu       sync.Mutex
	all      []string
	underWay map[*attempt]struct{}
	usable   []string
	// since is when calls began to go to the usable ones alone.
	since time.Time
}

// attempt is a call to one member.
type attempt struct {
	began   time.Time
	abandon context.CancelCauseFunc
}

// New tells log of members that cannot be used.
func New(all []string, log *slog.Logger) *Endpoints {
	return &Endpoints{all: all, usable: all, log: log, doubted: make(chan struct{}, 1), underWay: map[*attempt]struct{}{}}
}

// doubt has the members asked how they are.
func (e *Endpoints) doubt() {
	select {
	case e.doubted <- struct{}{}:
	default:
	}
}

// Len is how many members there are.
func (e *Endpoints) Len() int { return len(e.All()) }

// All are the members, whether they can be used or not.
func (e *Endpoints) All() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all
}

// Replace has calls go to these members from now on: some have come, or are gone for good. Those that cannot be used are
// found as at any other time.
func (e *Endpoints) Replace(client *clientv3.Client, all []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	client.SetEndpoints(all...)
	e.all, e.usable, e.since = all, all, time.Now()
}

// Intercept is around each single attempt of a call, behind the client's own interceptors.
func (e *Endpoints) Intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if strings.HasPrefix(method, "/etcdserverpb.Maintenance/") { // is answered without a leader, and says whether there is one
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	a := &attempt{began: time.Now()}
	ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
	ctx, a.abandon = context.WithCancelCause(ctx)
	defer a.abandon(nil)
	e.mu.Lock()
	e.underWay[a] = struct{}{}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.underWay, a)
		e.mu.Unlock()
	}()
	several := e.Len() > 1
	if several {
		defer time.AfterFunc(overdue, e.doubt).Stop()
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	switch {
	case err != nil && context.Cause(ctx) == errAbandoned: //nolint:errorlint // it is this very one
		// etcd's client would repeat a write that has ended as cancelled, and not say so.
		return rpctypes.ErrGRPCLeaderChanged
	case several && rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader):
		e.doubt()
	}
	return err
}

// Run asks the members whenever there is a doubt, until ctx ends.
func (e *Endpoints) Run(ctx context.Context, client *clientv3.Client) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.doubted:
		}
		again := run.Backoff{First: 100 * time.Millisecond, Longest: time.Second}
		for {
			e.use(ctx, client, e.ask(ctx, client))
			if !again.Wait(ctx) {
				return
			}
			if e.well() {
				break
			}
		}
	}
}

// ask returns the members that answer and have a leader, or all if there is none.
func (e *Endpoints) ask(ctx context.Context, client *clientv3.Client) []string {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	all := e.All()
	well := make([]bool, len(all))
	var asked run.Tasks
	for i, endpoint := range all {
		asked.Go("etcd: ask a member", func() {
			status, err := client.Maintenance.Status(ctx, endpoint)
			well[i] = err == nil && status.Leader != 0 && !status.IsLearner
		})
	}
	asked.Wait()
	var out []string
	for i, endpoint := range all {
		if well[i] {
			out = append(out, endpoint)
		}
	}
	if len(out) == 0 {
		return all
	}
	return out
}

// use has calls go to these members alone, and ends those that are overdue and may be at another one.
func (e *Endpoints) use(ctx context.Context, client *clientv3.Client, usable []string) {
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.ContainsFunc(usable, func(endpoint string) bool { return !slices.Contains(e.all, endpoint) }) {
		return // the members are others since they were asked
	}
	if !slices.Equal(usable, e.usable) {
		for _, endpoint := range e.all {
			before, now := slices.Contains(e.usable, endpoint), slices.Contains(usable, endpoint)
			switch {
			case before && !now:
				e.log.WarnContext(ctx, "a member of etcd does not answer or has no leader; the others are used until it has", "endpoint", endpoint)
			case !before && now:
				e.log.InfoContext(ctx, "a member of etcd is used again", "endpoint", endpoint)
			}
		}
		client.SetEndpoints(usable...)
		e.usable, e.since = usable, time.Now()
	}
	if len(usable) == len(e.all) {
		return
	}
	for a := range e.underWay {
		// The client takes a moment to follow.
		if time.Since(a.began) >= overdue && a.began.Before(e.since.Add(overdue)) {
			a.abandon(errAbandoned)
		}
	}
}

// well tells whether all members are used and no call is overdue.
func (e *Endpoints) well() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.usable) < len(e.all) {
		return false
	}
	for a := range e.underWay {
		if time.Since(a.began) >= overdue {
			return false
		}
	}
	return true
}
