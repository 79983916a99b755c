// SPDX-License-Identifier: Apache-2.0

// Package optimistic runs writes that compare and swap: a write is decided on a
// snapshot of the object, and begins again on a newer one where the store found
// another state than that.
//
// A write that fails, or that would answer without writing, counts only on a state
// that comes from the store: the cache may be behind, and clients must not see an
// answer about a state that was replaced before they asked.
package optimistic

import (
	"context"
	"errors"

	"github.com/wasmplane/wasmplane/core/registry/ended"
	"github.com/wasmplane/wasmplane/core/registry/turns"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Snapshot is the state that a write is going to replace: first what the cache has, or this server wrote since,
// which is nearly always right, and whatever the store has once that turned out to
// be old.
type Snapshot struct {
	Item *watchcache.Item // nil = the object does not exist
	// certain: Item was read from the store for this write, so that what was
	// decided on it stands.
	certain bool
}

// Revision of the object; 0 = it does not exist.
func (at Snapshot) Revision() int64 { return Revision(at.Item) }

// Revision is that of an item; 0 for none, which the store takes for "must not exist".
func Revision(item *watchcache.Item) int64 {
	if item == nil {
		return 0
	}
	return item.Revision
}

// is says whether two snapshots are of the same revision of an object that exists.
func (at Snapshot) is(other Snapshot) bool {
	return at.Item != nil && other.Item != nil && at.Item.Revision == other.Item.Revision
}

// ErrUnsure is returned by an attempt that would answer without writing: the
// answer stands only if the snapshot was the newest state.
var ErrUnsure = errors.New("the state may be old")

// Source is where snapshots come from; a reader of the registry is one.
type Source interface {
	// Cached is what the cache has of a key.
	Cached(key string) (*watchcache.Item, bool)
	// Stored is what the store has; nil = nothing.
	Stored(ctx context.Context, key string) (*watchcache.Item, error)
	// Item decodes a value of the store.
	Item(kv store.KV) (*watchcache.Item, error)
}

// Writes of one resource.
type Writes struct {
	Source  Source
	Turns   *turns.Turns
	Written *Written
}

// Run calls try on the newest state of key until it succeeds, or fails on a state
// that is certain. An attempt answers a *store.ConflictError where the store found
// another state than expected; the next one gets that state.
func Run[T any](ctx context.Context, w Writes, key string, try func(ctx context.Context, at Snapshot) (T, error)) (T, error) {
	var none T
	at, err := w.first(ctx, key)
	if err != nil {
		return none, err
	}
	turn := w.Turns.Of(key)
	defer turn.End()
	for {
		if err := ended.Check(ctx); err != nil {
			return none, err
		}
		result, err := try(ctx, at)
		if err == nil {
			return result, nil
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			if at, err = w.afterConflict(ctx, key, conflict, turn); err != nil {
				return none, err
			}
			continue
		}
		var moved *store.FenceError
		if errors.As(err, &moved) { // it is judged again, on the same object
			turn.Take(ctx)
			continue
		}
		newest := at
		if !at.certain {
			var readErr error
			if newest, readErr = w.newest(ctx, key); readErr != nil {
				return none, readErr
			}
		}
		if !at.certain && !newest.is(at) {
			at = newest
			continue
		}
		if errors.Is(err, ErrUnsure) {
			return result, nil
		}
		return result, err
	}
}

// first is what a write begins with: what the cache has, or what was written since.
func (w Writes) first(ctx context.Context, key string) (Snapshot, error) {
	if cached, ok := w.Source.Cached(key); ok {
		if kv, newer := w.Written.after(key, cached.Revision); newer {
			item, err := w.Source.Item(kv)
			return Snapshot{Item: item}, err
		}
		return Snapshot{Item: cached}, nil
	}
	// Absence is not worth a guess: a client that has just created the object is right.
	return w.newest(ctx, key)
}

// newest is the state of key as the store has it.
func (w Writes) newest(ctx context.Context, key string) (Snapshot, error) {
	item, err := w.Source.Stored(ctx, key)
	return Snapshot{Item: item, certain: true}, err
}

// afterConflict is the state for the next try: the one that the conflict found, or
// the store's where time has passed since, because the write has waited for its turn.
func (w Writes) afterConflict(ctx context.Context, key string, c *store.ConflictError, t *turns.Turn) (Snapshot, error) {
	w.Written.Drop(key) // somebody else has written it since
	if waited := t.Take(ctx); waited {
		return w.newest(ctx, key)
	}
	if c.Current.ModRevision == 0 {
		return Snapshot{certain: true}, nil
	}
	item, err := w.Source.Item(c.Current)
	return Snapshot{Item: item, certain: true}, err
}
