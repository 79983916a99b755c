// SPDX-License-Identifier: Apache-2.0

// Package judging holds writes against the fences that were raised while they were judged (core/admission/fence),
// and has them judged again where others have written meanwhile.
package judging

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/admission/fence"
	"github.com/wasmplane/wasmplane/core/registry/turns"
	"github.com/wasmplane/wasmplane/core/store"
)

// Begin is a context in which a write is judged, perhaps again. What was read of other objects before counts no more.
func Begin(ctx context.Context, s store.Store) context.Context {
	return fence.Begin(ctx, func(ctx context.Context, key string) (int64, error) {
		kv, err := s.Get(ctx, key)
		if errors.Is(err, store.ErrNotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, apierrors.NewServiceUnavailable("the store does not answer; try again in a moment")
		}
		return kv.ModRevision, nil
	})
}

// Fences are what a write to a group is held against, and what it moves itself.
func Fences(ctx context.Context, group string) store.Fences {
	seen := fence.Seen(ctx)
	if len(seen) == 0 {
		return store.Fences{}
	}
	return store.Fences{Seen: seen, Moves: []string{fence.Key(group)}}
}

// Again tries a write until no fence has moved while it was judged, in turns with others of its group.
func Again[T any](ctx context.Context, s store.Store, t *turns.Turns, group string, try func(context.Context) (T, error)) (T, error) {
	turn := t.Of(fence.Key(group))
	defer turn.End()
	for {
		result, err := try(Begin(ctx, s))
		var moved *store.FenceError
		if !errors.As(err, &moved) {
			return result, err
		}
		if ctx.Err() != nil {
			var none T
			return none, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		}
		turn.Take(ctx)
	}
}
