// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
	"github.com/wasmplane/wasmplane/core/trace/otlp"
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

func masters(*http.Request) otlp.Sender {
	return otlp.Sender{User: "root", Groups: []string{"system:masters"}}
}

// One component in the server's process, one outside: their spans meet.
func TestSpansOfTwoComponentsMeet(t *testing.T) {
	s := newStore(t, trace.StoreConfig{})
	srv := httptest.NewServer(otlp.NewHandler(s, masters))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()

	inside, stopInside := trace.NewProvider(t.Context(), "apiserver", s.Exporter())
	exporter, err := otlp.NewExporter(srv.Client(), srv.URL, "kubelet")
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
	resp, err := srv.Client().Get(srv.URL + otlp.JourneyPath + "?kind=pod&namespace=default&name=p1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var j journey.Journey
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
	h := otlp.NewHandler(s, masters)
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
		{"JSON", "POST", otlp.SpansPath, "application/json; charset=utf-8", "", otlpJSON, 200, "{}"},
		{"zipped", "POST", otlp.SpansPath, "application/json", "gzip", zipped.String(), 200, "{}"},
		{"a span without identifier", "POST", otlp.SpansPath, "application/json", "", `{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x"}]}]}]}`, 200, `"rejectedSpans":"1"`},
		{"empty protobuf", "POST", otlp.SpansPath, "application/x-protobuf", "", "", 200, ""},
		{"no protobuf", "POST", otlp.SpansPath, "application/x-protobuf", "", "hello", 400, "decode spans"},
		{"no JSON", "POST", otlp.SpansPath, "application/json", "", "{", 400, "decode spans"},
		{"bad identifier", "POST", otlp.SpansPath, "application/json", "", `{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"xyz"}]}]}]}`, 400, "traceId"},
		{"deep JSON", "POST", otlp.SpansPath, "application/json", "", strings.Repeat("[", 1000) + strings.Repeat("]", 1000), 400, "nested"},
		{"other type", "POST", otlp.SpansPath, "text/plain", "", "x", 415, "application/x-protobuf"},
		{"zip bomb", "POST", otlp.SpansPath, "application/x-protobuf", "gzip", bomb.String(), 413, "larger than"},
		{"large", "POST", otlp.SpansPath, "application/x-protobuf", "", strings.Repeat("x", 9<<20), 413, "large"},
		{"other encoding", "POST", otlp.SpansPath, "application/json", "br", "x", 400, "gzip"},
		{"wrong method", "GET", otlp.SpansPath, "", "", "", 405, ""},
		{"journey of nobody", "GET", otlp.JourneyPath, "", "", "", 400, "both are needed"},
		{"journey", "GET", otlp.JourneyPath + "?kind=Pod&namespace=default&name=p1", "", "", "", 200, `"n":"5"`},
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
	if j := journeyOf(t, s, pod(1)); len(j.Root.Steps) != 1 || j.Root.Steps[0].Component != "my.service" ||
		j.Root.Steps[0].Attrs["a"] != `["true" "1.5"]` {
		t.Errorf("got %+v", j.Root)
	}
}

func TestLostSpansAreSaid(t *testing.T) {
	s := newStore(t, trace.StoreConfig{})
	release := make(chan struct{})
	h := otlp.NewHandler(s, masters)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-release
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()
	exporter, err := otlp.NewExporter(srv.Client(), srv.URL, "scheduler")
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
	j := journeyOf(t, s, pod(1))
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
	exporter, err := otlp.NewExporter(srv.Client(), srv.URL, "kubelet")
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

// Lists in lists of what has to be quoted: a body of a MiB must not become many.
func TestNestedListsStaySmall(t *testing.T) {
	value := `{"stringValue":"` + strings.Repeat(`\\`, 400<<10) + `"}`
	for range 5 {
		value = `{"arrayValue":{"values":[` + value + `]}}`
	}
	body := strings.Replace(otlpJSON, `{"stringValue":"Pod"}`, value, 1)
	if body == otlpJSON {
		t.Fatal("the sample has no such value")
	}
	h := otlp.NewHandler(newStore(t, trace.StoreConfig{}), masters)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, otlp.SpansPath, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; w.Code != http.StatusOK || took > 32<<20 {
		t.Errorf("%d %s, and %d MiB are allocated for a body of %d KiB", w.Code, w.Body, took>>20, len(body)>>10)
	}
}

func FuzzSpansEndpoint(f *testing.F) {
	f.Add("application/json", []byte(otlpJSON))
	f.Add("application/x-protobuf", []byte{0x0a, 0x00})
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		s := newStore(t, trace.StoreConfig{MaxSpans: 10})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, otlp.SpansPath, bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		otlp.NewHandler(s, masters).ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Fatalf("got %d", w.Code)
		}
		j := journeyOf(t, s, pod(1))
		if err := journey.Render(io.Discard, j, journey.RenderOptions{}); err != nil {
			t.Fatal(err)
		}
	})
}
