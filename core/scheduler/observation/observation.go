// SPDX-License-Identifier: Apache-2.0

// Package observation records the tries of a scheduler, as spans where somebody records
// them, and in metrics.
package observation

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/measure"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Observation is of one try.
type Observation struct {
	Began time.Time
	Bound bool // the pod has its node

	tracer  oteltrace.Tracer
	span    oteltrace.Span
	metrics *measure.Metrics
	profile string
	item    *queue.Item
	now     func() time.Time
}

// Of begins one.
func Of(ctx context.Context, it *queue.Item, profile string, tracer oteltrace.Tracer, metrics *measure.Metrics,
	now func() time.Time,
) (context.Context, *Observation) {
	p := it.Info.Pod
	ctx, span := tracer.Start(ctx, "schedule", trace.Object("Pod", p.Namespace, p.Name, p.UID),
		oteltrace.WithAttributes(attribute.Int("wasmplane.scheduling.attempt", it.Attempts)))
	if owner := metav1.GetControllerOf(p); owner != nil && span.IsRecording() {
		span.SetAttributes(trace.OwnerUIDKey.String(string(owner.UID)))
	}
	return ctx, &Observation{tracer: tracer, span: span, metrics: metrics, profile: profile, item: it, Began: now(), now: now}
}

// Begin begins a part; what it returns ends it.
func (o *Observation) Begin(ctx context.Context, part string) (context.Context, func(*decision.Decision)) {
	if !o.span.IsRecording() {
		return ctx, func(*decision.Decision) {}
	}
	ctx, span := o.tracer.Start(ctx, part)
	return ctx, func(d *decision.Decision) {
		switch part {
		case "filter":
			span.SetAttributes(trace.NodesKey.String(d.NodesLeftOut()))
		case "score":
			span.SetAttributes(trace.ScoresKey.String(d.ScoresByNode()))
		}
		span.End()
	}
}

// Finish is told how the try ended.
func (o *Observation) Finish(d *decision.Decision) {
	o.count(d)
	if o.span.IsRecording() {
		verdict, message := "bound", ""
		if d.Node == "" {
			verdict, message = "unschedulable", d.Message()
		}
		o.span.SetAttributes(trace.NodeKey.String(d.Node), trace.DecisionKey.String(verdict), trace.MessageKey.String(message),
			trace.SeedKey.String(strconv.FormatUint(d.Seed, 10)), attribute.Int("wasmplane.scheduling.start", d.Start))
	}
	o.span.End()
}

// count the try by its result. One that was broken off, because the scheduler ends or
// somebody else was faster, has none.
func (o *Observation) count(d *decision.Decision) {
	took := o.now().Sub(o.Began)
	switch {
	case o.Bound:
		o.metrics.Attempt("scheduled", o.profile, took)
		o.metrics.Scheduled(o.item.Attempts, o.now().Sub(o.item.Added))
	case d.Fatal() != nil:
		o.metrics.Attempt("error", o.profile, took)
	case d.Node == "":
		o.metrics.Attempt("unschedulable", o.profile, took)
	}
}
