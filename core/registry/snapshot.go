// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/turns"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// snapshot is the state that a write is going to replace: first what the cache has,
// which is nearly always right, and whatever the store has once that turned out to
// be old.
type snapshot struct {
	item *watchcache.Item // nil = the object does not exist
	// certain: item comes from the store and not from the cache, so that what was
	// decided on it stands.
	certain bool
}

func (at snapshot) revision() int64 {
	if at.item == nil {
		return 0
	}
	return at.item.Revision
}

// is says whether two snapshots are of the same revision of an object that exists.
func (at snapshot) is(other snapshot) bool {
	return at.item != nil && other.item != nil && at.item.Revision == other.item.Revision
}

// attempt is one try of a write on a snapshot.
type attempt func(ctx context.Context, at snapshot) (Result, error)

// errUnsure is returned by an attempt that would answer without writing: the
// answer stands only if the snapshot was the newest state.
var errUnsure = errors.New("the state may be old")

// onNewest runs try on the newest state of key until it succeeds, or fails on a
// state that is certain. Where the store found another state than expected, the
// next try gets that one.
func (r *Registry) onNewest(ctx context.Context, key string, try attempt) (Result, error) {
	at, err := r.first(ctx, key)
	if err != nil {
		return Result{}, err
	}
	turn := r.set.turns.Of(key)
	defer turn.End()
	for {
		if err := ctx.Err(); err != nil {
			return Result{}, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		}
		result, err := try(ctx, at)
		if err == nil {
			return result, nil
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			if at, err = r.afterConflict(ctx, key, conflict, turn); err != nil {
				return Result{}, err
			}
			continue
		}
		newest := at
		if !at.certain {
			var readErr error
			if newest, readErr = r.newest(ctx, key); readErr != nil {
				return Result{}, readErr
			}
		}
		if !at.certain && !newest.is(at) {
			at = newest
			continue
		}
		if errors.Is(err, errUnsure) {
			return result, nil
		}
		return result, err
	}
}

// first is what a write begins with.
func (r *Registry) first(ctx context.Context, key string) (snapshot, error) {
	if cached, ok := r.reads.Cached(key); ok {
		return snapshot{item: cached}, nil
	}
	// Absence is not worth a guess: a client that has just created the object is right.
	return r.newest(ctx, key)
}

// newest is the state of key as the store has it.
func (r *Registry) newest(ctx context.Context, key string) (snapshot, error) {
	item, err := r.reads.Stored(ctx, key)
	return snapshot{item: item, certain: true}, err
}

// afterConflict is the state for the next try: the one that the conflict found, or
// the store's where time has passed since, because the write has waited for its turn.
func (r *Registry) afterConflict(ctx context.Context, key string, c *store.ConflictError, t *turns.Turn) (snapshot, error) {
	if waited := t.Take(ctx); waited {
		return r.newest(ctx, key)
	}
	if c.Current.ModRevision == 0 {
		return snapshot{certain: true}, nil
	}
	item, err := r.reads.Item(c.Current)
	return snapshot{item: item, certain: true}, err
}

// existing is a copy of the current object's internal form that strategies may
// change; old is the current object in the requested version.
func (r *Registry) existing(item *watchcache.Item, old *object.Object) (runtime.Object, metav1.Object, error) {
	if r.res.Custom == nil {
		return internalCopy(item)
	}
	return copied(old)
}

// internalCopy is a copy of the item's internal form that strategies may change.
func internalCopy(item *watchcache.Item) (runtime.Object, metav1.Object, error) {
	return copied(item.Object)
}

func copied(o *object.Object) (runtime.Object, metav1.Object, error) {
	internal, err := Internal(o)
	if err != nil {
		return nil, nil, err
	}
	internal = internal.DeepCopyObject()
	m, err := meta.Accessor(internal)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	return internal, m, nil
}
