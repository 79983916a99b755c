// SPDX-License-Identifier: Apache-2.0

// Package space shares out the room in the store, and gets a full one going again.
//
// It guarantees that ordinary writes are refused before the store itself has to
// refuse all, so that deletes, leases and administrators still get through; that no
// namespace takes more than its share; and that a store in which something was
// deleted takes writes again within seconds, by itself: history is forgotten early
// while room is short, and the database is rewritten where it has grown to its bound.
package space

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/core/store"
)

// Usage of a store, in bytes.
type Usage struct {
	// InUse is what states take, present and past; File is the database with the
	// free pages in it.
	InUse, File int64
	// Refusing: the store itself takes no writes until Reclaim has made room.
	Refusing bool
}

// Gauge measures a store and makes room in it.
type Gauge interface {
	// Usage returns at once. It shows deletions late where nothing is written.
	Usage() Usage
	// Refresh makes Usage show what has been freed until now.
	Refresh()
	// Reclaim rewrites the database without its free pages and lets the store take
	// writes again. Reads and writes wait meanwhile.
	Reclaim(ctx context.Context) error
}

// Config of a Keeper.
type Config struct {
	// Store whose history is forgotten when room is short. Required.
	Store store.Store
	// Gauge of that store; nil = its room is somebody else's to watch.
	Gauge Gauge
	// Quota of the whole store in bytes. Required with a Gauge. An eighth of it is
	// kept back from ordinary writes.
	Quota int64
	// NamespaceQuota bounds what the objects of one namespace take, in bytes; 0 = nothing does.
	NamespaceQuota int64
	// Namespace is what the objects of a namespace take. Required with NamespaceQuota.
	Namespace func(name string) int64
	// Seen is the revision up to which Namespace shows all writes, read before it; nil = it shows each at once.
	Seen    func() int64
	Metrics prometheus.Registerer // nil = not exported
	Logger  *slog.Logger          // nil = discard
}

// Keeper admits writes and keeps room for them.
type Keeper struct {
	cfg     Config
	bound   int64        // of ordinary writes
	waiting atomic.Int64 // bytes that were admitted since the last look: Usage may not show them yet,
	earlier atomic.Int64 // nor those between the last two
	pending pending
	recount sync.Mutex
	soon    chan struct{}
	refused *prometheus.CounterVec
	made    *prometheus.CounterVec
}

// New checks cfg and makes a keeper; Run makes room.
func New(cfg Config) (*Keeper, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("space: Config.Store is missing")
	case cfg.Gauge != nil && cfg.Quota <= 0:
		return nil, errors.New("space: Config.Quota is missing")
	case cfg.NamespaceQuota > 0 && cfg.Namespace == nil:
		return nil, errors.New("space: Config.Namespace is missing")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Seen == nil {
		cfg.Seen = everything
	}
	k := &Keeper{
		cfg: cfg, bound: cfg.Quota - cfg.Quota/8, soon: make(chan struct{}, 1),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_store_refused_writes_total", Help: "Writes that were refused because a bound on what is stored was reached, by the bound.",
		}, []string{"limit"}),
		made: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_store_room_made_total", Help: "How often room was made in the store, by the way: history that was forgotten early, or the database rewritten.",
		}, []string{"way"}),
	}
	return k, k.register()
}

func (k *Keeper) register() error {
	if k.cfg.Metrics == nil {
		return nil
	}
	all := []prometheus.Collector{k.refused, k.made}
	if g := k.cfg.Gauge; g != nil {
		gauge := func(name, help string, value func() float64) {
			all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
		}
		gauge("wasmplane_store_in_use_bytes", "Bytes of the database that states take, present and past.",
			func() float64 { return float64(g.Usage().InUse) })
		gauge("wasmplane_store_ordinary_bytes", "Bytes of the database that ordinary writes may take.",
			func() float64 { return float64(k.bound) })
		gauge("wasmplane_store_full", "1 while ordinary writes are refused because the store is full.", func() float64 {
			if k.full(0) != nil {
				return 1
			}
			return 0
		})
	}
	for _, c := range all {
		if err := k.cfg.Metrics.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// Admit answers a *store.FullError, or how it is told that the write is over: with the revision at which it was done; 0 = it was not.
func (k *Keeper) Admit(w store.Write) (done func(revision int64), err error) {
	done = func(int64) {}
	if w.Reserved {
		return done, nil
	}
	if k.cfg.Gauge != nil {
		if err := k.brimful(); err != nil {
			select {
			case k.soon <- struct{}{}:
			default:
			}
			return nil, k.refuse(err)
		}
	}
	if quota := k.cfg.NamespaceQuota; quota > 0 && w.Namespace != "" && w.Bytes > w.Before {
		taken, has, ok := k.pending.take(w.Namespace, int64(w.Bytes-w.Before), quota, k.cfg.Seen, k.cfg.Namespace)
		if !ok {
			return nil, k.refuse(&store.FullError{Limit: store.NamespaceQuota, Namespace: w.Namespace, Bytes: has, Bound: quota})
		}
		done = taken
	}
	if k.cfg.Gauge != nil {
		k.waiting.Add(int64(w.Bytes))
	}
	return done, nil
}

func (k *Keeper) refuse(err *store.FullError) error {
	k.refused.WithLabelValues(err.Limit).Inc()
	return err
}

// brimful is full with what Usage may not show yet. Some of that it may show already, so
// it is counted anew before anybody is refused over it.
func (k *Keeper) brimful() *store.FullError {
	pending := func() int64 { return k.waiting.Load() + k.earlier.Load() }
	err := k.full(pending())
	if err == nil || k.full(0) != nil {
		return err
	}
	k.recount.Lock()
	defer k.recount.Unlock()
	if k.full(pending()) != nil {
		k.waiting.Store(0)
		k.earlier.Store(0)
		k.cfg.Gauge.Refresh()
	}
	return k.full(pending())
}

// full leaves a margin, so that what is refused does not depend on how large it is.
func (k *Keeper) full(pending int64) *store.FullError {
	u := k.cfg.Gauge.Usage()
	if taken := u.InUse + pending; taken > k.bound-min(k.bound/32, 2<<20) || k.grown(u.File+pending) || u.Refusing {
		return &store.FullError{Limit: store.Quota, Bytes: taken, Bound: k.bound}
	}
	return nil
}

// grown: the database is so close to its bound that the store itself soon takes nothing.
// Free pages count: a value needs as many as it has in one piece.
func (k *Keeper) grown(file int64) bool { return file > k.cfg.Quota-k.cfg.Quota/16 }

// Check is for /readyz/store-space: it fails while ordinary writes are refused. It must
// not take a server out of a balancer: deletes come through that.
func (k *Keeper) Check(context.Context) error {
	if k.cfg.Gauge == nil {
		return nil
	}
	if err := k.full(0); err != nil {
		return err // a nil pointer to a FullError would be an error
	}
	return nil
}

// Pauses of Run. The database commits several times a second: what was admitted
// before the look before this one is in its figures.
const (
	look         = 500 * time.Millisecond
	forgetPause  = 2 * time.Second // between two roundings-off of the history
	reclaimPause = 10 * time.Second
)

// Run makes room until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	if k.cfg.Gauge == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	r := &round{Keeper: k}
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			k.earlier.Store(k.waiting.Swap(0))
		case <-k.soon:
			if time.Since(last) < look {
				continue
			}
		}
		last = time.Now()
		if err := r.makeRoom(ctx, time.Now()); err != nil && ctx.Err() == nil {
			k.cfg.Logger.WarnContext(ctx, "no room could be made in the store; trying again", "error", err)
		}
	}
}

// round is what one look remembers for the next.
type round struct {
	*Keeper
	wasFull           bool
	forgot, reclaimed time.Time
	revision          int64 // up to which everything has been forgotten
}

func (r *round) makeRoom(ctx context.Context, now time.Time) error {
	u := r.cfg.Gauge.Usage()
	r.report(ctx, u)
	// Nine tenths of what ordinary writes may take: history is worth less than they are.
	if u.InUse > r.bound-r.bound/10 || r.grown(u.File) || u.Refusing {
		if err := r.forget(ctx, now); err != nil {
			return err
		}
		r.cfg.Gauge.Refresh()
	}
	if !u.Refusing && !r.grown(u.File) || now.Sub(r.reclaimed) < reclaimPause && (u.File >= r.cfg.Quota || !u.Refusing) {
		return nil
	}
	// Only once there is something to gain: others wait while it is done.
	if u = r.cfg.Gauge.Usage(); u.InUse > r.bound {
		return nil
	}
	r.reclaimed = now
	r.made.WithLabelValues("rewritten").Inc()
	return r.cfg.Gauge.Reclaim(ctx)
}

// forget compacts the history up to now, if there is a new one since the last time.
func (r *round) forget(ctx context.Context, now time.Time) error {
	if now.Sub(r.forgot) < forgetPause {
		return nil
	}
	revision, err := r.cfg.Store.Revision(ctx)
	if err != nil {
		return fmt.Errorf("read the newest revision: %w", err)
	}
	if revision == r.revision {
		return nil
	}
	r.forgot = now
	if err := r.cfg.Store.Compact(ctx, revision); err != nil && !errors.Is(err, store.ErrCompacted) {
		return fmt.Errorf("forget the history: %w", err)
	}
	r.revision = revision
	r.made.WithLabelValues("forgotten").Inc()
	return nil
}

// report tells the operator once when the store is full, and once when it no longer is.
func (r *round) report(ctx context.Context, u Usage) {
	full := r.full(0) != nil
	if full == r.wasFull {
		return
	}
	r.wasFull = full
	if full {
		r.cfg.Logger.ErrorContext(ctx, "the store is full: only deletes, leases, states of nodes and administrators' writes are taken; delete objects or raise store.quotaBytes",
			"inUse", u.InUse, "file", u.File, "ordinary", r.bound, "quota", r.cfg.Quota)
		return
	}
	r.cfg.Logger.WarnContext(ctx, "the store has room again", "inUse", u.InUse, "file", u.File, "ordinary", r.bound, "quota", r.cfg.Quota)
}
