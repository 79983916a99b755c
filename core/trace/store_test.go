// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/trace"
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

func journey(tb testing.TB, s *trace.Store, q trace.Query) *trace.Journey {
	tb.Helper()
	j, err := s.Journey(q)
	if err != nil {
		tb.Fatal(err)
	}
	return j
}

func pod(n int) trace.Query {
	return trace.Query{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("p%d", n)}
}

func podSpan(id string, n int, from float64) trace.Span {
	r := recorder{}
	r.span("", "apiserver", trace.Request, from, from+1, append(object("Pod", fmt.Sprintf("p%d", n), fmt.Sprintf("u%d", n), ""),
		trace.VerbKey.String("create"), trace.ResourceKey.String("pods"))...)
	r.spans[0].ID, r.spans[0].Trace = id, "t"+id
	return r.spans[0]
}

func TestStoreIsBounded(t *testing.T) {
	s := newStore(t, trace.StoreConfig{MaxSpans: 100, MaxPerObject: 10})
	for i := range 1000 {
		s.Add(podSpan(fmt.Sprint(i), i, float64(i)))
		s.Add(podSpan(fmt.Sprint(i), i, float64(i))) // exporters repeat themselves
	}
	if j := journey(t, s, pod(0)); j.Root != nil {
		t.Error("the oldest is still known")
	}
	j := journey(t, s, pod(950))
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
	if j := journey(t, s, pod(950)); j.Root == nil {
		t.Error("a busy object pushed out another")
	}
	j = journey(t, s, pod(5000))
	if j.Root == nil || len(j.Root.Steps) != 1 || len(j.Unknown) != 0 {
		t.Errorf("the busy object: %+v", j)
	}
	big := newStore(t, trace.StoreConfig{MaxBytes: 100_000})
	for i := range 100 {
		x := podSpan(fmt.Sprint(i), i, float64(i))
		x.Attrs["text"] = strings.Repeat("x", 10_000)
		big.Add(x)
	}
	if j := journey(t, big, pod(50)); j.Root != nil {
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
	j := journey(t, s, pod(1))
	if len(j.Unknown) == 0 || !strings.Contains(j.Unknown[0], "is not known") {
		t.Errorf("says %q", j.Unknown)
	}
}

// One component in the server's process, one outside: their spans meet.
func TestSpansOfTwoComponentsMeet(t *testing.T) {
	s := newStore(t, trace.StoreConfig{})
	srv := httptest.NewServer(trace.NewHandler(s))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()

	inside, stopInside := trace.NewProvider(t.Context(), "apiserver", s.Exporter())
	exporter, err := trace.NewExporter(srv.Client(), srv.URL, "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	outside, stopOutside := trace.NewProvider(t.Context(), "kubelet", exporter)

	ctx, request := inside.Start(t.Context(), trace.Request, trace.Object("Pod", "default", "p1", "u1"),
		oteltrace.WithAttributes(trace.VerbKey.String("create"), trace.StatusKey.Int(201)))
	_, validate := inside.Start(ctx, trace.AdmissionValidate,
		oteltrace.WithAttributes(trace.PluginKey.String("no-latest"), trace.DecisionKey.String("allow")))
	validate.End()
	request.End()
	_, start := outside.Start(t.Context(), trace.ContainerStart, trace.Object("Pod", "default", "p1", "u1"),
		oteltrace.WithAttributes(trace.ContainerKey.String("c")))
	start.AddEvent("pulled", oteltrace.WithAttributes(trace.ImageKey.String("i")))
	start.SetStatus(codes.Error, "no such file")
	start.End()
	for _, stop := range []func(context.Context) error{stopInside, stopOutside} {
		if err := stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := srv.Client().Get(srv.URL + trace.JourneyPath + "?kind=pod&namespace=default&name=p1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var j trace.Journey
	if err := json.NewDecoder(resp.Body).Decode(&j); err != nil {
		t.Fatal(err)
	}
	if len(j.Root.Steps) != 2 || len(j.Root.Steps[0].Steps) != 1 {
		t.Fatalf("got %+v", j.Root)
	}
	k := j.Root.Steps[1]
	if k.Component != "kubelet" || k.Error != "no such file" || len(k.Events) != 1 || k.Events[0].Attrs[string(trace.ImageKey)] != "i" ||
		j.Root.Steps[0].Component != "apiserver" {
		t.Fatalf("the kubelet's step arrived as %+v", k)
	}
}

// What any OpenTelemetry exporter sends is understood; the sample follows the
// example of the OTLP specification.
const otlpJSON = `{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"my.service"}}]},
"scopeSpans":[{"scope":{"name":"my.library","version":"1.0.0"},"spans":[
{"traceId":"5B8EFFF798038103D269B633813FC60C","spanId":"EEE19B7EC3C1B174",
"parentSpanId":"EEE19B7EC3C1B173","name":"reconcile",
"startTimeUnixNano":"1544712660000000000","endTimeUnixNano":"1544712661000000000","kind":2,
"attributes":[{"key":"k8s.object.kind","value":{"stringValue":"Pod"}},{"key":"k8s.object.namespace","value":{"stringValue":"default"}},
{"key":"k8s.object.name","value":{"stringValue":"p1"}},{"key":"k8s.object.uid","value":{"stringValue":"u1"}},{"key":"n","value":{"intValue":"5"}},
{"key":"a","value":{"arrayValue":{"values":[{"boolValue":true},{"doubleValue":1.5}]}}}],"somethingNew":1}]}]}]}`

func TestEndpoint(t *testing.T) {
	s := newStore(t, trace.StoreConfig{})
	h := trace.NewHandler(s)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(otlpJSON))
	_ = z.Close()
	var bomb bytes.Buffer
	z = gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 20<<20))
	_ = z.Close()
	for _, c := range []struct {
		name, method, path, contentType, encoding, body string
		status                                          int
		want                                            string
	}{
		{"JSON", "POST", trace.SpansPath, "application/json; charset=utf-8", "", otlpJSON, 200, "{}"},
		{"zipped", "POST", trace.SpansPath, "application/json", "gzip", zipped.String(), 200, "{}"},
		{"a span without identifier", "POST", trace.SpansPath, "application/json", "", `{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x"}]}]}]}`, 200, `"rejectedSpans":"1"`},
		{"empty protobuf", "POST", trace.SpansPath, "application/x-protobuf", "", "", 200, ""},
		{"no protobuf", "POST", trace.SpansPath, "application/x-protobuf", "", "hello", 400, "decode spans"},
		{"no JSON", "POST", trace.SpansPath, "application/json", "", "{", 400, "decode spans"},
		{"bad identifier", "POST", trace.SpansPath, "application/json", "", `{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"xyz"}]}]}]}`, 400, "traceId"},
		{"deep JSON", "POST", trace.SpansPath, "application/json", "", strings.Repeat("[", 1000) + strings.Repeat("]", 1000), 400, "nested"},
		{"other type", "POST", trace.SpansPath, "text/plain", "", "x", 415, "application/x-protobuf"},
		{"zip bomb", "POST", trace.SpansPath, "application/x-protobuf", "gzip", bomb.String(), 413, "larger than"},
		{"large", "POST", trace.SpansPath, "application/x-protobuf", "", strings.Repeat("x", 9<<20), 413, "large"},
		{"other encoding", "POST", trace.SpansPath, "application/json", "br", "x", 400, "gzip"},
		{"wrong method", "GET", trace.SpansPath, "", "", "", 405, ""},
		{"journey of nobody", "GET", trace.JourneyPath, "", "", "", 400, "both are needed"},
		{"journey", "GET", trace.JourneyPath + "?kind=Pod&namespace=default&name=p1", "", "", "", 200, `"n":"5"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body))
			r.Header.Set("Content-Type", c.contentType)
			r.Header.Set("Content-Encoding", c.encoding)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
				t.Errorf("got %d %s, want %d and %q", w.Code, w.Body, c.status, c.want)
			}
		})
	}
	if j := journey(t, s, pod(1)); len(j.Root.Steps) != 1 || j.Root.Steps[0].Component != "my.service" ||
		j.Root.Steps[0].Attrs["a"] != `["true" "1.5"]` {
		t.Errorf("got %+v", j.Root)
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

func TestLostSpansAreSaid(t *testing.T) {
	s := newStore(t, trace.StoreConfig{})
	release := make(chan struct{})
	h := trace.NewHandler(s)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-release
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()
	exporter, err := trace.NewExporter(srv.Client(), srv.URL, "scheduler")
	if err != nil {
		t.Fatal(err)
	}
	tracer, shutdown := trace.NewProvider(t.Context(), "scheduler", exporter)
	for range 20_000 {
		_, span := tracer.Start(t.Context(), trace.Schedule, trace.Object("Pod", "default", "p1", "u1"))
		span.End()
	}
	close(release)
	_, span := tracer.Start(t.Context(), trace.Schedule, trace.Object("Pod", "default", "p2", "u2"))
	for range 5 {
		if err := shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	span.End()
	j := journey(t, s, pod(1))
	if text := strings.Join(j.Unknown, " "); !strings.Contains(text, "steps of scheduler were lost") {
		t.Errorf("says %q", text)
	}
}

func TestShutdownDoesNotWaitForAServerThatHangs(t *testing.T) {
	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-hang
	}))
	defer srv.Close()
	defer close(hang)
	exporter, err := trace.NewExporter(srv.Client(), srv.URL, "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	tracer, shutdown := trace.NewProvider(t.Context(), "kubelet", exporter)
	_, span := tracer.Start(t.Context(), trace.Admit)
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_ = shutdown(ctx)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func FuzzSpansEndpoint(f *testing.F) {
	f.Add("application/json", []byte(otlpJSON))
	f.Add("application/x-protobuf", []byte{0x0a, 0x00})
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		s := newStore(t, trace.StoreConfig{MaxSpans: 10})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, trace.SpansPath, bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		trace.NewHandler(s).ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Fatalf("got %d", w.Code)
		}
		j := journey(t, s, pod(1))
		if err := trace.Render(io.Discard, j, trace.RenderOptions{}); err != nil {
			t.Fatal(err)
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
