// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
)

// indirect is a store's exporter that is not known as one, so that spans go
// through OpenTelemetry's SDK.
type indirect struct{ sdktrace.SpanExporter }

// Spans of this process go around the SDK, and are what it would have recorded.
func TestSpansOfThisProcessAreThoseOfTheSDK(t *testing.T) {
	story := func(tracer oteltrace.Tracer) {
		ctx, request := tracer.Start(t.Context(), trace.Request, oteltrace.WithAttributes(object("Pod", "p1", "u1", "owner")...),
			oteltrace.WithAttributes(trace.VerbKey.String("create"), trace.ResourceKey.String("pods"), trace.StatusKey.Int(201),
				trace.UserKey.String("jane")))
		_, step := oteltrace.SpanFromContext(ctx).TracerProvider().Tracer("other").Start(ctx, trace.AdmissionMutate, oteltrace.WithAttributes(trace.PluginKey.String("x")))
		step.AddEvent("asked", oteltrace.WithAttributes(trace.DecisionKey.String("allow"), attribute.Bool("b", true),
			attribute.Float64("f", 1.5), attribute.StringSlice("s", []string{"a", "b"})))
		step.SetAttributes(trace.PluginKey.String("y"), trace.MessageKey.String("replaced"))
		step.SetStatus(codes.Error, "refused")
		step.SetStatus(codes.Unset, "ignored")
		step.End()
		step.SetAttributes(trace.MessageKey.String("too late"))
		step.End()
		_, well := tracer.Start(ctx, trace.StoreWrite,
			oteltrace.WithAttributes(trace.ComponentKey.String("etcd"), trace.MessageKey.String(strings.Repeat("x", 4<<10))))
		well.SetStatus(codes.Ok, "")
		well.SetStatus(codes.Error, "not any more")
		well.RecordError(errors.New("recorded"))
		well.RecordError(nil)
		well.SetName(trace.Authorize)
		well.End()
		_, failed := tracer.Start(ctx, trace.Authenticate)
		failed.SetStatus(codes.Error, "")
		failed.End()
		if !request.IsRecording() || failed.IsRecording() || !request.SpanContext().IsSampled() ||
			failed.SpanContext().TraceID() != request.SpanContext().TraceID() {
			t.Error("the spans don't know what they are")
		}
		request.End()
	}
	recorded := func(direct bool) string {
		s := newStore(t, trace.StoreConfig{})
		exporter := s.Exporter()
		if !direct {
			exporter = indirect{exporter}
		}
		tracer, shutdown := trace.NewProvider(context.WithoutCancel(t.Context()), "apiserver", exporter)
		story(tracer)
		if err := shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		j := journeyOf(t, s, pod(1))
		if j.Root == nil {
			t.Fatal("nothing was recorded")
		}
		timeless(j.Root)
		data, err := json.MarshalIndent(j.Root, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if diff := cmp.Diff(recorded(false), recorded(true)); diff != "" {
		t.Errorf("(-SDK +ours)\n%s", diff)
	}
}

func timeless(o *journey.Traveller) {
	var visit func(steps []*journey.Step)
	visit = func(steps []*journey.Step) {
		for _, s := range steps {
			s.Offset, s.Duration = 0, 0
			for i := range s.Events {
				s.Events[i].Offset = 0
			}
			visit(s.Steps)
		}
	}
	visit(o.Steps)
}

// Steps are kept with the span that they are steps of. What is about an object
// below one of them is found and forgotten with them all the same, as where every
// span comes by itself.
func TestWhatIsBelowAStepIsFoundWithIt(t *testing.T) {
	write := func(tracer oteltrace.Tracer) {
		ctx, request := tracer.Start(t.Context(), trace.Request, oteltrace.WithAttributes(object("Pod", "p1", "u1", "")...),
			oteltrace.WithAttributes(trace.VerbKey.String("update"), trace.ResourceKey.String("pods")))
		asked, hook := tracer.Start(ctx, trace.AdmissionMutate, oteltrace.WithAttributes(trace.PluginKey.String("hook")))
		inner, below := tracer.Start(asked, "call")
		_, event := tracer.Start(inner, trace.Request, oteltrace.WithAttributes(object("Event", "e1", "u2", "")...),
			oteltrace.WithAttributes(trace.VerbKey.String("update"), trace.ResourceKey.String("events")))
		_, stored := tracer.Start(inner, trace.StoreWrite)
		stored.End()
		event.End()
		below.End()
		hook.End()
		request.End()
		_, late := tracer.Start(ctx, "late")
		late.End()
	}
	recorded := func(writes int, direct bool) string {
		s := newStore(t, trace.StoreConfig{MaxPerObject: 3})
		exporter := s.Exporter()
		if !direct {
			exporter = indirect{exporter}
		}
		tracer, shutdown := trace.NewProvider(context.WithoutCancel(t.Context()), "apiserver", exporter)
		for range writes {
			write(tracer)
		}
		if err := shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, q := range []trace.Query{
			{Kind: "Pod", Namespace: "default", Name: "p1", All: true},
			{Kind: "Event", Namespace: "default", Name: "e1", All: true},
		} {
			j := journeyOf(t, s, q)
			if j.Root == nil {
				t.Fatalf("nothing is known of %s", q.Kind)
			}
			timeless(j.Root)
			data, err := json.MarshalIndent(j.Root, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			text.Write(data)
		}
		return text.String()
	}
	for _, writes := range []int{1, 2, 20} {
		if diff := cmp.Diff(recorded(writes, false), recorded(writes, true)); diff != "" {
			t.Errorf("after %d writes (-each by itself +with their steps)\n%s", writes, diff)
		}
	}
}
