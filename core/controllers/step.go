// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/trace"
)

// step collects what one reconcile did. Most reconciles do nothing, and a span
// for each would drown the journey of an apply, so the span is made afterwards
// and only if there is something to tell.
type step struct {
	start time.Time

	mu    sync.Mutex // pods are created by several goroutines
	about []attribute.KeyValue
	did   []action
}

type action struct {
	what  string
	at    time.Time
	attrs []attribute.KeyValue
}

type stepKey struct{}

func newStep() *step { return &step{start: time.Now()} }

func withStep(ctx context.Context, s *step) context.Context {
	return context.WithValue(ctx, stepKey{}, s)
}

// About says which object the running reconcile is about.
func About(ctx context.Context, kind string, obj metav1.Object) {
	s, ok := ctx.Value(stepKey{}).(*step)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.about = identity(kind, obj)
}

// Did notes a change that the running reconcile made, on an object of its own or
// (obj nil) on the one it is about. A reconcile that noted nothing leaves no span.
func Did(ctx context.Context, what, kind string, obj metav1.Object) {
	s, ok := ctx.Value(stepKey{}).(*step)
	if !ok {
		return
	}
	a := action{what: what, at: time.Now()}
	if obj != nil {
		a.attrs = identity(kind, obj)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, a)
}

func identity(kind string, obj metav1.Object) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		trace.KindKey.String(kind), trace.NamespaceKey.String(obj.GetNamespace()),
		trace.NameKey.String(obj.GetName()), trace.UIDKey.String(string(obj.GetUID())),
	}
	if owner := metav1.GetControllerOfNoCopy(obj); owner != nil {
		attrs = append(attrs, trace.OwnerUIDKey.String(string(owner.UID)))
	}
	return attrs
}

func (s *step) record(ctx context.Context, tracer oteltrace.Tracer, controller string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.did) == 0 {
		return
	}
	_, span := tracer.Start(ctx, "reconcile", oteltrace.WithTimestamp(s.start),
		oteltrace.WithAttributes(trace.ComponentKey.String("controllers"), attribute.String("wasmplane.controller", controller)),
		oteltrace.WithAttributes(s.about...))
	for _, a := range s.did {
		span.AddEvent(a.what, oteltrace.WithTimestamp(a.at), oteltrace.WithAttributes(a.attrs...))
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

func stack() string { return string(debug.Stack()) }
