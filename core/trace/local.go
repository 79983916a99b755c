// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// localProvider makes tracers whose spans a store in the same process remembers.
// Every write begins a dozen of them: what OpenTelemetry's SDK does for exporters
// in general (samplers, processors, resources, copies for each) cost more than what is recorded.
type localProvider struct {
	noop.TracerProvider
	store     *Store
	component string
}

// Tracer implements oteltrace.TracerProvider. The store has no use for the name
// of who instrumented the code.
func (p *localProvider) Tracer(string, ...oteltrace.TracerOption) oteltrace.Tracer {
	return &localTracer{provider: p}
}

type localTracer struct {
	noop.Tracer
	provider *localProvider
}

// Start implements oteltrace.Tracer.
func (t *localTracer) Start(ctx context.Context, name string, opts ...oteltrace.SpanStartOption) (context.Context, oteltrace.Span) {
	cfg := oteltrace.NewSpanStartConfig(opts...)
	s := &localSpan{provider: t.provider, tracer: t, name: Cut(name), start: cfg.Timestamp()}
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.begin(ctx, cfg.NewRoot())
	s.attrs = s.room[:0]
	s.set(cfg.Attributes())
	return oteltrace.ContextWithSpan(ctx, s), s
}

// pair is an attribute as the store keeps it.
type pair struct{ key, value string }

// attrRoom is how many attributes most spans have at most: steps, of which there
// are many more than there are requests.
const attrRoom = 5

// localSpan is a span of this process. It is not used again after its end, for
// whoever still has its context may still ask it.
type localSpan struct {
	noop.Span
	provider *localProvider
	tracer   *localTracer
	context  oteltrace.SpanContext
	traceKey string // the store's key of the trace, shared by its spans
	parent   oteltrace.SpanID
	above    *localSpan // the parent, where it is of this process
	start    time.Time

	mu     sync.Mutex
	steps  []*localSpan // that ended below it, and that nobody looks for by themselves
	name   string
	attrs  []pair
	events []localEvent
	status codes.Code
	err    string
	end    time.Time
	ended  bool
	room   [attrRoom]pair
}

// localEvent is a moment within a span.
type localEvent struct {
	name  string
	at    time.Time
	attrs []pair
}

const traceKeyPrefix = "trace "

// begin gives the span its identity: a place below the span of ctx, or a trace of its own.
func (s *localSpan) begin(ctx context.Context, root bool) {
	parent := oteltrace.SpanFromContext(ctx)
	above := parent.SpanContext()
	cfg := oteltrace.SpanContextConfig{SpanID: newSpanID(), TraceFlags: oteltrace.FlagsSampled}
	local, _ := parent.(*localSpan)
	switch {
	case root || !above.HasTraceID():
		cfg.TraceID = newTraceID()
		s.traceKey = traceKeyPrefix + cfg.TraceID.String()
	case local != nil:
		cfg.TraceID, cfg.TraceState = local.context.TraceID(), local.context.TraceState()
		s.traceKey, s.parent, s.above = local.traceKey, local.context.SpanID(), local
	default:
		cfg.TraceID, cfg.TraceState, s.parent = above.TraceID(), above.TraceState(), above.SpanID()
		s.traceKey = traceKeyPrefix + cfg.TraceID.String()
	}
	s.context = oteltrace.NewSpanContext(cfg)
}

func newSpanID() (id oteltrace.SpanID) {
	for !id.IsValid() {
		put(id[:], rand.Uint64()) //nolint:gosec // identifiers, not secrets
	}
	return id
}

func newTraceID() (id oteltrace.TraceID) {
	for !id.IsValid() {
		put(id[:8], rand.Uint64()) //nolint:gosec // as above
		put(id[8:], rand.Uint64()) //nolint:gosec // as above
	}
	return id
}

func put(b []byte, n uint64) {
	for i := range b {
		b[i] = byte(n)
		n >>= 8
	}
}

// SpanContext implements oteltrace.Span.
func (s *localSpan) SpanContext() oteltrace.SpanContext { return s.context }

// TracerProvider implements oteltrace.Span.
func (s *localSpan) TracerProvider() oteltrace.TracerProvider {
	return sameTracer{provider: s.provider, tracer: s.tracer}
}

// sameTracer spares each child a tracer of its own.
type sameTracer struct {
	noop.TracerProvider
	provider *localProvider
	tracer   *localTracer
}

// Tracer implements oteltrace.TracerProvider.
func (t sameTracer) Tracer(string, ...oteltrace.TracerOption) oteltrace.Tracer { return t.tracer }

// IsRecording implements oteltrace.Span.
func (s *localSpan) IsRecording() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended
}

// SetName implements oteltrace.Span.
func (s *localSpan) SetName(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.name = Cut(name)
	}
}

// SetAttributes implements oteltrace.Span.
func (s *localSpan) SetAttributes(kvs ...attribute.KeyValue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.set(kvs)
	}
}

func (s *localSpan) set(kvs []attribute.KeyValue) {
	for _, kv := range kvs {
		s.attrs = setPair(s.attrs, string(kv.Key), textOf(kv.Value))
	}
}

// setPair adds an attribute, or replaces it; the first MaxAttrs are kept.
func setPair(attrs []pair, key, value string) []pair {
	for i := range attrs {
		if attrs[i].key == key {
			attrs[i].value = value
			return attrs
		}
	}
	if len(attrs) >= MaxAttrs {
		return attrs
	}
	return append(attrs, pair{key, value})
}

func textOf(v attribute.Value) string {
	if v.Type() == attribute.STRING {
		return Cut(v.AsString())
	}
	return Cut(v.String())
}

// AddEvent implements oteltrace.Span.
func (s *localSpan) AddEvent(name string, opts ...oteltrace.EventOption) {
	cfg := oteltrace.NewEventConfig(opts...)
	e := localEvent{name: Cut(name), at: cfg.Timestamp()}
	if kvs := cfg.Attributes(); len(kvs) > 0 {
		e.attrs = make([]pair, 0, len(kvs))
		for _, kv := range kvs {
			e.attrs = setPair(e.attrs, string(kv.Key), textOf(kv.Value))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && len(s.events) < MaxEvents {
		s.events = append(s.events, e)
	}
}

// RecordError implements oteltrace.Span, under OpenTelemetry's names.
func (s *localSpan) RecordError(err error, opts ...oteltrace.EventOption) {
	if err == nil {
		return
	}
	s.AddEvent("exception", append(opts, oteltrace.WithAttributes(
		attribute.String("exception.type", fmt.Sprintf("%T", err)), attribute.String("exception.message", err.Error())))...)
}

// SetStatus implements oteltrace.Span: what is well stays well.
func (s *localSpan) SetStatus(code codes.Code, description string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.status > code {
		return
	}
	s.status = code
	if s.err = ""; code == codes.Error {
		s.err = Failure(description)
	}
}

// End implements oteltrace.Span: the store has the span from here on.
func (s *localSpan) End(opts ...oteltrace.SpanEndOption) {
	end := s.start.Add(time.Since(s.start)) // by the monotonic clock, where start has it
	if len(opts) > 0 {
		if cfg := oteltrace.NewSpanEndConfig(opts...); !cfg.Timestamp().IsZero() {
			end = cfg.Timestamp()
		}
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended, s.end = true, end
	if s.get(ComponentKey) == "" {
		s.attrs = setPair(s.attrs, string(ComponentKey), s.provider.component)
	}
	s.mu.Unlock()
	// Nobody changes it any more.
	if s.above == nil || s.above.provider.store != s.provider.store || s.namesObject() || !s.above.take(s) {
		s.provider.store.addLocal(s)
	}
}

// maxSteps bounds what waits for the span above it to end.
const maxSteps = 32

// take keeps a step for when the span itself ends, so that a write and its dozen
// steps are one entry of the store: what walks the heap would see little else
// than steps. It says no once the span has ended, or has many.
func (s *localSpan) take(step *localSpan) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || len(s.steps) >= maxSteps {
		return false
	}
	if s.steps == nil {
		s.steps = make([]*localSpan, 0, 12)
	}
	s.steps = append(s.steps, step)
	return true
}

// namesObject says whether the span is about an object of its own, by which it is
// looked for.
func (s *localSpan) namesObject() bool {
	if namesObject(s.attrs) {
		return true
	}
	for i := range s.events {
		if namesObject(s.events[i].attrs) {
			return true
		}
	}
	return false
}

func namesObject(attrs []pair) bool {
	for i := range attrs {
		switch attrs[i].key {
		case string(UIDKey), string(OwnerUIDKey), string(NameKey):
			return true
		}
	}
	return false
}

func (s *localSpan) get(k attribute.Key) string { return getPair(s.attrs, string(k)) }

func getPair(attrs []pair, key string) string {
	for i := range attrs {
		if attrs[i].key == key {
			return attrs[i].value
		}
	}
	return ""
}

// keys are those by which the span is found, as keysOf has them.
func (s *localSpan) keys(room []string) []string {
	keys := append(room, s.traceKey)
	keys = pairKeys(keys, s.attrs)
	for _, e := range s.events {
		keys = pairKeys(keys, e.attrs)
	}
	return keys
}

func pairKeys(keys []string, attrs []pair) []string {
	for _, k := range objectKeys(func(k attribute.Key) string { return getPair(attrs, string(k)) }) {
		keys = appendNew(keys, k)
	}
	return keys
}

func appendNew(keys []string, key string) []string {
	for _, k := range keys {
		if k == key {
			return keys
		}
	}
	return append(keys, key)
}
