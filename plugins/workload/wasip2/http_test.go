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

// server is a component whose handler has this body. It has a request and a response-outparam ($in, $out), and 16 bytes of results
// at 0; a text of 6 bytes lies at 100, and a number that counts requests of this instance at 200.
func server(handler string) *ct.Component {
	c := ct.New()
	io := &ct.InstanceType{}
	stream := io.Resource("output-stream")
	bytes := ct.Ref(io.Type(byte(0x70), ct.U8))
	lent := ct.Ref(io.Type(byte(0x68), stream))
	written := ct.Ref(io.Type(byte(0x6a), byte(0), byte(1), ct.U8))
	io.Func("[method]output-stream.blocking-write-and-flush", written, lent, bytes)
	streams := c.ImportInstance("wasi:io/streams@0.2.0", c.InstanceType(io))
	streamType := c.Alias(ct.TypeSort, streams, "output-stream")

	it := &ct.InstanceType{}
	it.Outer(1, streamType)
	own := func(resource int) ct.Type { return ct.Ref(it.Type(byte(0x69), resource)) }
	borrow := func(resource int) ct.Type { return ct.Ref(it.Type(byte(0x68), resource)) }
	fields, response := it.Resource("fields"), it.Resource("outgoing-response")
	body, outparam := it.Resource("outgoing-body"), it.Resource("response-outparam")
	it.Resource("incoming-request")
	given := func(t ct.Type) ct.Type { return ct.Ref(it.Type(byte(0x6a), byte(1), t, byte(0))) }
	it.Func("[constructor]fields", own(fields))
	it.Func("[constructor]outgoing-response", own(response), own(fields))
	it.Func("[method]outgoing-response.body", given(own(body)), borrow(response))
	it.Func("[method]outgoing-body.write", given(own(0)), borrow(body))
	set := ct.Ref(it.Type(byte(0x6a), byte(1), own(response), byte(1), ct.U8))
	it.Func("[static]response-outparam.set", "", own(outparam), set)
	trailers := ct.Ref(it.Type(byte(0x6b), own(fields)))
	finished := ct.Ref(it.Type(byte(0x6a), byte(0), byte(1), ct.U8))
	it.Func("[static]outgoing-body.finish", finished, own(body), trailers)
	types := c.ImportInstance("wasi:http/types@0.2.0", c.InstanceType(it))

	memory := c.Instantiate(c.Core(`(module (memory (export "memory") 1) (data (i32.const 100) "hello\n"))`))
	mem := c.Memory(memory, "memory")
	var imports []ct.Arg
	lower := func(instance int, name, as string, opts ...ct.Option) {
		imports = append(imports, ct.Arg{Name: as, Sort: 0, Index: c.Lower(c.Alias(ct.Func, instance, name), opts...)})
	}
	lower(types, "[constructor]fields", "fields")
	lower(types, "[constructor]outgoing-response", "response")
	lower(types, "[method]outgoing-response.body", "body", ct.Mem(mem))
	lower(types, "[method]outgoing-body.write", "write", ct.Mem(mem))
	lower(types, "[static]response-outparam.set", "set")
	lower(types, "[static]outgoing-body.finish", "finish", ct.Mem(mem))
	lower(streams, "[method]output-stream.blocking-write-and-flush", "put", ct.Mem(mem))
	main := c.Instantiate(c.Core(`(module
  (import "h" "fields" (func $fields (result i32)))
  (import "h" "response" (func $response (param i32) (result i32)))
  (import "h" "body" (func $body (param i32 i32)))
  (import "h" "write" (func $write (param i32 i32)))
  (import "h" "set" (func $set (param i32 i32 i32)))
  (import "h" "finish" (func $finish (param i32 i32 i32 i32)))
  (import "h" "put" (func $put (param i32 i32 i32 i32)))
  (import "m" "memory" (memory 1))
  (func (export "handle") (param $in i32) (param $out i32) (local $r i32) (local $b i32) (local $s i32)
    (i32.store8 (i32.const 200) (i32.add (i32.load8_u (i32.const 200)) (i32.const 1)))
    `+handler+`))`), ct.Arg{Name: "h", Index: c.Bundle(imports...)}, ct.Arg{Name: "m", Index: memory})
	in := c.Own(c.Alias(ct.TypeSort, types, "incoming-request"))
	out := c.Own(c.Alias(ct.TypeSort, types, "response-outparam"))
	handle := c.Lift(c.CoreFunc(main, "handle"), c.FuncType("", in, out))
	c.Raw(5, 1, byte(1), 1, byte(0), "handle", ct.Func, handle) // the first instance of its own, after two imports
	c.Export("wasi:http/incoming-handler@0.2.0", ct.Instances, 2)
	return c
}

const (
	begin = `(local.set $r (call $response (call $fields)))
    (call $body (local.get $r) (i32.const 0)) (local.set $b (i32.load (i32.const 4)))
    (call $set (local.get $out) (i32.const 0) (local.get $r))
    (call $write (local.get $b) (i32.const 0)) (local.set $s (i32.load (i32.const 4)))
    (i32.store8 (i32.const 104) (i32.add (i32.const 48) (i32.load8_u (i32.const 200))))
    (call $put (local.get $s) (i32.const 100) (i32.const 6) (i32.const 0))`
	finish = `(call $finish (local.get $b) (i32.const 0) (i32.const 0) (i32.const 0))`
)

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
		"an answer":         {begin + finish, http.StatusOK, "hell1\n", ""},
		"without a body":    {`(call $set (local.get $out) (i32.const 0) (call $response (call $fields)))`, http.StatusOK, "", ""},
		"no answer":         {``, http.StatusInternalServerError, "the component failed to answer\n", "without a response"},
		"an error":          {`(call $set (local.get $out) (i32.const 1) (i32.const 5))`, http.StatusInternalServerError, "the component failed to answer\n", "an error"},
		"a trap":            {`unreachable`, http.StatusInternalServerError, "the component failed to answer\n", "unreachable"},
		"a trap, after all": {begin + finish + `unreachable`, http.StatusOK, "hell1\n", "unreachable"},
		"half an answer":    {begin, 0, "hell1\n", ""},
		"half, by a trap":   {begin + `unreachable`, 0, "hell1\n", "unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			reports := log{make(chan string, 10)}
			s, err := wasip2.NewServer(t.Context(), linked(t, server(c.handler)), wasip2.Config{Err: reports}, 0)
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
	s, err := wasip2.NewServer(t.Context(), linked(t, server(begin+finish)), wasip2.Config{Err: io.Discard}, 0)
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
