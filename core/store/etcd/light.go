// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/space"
)

var (
	_ store.Membership = (*Light)(nil)
	_ space.Gauge      = (*Light)(nil)
)

const (
	// following is how often a light server asks which members there are.
	following = 5 * time.Second
	// measuring is how often it asks how full their store is.
	measuring = 2 * time.Second
)

// LightConfig is what a server that keeps no part of the store knows of those that do.
type LightConfig struct {
	// Members are the URLs by which the members reach each other, as they were when they were asked last.
	Members []string
	// PairFile holds this server's certificate with its key, CAFile the authority that vouches for it and for all members.
	// The pair is read again for each connection.
	PairFile, CAFile string
	// Changed keeps Members for the next start. A failure is logged, and it is called again with the next change.
	Changed func(members []string) error
	// Progress is told what a person would wait for.
	Progress func(step string)
	Logger   *slog.Logger
}

// Light is the store of a server that keeps no part of it: it lies with the members, which come and go meanwhile.
type Light struct {
	cfg    LightConfig
	store  *etcdclient.Store
	usage  atomic.Pointer[space.Usage]
	ends   func()
	once   sync.Once
	closed chan struct{}
	cause  error // set before closed is closed
}

// DialMembers connects to the members, and waits until one of them can be used, however long that takes.
func DialMembers(ctx context.Context, cfg LightConfig) (*Light, error) {
	st, err := etcdclient.Connect(ctx, etcdclient.Config{
		Endpoints: cfg.Members, CAFile: cfg.CAFile, CertFile: cfg.PairFile, KeyFile: cfg.PairFile, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	l := &Light{cfg: cfg, store: st, closed: make(chan struct{})}
	l.usage.Store(&space.Usage{})
	if err := l.await(ctx); err != nil {
		return nil, errors.Join(err, l.store.Close())
	}
	going, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := run.Go("etcd members of others", func() error { return run.Together(going, l.follow, l.measure) })
	l.ends = func() { cancel(); <-ended }
	return l, nil
}

// await waits for a member that can be used. Who starts first after a power cut is not at fault.
func (l *Light) await(ctx context.Context) error {
	again := run.Backoff{First: 100 * time.Millisecond, Longest: 2 * time.Second}
	var reported string
	for {
		var failures []string
		for _, url := range l.store.Endpoints().All() {
			one, cancel := context.WithTimeout(ctx, answering)
			status, err := l.store.Client().Maintenance.Status(one, url)
			cancel()
			why := "too few of those that keep the store are there"
			switch {
			case err == nil && status.Leader != 0:
				return l.catchUp(ctx)
			case removed(err):
				return store.ErrRemoved
			case err != nil:
				why = etcdclient.Plain(err)
			}
			failures = append(failures, strings.TrimPrefix(url, "https://")+": "+why)
		}
		if text := strings.Join(failures, "; "); text != reported {
			reported = text
			l.cfg.Progress("waiting for a server that keeps the store (" + text + ")")
		}
		if !again.Wait(ctx) {
			return fmt.Errorf("reach a server that keeps the store (%s): %w", strings.Join(failures, "; "), context.Cause(ctx))
		}
	}
}

// catchUp is follow's first look: what was kept may be of the past. Without a majority it waits for nothing.
func (l *Light) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	if err := l.look(ctx); errors.Is(err, store.ErrRemoved) {
		return err
	}
	return nil
}

// removed tells that a member says that this server was removed.
func removed(err error) bool { return etcdclient.Code(err) == codes.PermissionDenied }

// follow keeps the list of members in step until ctx ends. It ends the store when this server was removed.
func (l *Light) follow(ctx context.Context) error {
	for run.Sleep(ctx, following) {
		one, cancel := context.WithTimeout(ctx, following)
		err := l.look(one)
		cancel()
		if errors.Is(err, store.ErrRemoved) {
			l.end(err)
			return nil
		}
	}
	return nil
}

// look asks which members there are, and uses those that vote. Where nobody can say that, it stays as it is.
func (l *Light) look(ctx context.Context) error {
	all, err := l.list(ctx)
	if err != nil {
		return err
	}
	var urls []string
	for _, m := range all {
		if m.Peer != "" && m.Name != "" && !m.Learner {
			urls = append(urls, m.Peer)
		}
	}
	before := l.store.Endpoints().All()
	if len(urls) == 0 || sameSet(urls, before) {
		return nil
	}
	l.cfg.Logger.InfoContext(ctx, "the servers that keep the store are others now", "stores", urls)
	l.store.Endpoints().Replace(l.store.Client(), urls)
	if err := l.cfg.Changed(urls); err != nil {
		l.cfg.Logger.WarnContext(ctx, "the list of servers that keep the store could not be kept; after a restart this server knows the old ones", "error", err)
	}
	return nil
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func (l *Light) list(ctx context.Context) ([]store.Member, error) {
	var list *clientv3.MemberListResponse
	err := l.store.Outlive(ctx, func(ctx context.Context) (err error) {
		list, err = l.store.Client().MemberList(ctx)
		return err
	})
	if removed(err) {
		return nil, store.ErrRemoved
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", store.ErrQuorum, etcdclient.Plain(err))
	}
	out := make([]store.Member, len(list.Members))
	for i, m := range list.Members {
		out[i] = memberOf(m)
	}
	byName(out)
	return out, nil
}

// Members implements store.Membership. None of them is this server.
func (l *Light) Members(ctx context.Context) ([]store.Member, error) {
	ctx, cancel := l.store.Bound(ctx)
	defer cancel()
	all, err := l.list(ctx)
	if err != nil {
		return nil, err
	}
	var asked run.Tasks
	for i := range all {
		if m := &all[i]; m.Peer != "" {
			asked.Go("etcd: ask a member", func() {
				one, cancel := context.WithTimeout(ctx, answering)
				defer cancel()
				if status, err := l.store.Client().Maintenance.Status(one, m.Peer); err == nil {
					m.Alive, m.Leader = true, fmt.Sprintf("%x", status.Leader) == m.ID
				}
			})
		}
	}
	asked.Wait()
	return all, nil
}

// errLight is said of what takes part in the store.
var errLight = errors.New("this server keeps no part of the store, and does not decide who does: ask one of those that do")

// Open implements store.Membership, and refuses.
func (*Light) Open(context.Context, string) error { return errLight }

// Add implements store.Membership, and refuses.
func (*Light) Add(context.Context, string) error { return errLight }

// Removable implements store.Membership, and refuses.
func (*Light) Removable(context.Context, string) error { return errLight }

// Remove implements store.Membership, and refuses.
func (*Light) Remove(context.Context, string) error { return errLight }

// measure keeps what Usage says in step.
func (l *Light) measure(ctx context.Context) error {
	for run.Sleep(ctx, measuring) {
		one, cancel := context.WithTimeout(ctx, answering)
		l.weigh(one)
		cancel()
	}
	return nil
}

// weigh asks one member that answers: all of them hold the same, but for free pages.
func (l *Light) weigh(ctx context.Context) {
	endpoints := l.store.Client().Endpoints()
	if len(endpoints) == 0 {
		return
	}
	status, err := l.store.Client().Maintenance.Status(ctx, endpoints[0])
	if err != nil {
		return // the next look asks again
	}
	refusing := slices.ContainsFunc(status.Errors, func(e string) bool { return strings.Contains(e, etcdserverpb.AlarmType_NOSPACE.String()) })
	l.usage.Store(&space.Usage{InUse: status.DbSizeInUse, File: status.DbSize, Refusing: refusing})
}

// Usage implements space.Gauge, as it was two seconds ago at most.
func (l *Light) Usage() space.Usage { return *l.usage.Load() }

// Refresh implements space.Gauge: what was freed shows with the next measure.
func (*Light) Refresh() {}

// Reclaim implements space.Gauge. Each member rewrites its own database.
func (*Light) Reclaim(context.Context) error { return nil }

// Store is the store that the members serve. It lives until Close.
func (l *Light) Store() *etcdclient.Store { return l.store }

// Done is closed when the store cannot be used any more: after Close, or because this server was removed; Err says which.
func (l *Light) Done() <-chan struct{} { return l.closed }

// Err says why the store has ended by itself.
func (l *Light) Err(context.Context) error {
	<-l.closed
	return l.cause
}

func (l *Light) end(cause error) {
	l.once.Do(func() {
		l.cause = cause
		close(l.closed)
	})
}

// Close ends every watch and the connections.
func (l *Light) Close() error {
	l.ends()
	l.end(nil)
	return l.store.Close()
}
