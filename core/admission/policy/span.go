// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/trace"
)

// span is one policy's evaluation under one binding in the trace of the request.
type span struct {
	oteltrace.Span
}

func startSpan(ctx context.Context, point, policy, binding string) (context.Context, span) {
	parent := oteltrace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, span{}
	}
	inner, s := parent.TracerProvider().Tracer("admission").Start(ctx, point,
		oteltrace.WithAttributes(trace.PluginKey.String("policy "+policy+" by "+binding), trace.PointKey.String(point)))
	return inner, span{s}
}

func (s span) allow(decision string) {
	if s.Span != nil {
		s.SetAttributes(trace.DecisionKey.String(decision))
		s.End()
	}
}

func (s span) deny(message string) {
	if s.Span != nil {
		s.SetAttributes(trace.DecisionKey.String("deny"), trace.MessageKey.String(message))
		s.SetStatus(codes.Error, message)
		s.End()
	}
}
