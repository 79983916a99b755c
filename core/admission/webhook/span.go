// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/trace"
)

// span is one webhook's call in the trace of the request.
type span struct {
	oteltrace.Span
}

// maxPatch bounds the patch that a span carries, in bytes.
const maxPatch = 16 << 10

func (w *Webhooks) span(ctx context.Context, point string, h *hook) (context.Context, span) {
	parent := oteltrace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, span{}
	}
	inner, s := parent.TracerProvider().Tracer("admission").Start(ctx, point,
		oteltrace.WithAttributes(trace.PluginKey.String("webhook "+h.configuration+"/"+h.name), trace.PointKey.String(point)))
	return inner, span{s}
}

func (s span) end(patch []byte, changed bool, err error, ignored bool) {
	if s.Span == nil {
		return
	}
	var call *callError
	switch {
	case err == nil && changed:
		s.SetAttributes(trace.DecisionKey.String("patch"))
		if len(patch) <= maxPatch {
			s.SetAttributes(trace.PatchKey.String(string(patch)))
		}
	case err == nil:
		s.SetAttributes(trace.DecisionKey.String("allow"))
	case ignored && errors.As(err, &call):
		s.SetAttributes(trace.DecisionKey.String("allow"), trace.MessageKey.String("failed open: "+err.Error()))
		s.SetStatus(codes.Error, err.Error())
	default:
		s.SetAttributes(trace.DecisionKey.String("deny"), trace.MessageKey.String(err.Error()))
		s.SetStatus(codes.Error, err.Error())
	}
	s.End()
}
