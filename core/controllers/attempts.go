// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/wasmplane/wasmplane/core/trace"
)

const (
	firstRetry = 5 * time.Millisecond
	// lastRetry bounds the delay of a key that keeps failing. Upstream lets it grow to
	// 1000 s; an operator who repaired the cause should not have to wait that long.
	lastRetry = 5 * time.Minute
)

// backoff is how long keys that fail wait.
func backoff[K comparable]() workqueue.TypedRateLimiter[K] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[K](firstRetry, lastRetry)
}

// requeuer brings keys back.
type requeuer[K comparable] interface {
	AddAfter(key K, d time.Duration)
	AddRateLimited(key K)
	Forget(key K)
	NumRequeues(key K) int
}

// attempts is what a loop does with one key: it reconciles it at its pace, protected from panics,
// traced, and decides when it comes again.
type attempts[K comparable] struct {
	name      string
	reconcile func(context.Context, K) error
	again     requeuer[K]
	pace      pace[K]
	log       *slog.Logger
	tracer    oteltrace.Tracer
}

func newAttempts[K comparable](env Env, name string, reconcile func(context.Context, K) error, again requeuer[K]) attempts[K] {
	tracer := env.Tracer
	if tracer == nil {
		tracer = trace.Discard()
	}
	log := env.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return attempts[K]{name: name, reconcile: reconcile, again: again, log: log.With("controller", name), tracer: tracer}
}

// Log is the loop's logger.
func (a *attempts[K]) Log() *slog.Logger { return a.log }

// once reconciles one key and decides when it comes again.
func (a *attempts[K]) once(ctx context.Context, key K) {
	if ctx.Err() != nil {
		return
	}
	if wait, long := a.pace.take(key, time.Now()); wait > 0 {
		if long {
			a.log.WarnContext(ctx, "a key is worked on without end, and is slowed down: something may be undoing what is done about it",
				"key", fmt.Sprint(key), "for", paceLong)
		}
		a.again.AddAfter(key, wait)
		return
	}
	step := newStep()
	err := a.protected(withStep(ctx, step), key)
	step.record(ctx, a.tracer, a.name, err)
	switch {
	case err == nil:
		a.again.Forget(key)
		return
	case ctx.Err() != nil:
		return
	case errors.Is(err, ErrStale), errors.Is(err, ErrNotYet):
	case apierrors.IsConflict(err), apierrors.HasStatusCause(err, "NamespaceTerminating"):
		// Somebody else wrote in between, or the namespace goes away: ordinary life.
		a.log.DebugContext(ctx, "a reconcile is tried again", "key", fmt.Sprint(key), "error", err)
	default:
		a.log.WarnContext(ctx, "a reconcile failed and will be tried again", "key", fmt.Sprint(key), "attempt", a.again.NumRequeues(key)+1,
			"error", err)
	}
	a.again.AddRateLimited(key)
}

// protected turns a panic of one key into an error: one object that we cannot
// handle must not stop the work on all others.
func (a *attempts[K]) protected(ctx context.Context, key K) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic while reconciling: %v", r)
			a.log.ErrorContext(ctx, "a reconcile panicked", "key", fmt.Sprint(key), "panic", r, "stack", stack())
		}
	}()
	return a.reconcile(ctx, key)
}
