// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newStore(tb testing.TB, cfg trace.StoreConfig) *trace.Store {
	tb.Helper()
	s, err := trace.NewStore(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func journeyOf(tb testing.TB, s *trace.Store, q trace.Query) *journey.Journey {
	tb.Helper()
	j, err := journey.Of(s, q)
	if err != nil {
		tb.Fatal(err)
	}
	return j
}

func pod(n int) trace.Query {
	return trace.Query{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("p%d", n)}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)

// podSpan is of a request that makes pod n, so many milliseconds after noon.
func podSpan(id string, n int, from float64) trace.Span {
	at := func(ms float64) time.Time { return noon.Add(time.Duration(ms * float64(time.Millisecond))) }
	span := trace.Span{
		Trace: "t" + id, ID: id, Name: trace.Request, Start: at(from), End: at(from + 1),
		Attrs: map[string]string{string(trace.ComponentKey): "apiserver", string(trace.VerbKey): "create", string(trace.ResourceKey): "pods"},
	}
	for _, a := range object("Pod", fmt.Sprintf("p%d", n), fmt.Sprintf("u%d", n), "") {
		span.Attrs[string(a.Key)] = a.Value.String()
	}
	return span
}

// object are the attributes that name an object.
func object(kind, name, uid, owner string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		trace.KindKey.String(kind), trace.NamespaceKey.String("default"), trace.NameKey.String(name), trace.UIDKey.String(uid),
	}
	if owner != "" {
		attrs = append(attrs, trace.OwnerUIDKey.String(owner))
	}
	return attrs
}

func TestStoreIsBounded(t *testing.T) {
	s := newStore(t, trace.StoreConfig{MaxSpans: 100, MaxPerObject: 10})
	for i := range 1000 {
		s.Add(podSpan(fmt.Sprint(i), i, float64(i)))
		s.Add(podSpan(fmt.Sprint(i), i, float64(i))) // exporters repeat themselves
	}
	if j := journeyOf(t, s, pod(0)); j.Root != nil {
		t.Error("the oldest is still known")
	}
	j := journeyOf(t, s, pod(950))
	if j.Root == nil || len(j.Root.Steps) != 1 {
		t.Errorf("a recent one is forgotten: %+v", j)
	}
	if len(j.Unknown) != 0 { // everything that was forgotten is older than this journey
		t.Errorf("says %v", j.Unknown)
	}
	// A busy object pushes out only itself.
	for i := range 500 {
		s.Add(podSpan(fmt.Sprintf("busy%d", i), 5000, float64(2000+i)))
	}
	if j := journeyOf(t, s, pod(950)); j.Root == nil {
		t.Error("a busy object pushed out another")
	}
	j = journeyOf(t, s, pod(5000))
	if j.Root == nil || len(j.Root.Steps) != 1 || len(j.Unknown) != 0 {
		t.Errorf("the busy object: %+v", j)
	}
	big := newStore(t, trace.StoreConfig{MaxBytes: 100_000})
	for i := range 100 {
		x := podSpan(fmt.Sprint(i), i, float64(i))
		x.Attrs["text"] = strings.Repeat("x", 10_000)
		big.Add(x)
	}
	if j := journeyOf(t, big, pod(50)); j.Root != nil {
		t.Error("more bytes are kept than allowed")
	}
}

func TestForgettingWithinAJourneyIsSaid(t *testing.T) {
	s := newStore(t, trace.StoreConfig{MaxPerObject: 10})
	s.Add(podSpan("first", 1, 0))
	for i := range 30 {
		x := podSpan(fmt.Sprint("k", i), 1, float64(10+i))
		x.Name = trace.Reconcile
		s.Add(x)
	}
	j := journeyOf(t, s, pod(1))
	if len(j.Unknown) == 0 || !strings.Contains(j.Unknown[0], "is not known") {
		t.Errorf("says %q", j.Unknown)
	}
}

// failingExporter fails until told otherwise.
type failingExporter struct {
	working atomic.Bool
	mu      sync.Mutex
	got     int
}

func (e *failingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if !e.working.Load() {
		return errors.New("server is down")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got += len(spans)
	return ctx.Err()
}

func (e *failingExporter) Shutdown(context.Context) error { return nil }

func TestSpansOutliveAServerThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &failingExporter{}
		tracer, shutdown := trace.NewProvider(t.Context(), "scheduler", e)
		for range 1000 {
			_, span := tracer.Start(t.Context(), trace.Schedule)
			span.End()
		}
		time.Sleep(time.Minute) // the bubble's
		e.working.Store(true)
		time.Sleep(6 * time.Second)
		e.mu.Lock()
		got := e.got
		e.mu.Unlock()
		if got != 1000 {
			t.Errorf("%d spans arrived, want 1000", got)
		}
		if err := shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkRecord is what one request with five steps costs when its spans go to the store directly.
func BenchmarkRecord(b *testing.B) {
	s := newStore(b, trace.StoreConfig{})
	tracer, shutdown := trace.NewProvider(b.Context(), "apiserver", s.Exporter())
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ctx, request := tracer.Start(b.Context(), trace.Request,
			oteltrace.WithAttributes(object("Pod", fmt.Sprintf("p%d", i%5000), fmt.Sprintf("u%d", i%5000), "owner")...),
			oteltrace.WithAttributes(trace.VerbKey.String("create"), trace.ResourceKey.String("pods"), trace.UserKey.String("admin"),
				trace.StatusKey.Int(201)))
		for range 5 {
			_, step := tracer.Start(ctx, trace.AdmissionValidate,
				oteltrace.WithAttributes(trace.PluginKey.String("no-latest"), trace.DecisionKey.String("allow")))
			step.End()
		}
		request.End()
	}
	b.StopTimer()
	if err := shutdown(b.Context()); err != nil {
		b.Fatal(err)
	}
}
