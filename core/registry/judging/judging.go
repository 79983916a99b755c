// SPDX-License-Identifier: Apache-2.0

// Package judging holds writes against the fences that were raised while they were judged (core/admission/fence),
// and has them judged again where others have written meanwhile.
package judging

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"

	"github.com/wasmplane/wasmplane/core/admission"
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

// Raised says whether the write was judged by other objects.
func Raised(ctx context.Context) bool { return len(fence.Seen(ctx)) > 0 }

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

// PassOn hands on what plugins had to say: warnings to the client, annotations
// to the audit log.
func PassOn(ctx context.Context, question *admission.Request) {
	for _, text := range question.Warnings() {
		warning.AddWarning(ctx, "", text)
	}
	for key, value := range question.Annotations() {
		audit.AddAuditAnnotation(ctx, key, value)
	}
	if bodies := question.BodyAnnotations(); len(bodies) > 0 {
		if ac := audit.AuditContextFrom(ctx); ac != nil && !ac.GetEventLevel().Less(auditinternal.LevelRequest) {
			for key, value := range bodies {
				audit.AddAuditAnnotation(ctx, key, value)
			}
		}
	}
}
