// SPDX-License-Identifier: Apache-2.0

package wasip2_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/workload/wasihttp"
	"github.com/wasmplane/wasmplane/plugins/workload/wasip2"
)

const types = "wasi:http/types"

// request makes a request of a component's, of which fields tells the header.
func (g *guest) request(authority, path string, fields ...any) any {
	g.t.Helper()
	headers := g.good(types, "[static]fields.from-list", append([]any{}, fields...))
	r := g.call(types, "[constructor]outgoing-request", headers)
	g.good(types, "[method]outgoing-request.set-scheme", r, canon.Some(enum(0)))
	g.good(types, "[method]outgoing-request.set-authority", r, canon.Some(authority))
	g.good(types, "[method]outgoing-request.set-path-with-query", r, canon.Some(path))
	return r
}

// send sends a request and waits for the response, or what is answered in its place.
func (g *guest) send(r any) canon.Variant {
	g.t.Helper()
	later := g.good("wasi:http/outgoing-handler", "handle", r, canon.None())
	p := g.call(types, "[method]future-incoming-response.subscribe", later)
	g.call(polls, "[method]pollable.block", p)
	g.drop(p)
	v, _ := g.call(types, "[method]future-incoming-response.get", later).(canon.Variant)
	once, _ := v.Value.(canon.Variant)
	answer, is := once.Value.(canon.Variant)
	if v.Case != 1 || once.Case != 0 || !is {
		g.t.Fatalf("the response is %v", v)
	}
	g.drop(later)
	return answer
}

func TestAComponentSendsRequests(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/", http.StatusFound)
			return
		}
		w.Header().Add("X-Two", "a")
		w.Header().Add("X-Two", "b")
		w.Header().Set("Trailer", "X-End")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, strings.Join([]string{r.Method, r.URL.String(), r.Header.Get("X-One"), r.UserAgent(), string(b)}, " "))
		w.Header().Set("X-End", "over")
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	g := newGuest(t, wasip2.Config{})

	r := g.request(host, "/path?q=1", []any{"X-One", []byte("1")})
	g.good(types, "[method]outgoing-request.set-method", r, enum(2))
	body := g.good(types, "[method]outgoing-request.body", r)
	out := g.good(types, "[method]outgoing-body.write", body)
	g.good(streams, "[method]output-stream.blocking-write-and-flush", out, []byte("the body"))
	g.drop(out)
	g.good(types, "[static]outgoing-body.finish", body, canon.None())
	response := g.send(r).Value
	if got := g.call(types, "[method]incoming-response.status", response); got != uint16(http.StatusTeapot) {
		t.Errorf("status %v", got)
	}
	headers := g.call(types, "[method]incoming-response.headers", response)
	if got := g.call(types, "[method]fields.get", headers, "x-two"); !reflect.DeepEqual(got, []any{[]byte("a"), []byte("b")}) {
		t.Errorf("fields %s", got)
	}
	if got, _ := g.call(types, "[method]fields.append", headers, "x", []byte("y")).(canon.Variant); got.Case != 1 ||
		!reflect.DeepEqual(got.Value, enum(2)) {
		t.Errorf("the fields of what was received can be changed: %v", got)
	}
	incoming := g.good(types, "[method]incoming-response.consume", response)
	stream := g.good(types, "[method]incoming-body.stream", incoming)
	if got := g.all(stream); got != "POST /path?q=1 1  the body" {
		t.Errorf("body %q", got)
	}
	g.drop(stream)
	trailers := g.call(types, "[static]incoming-body.finish", incoming)
	some, _ := g.call(types, "[method]future-trailers.get", trailers).(canon.Variant)
	found := some.Value.(canon.Variant).Value.(canon.Variant).Value.(canon.Variant) //nolint:forcetypeassert // option<result<result<option<...
	if found.Case != 1 || !reflect.DeepEqual(g.call(types, "[method]fields.get", found.Value, "x-end"), []any{[]byte("over")}) {
		t.Errorf("trailers %v", found)
	}

	// What is to be done about a redirect is the component's to say.
	if got := g.call(types, "[method]incoming-response.status", g.send(g.request(host, "/moved")).Value); got != uint16(http.StatusFound) {
		t.Errorf("a redirect answers %v", got)
	}
	server.Close()
	if got := g.send(g.request(host, "/")); got.Case != 1 || !reflect.DeepEqual(got.Value, enum(6)) {
		t.Errorf("where nobody listens: %v", got)
	}
}

// TestAResponseIsDropped: a component that wants no more than the status leaves no connection behind.
func TestAResponseIsDropped(t *testing.T) {
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
		close(gone)
	}))
	defer server.Close()
	g := newGuest(t, wasip2.Config{})
	g.drop(g.send(g.request(strings.TrimPrefix(server.URL, "http://"), "/")).Value)
	<-gone
}

func TestBadRequestsAreRefused(t *testing.T) {
	g := newGuest(t, wasip2.Config{})
	fields := g.call(types, "[constructor]fields")
	for name, c := range map[string]struct {
		field, value string
		want         uint32
	}{
		"no name":               {"", "x", 0},
		"a line break":          {"x", "a\r\nb: c", 0},
		"the connection's":      {"Transfer-Encoding", "chunked", 1},
		"another server's name": {"host", "example.com", 1},
	} {
		if got := g.code(types, "[method]fields.append", fields, c.field, []byte(c.value)); got != c.want {
			t.Errorf("%s: error %d, want %d", name, got, c.want)
		}
	}
	r := g.request("example.com", "/")
	for name, args := range map[string][]any{
		"set-authority":       {canon.Some("example.com/path")},
		"set-method":          {canon.Variant{Case: 9, Value: "NO METHOD"}},
		"set-path-with-query": {canon.Some("/\x00")},
	} {
		if v, _ := g.call(types, "[method]outgoing-request."+name, append([]any{r}, args...)...).(canon.Variant); v.Case != 1 {
			t.Errorf("%s(%v) is taken", name, args)
		}
	}
	ftp := g.request("example.com", "/")
	g.good(types, "[method]outgoing-request.set-scheme", ftp, canon.Some(canon.Variant{Case: 2, Value: "ftp"}))
	if got := g.code("wasi:http/outgoing-handler", "handle", ftp, canon.None()); got != 19 {
		t.Errorf("another scheme: %d", got)
	}
}

// log remembers what was reported.
type log struct{ lines chan string }

func (l log) Write(b []byte) (int, error) {
	l.lines <- string(b)
	return len(b), nil
}

// TestAComponentServes: each request has an instance of its own, and what a component does wrong neither
// passes for an answer nor ends the server.
func TestAComponentServes(t *testing.T) {
	for name, c := range map[string]struct {
		handler string
		status  int // 0 = the connection ends in the middle
		body    string
		report  string
	}{
		"an answer":         {ct.HTTPAnswer, http.StatusOK, "hell1\n", ""},
		"without a body":    {`(call $set (local.get $out) (i32.const 0) (call $response (call $fields)))`, http.StatusOK, "", ""},
		"no answer":         {``, http.StatusInternalServerError, "the component failed to answer\n", "without a response"},
		"an error":          {`(call $set (local.get $out) (i32.const 1) (i32.const 5))`, http.StatusInternalServerError, "the component failed to answer\n", "an error"},
		"a trap":            {`unreachable`, http.StatusInternalServerError, "the component failed to answer\n", "unreachable"},
		"a trap, after all": {ct.HTTPAnswer + `unreachable`, http.StatusOK, "hell1\n", "unreachable"},
		"half an answer":    {ct.HTTPHalfAnswer, 0, "hell1\n", ""},
		"half, by a trap":   {ct.HTTPHalfAnswer + `unreachable`, 0, "hell1\n", "unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			reports := log{make(chan string, 10)}
			s, err := wasip2.NewServer(t.Context(), linked(t, ct.HTTPServer(c.handler)), wasip2.Config{Err: reports}, 0)
			if err != nil {
				t.Fatal(err)
			}
			address := served(t, s)
			for range 3 {
				status, body, err := get(t, address)
				if body != c.body || (err != nil) != (c.status == 0) || err == nil && status != c.status {
					t.Errorf("answered %d %q, %v; want %d %q", status, body, err, c.status, c.body)
				}
				if c.report != "" {
					if got := <-reports.lines; !strings.Contains(got, c.report) {
						t.Errorf("reported %q, want %q", got, c.report)
					}
				}
			}
			if len(reports.lines) > 0 {
				t.Errorf("reported besides: %q", <-reports.lines)
			}
		})
	}
}

// TestAnAnswerDoesNotWaitForTheRequest: a component may answer before the client has sent all of its body.
func TestAnAnswerDoesNotWaitForTheRequest(t *testing.T) {
	s, err := wasip2.NewServer(t.Context(), linked(t, ct.HTTPServer(ct.HTTPAnswer)), wasip2.Config{Err: io.Discard}, 0)
	if err != nil {
		t.Fatal(err)
	}
	address := served(t, s)
	in, out := io.Pipe()
	defer out.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, in)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if b, err := io.ReadAll(answer.Body); err != nil || string(b) != "hell1\n" {
		t.Errorf("answered %q, %v", b, err)
	}
}

// served serves until the test ends, and answers where.
func served(t *testing.T, s *wasihttp.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := run.Go("server", func() error { return s.Serve(ctx, l) })
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

func get(t *testing.T, address string) (status int, body string, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b), errors.Join(err, answer.Body.Close())
}
