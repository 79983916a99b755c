// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	oteltrace "go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/lent"
)

// InMemory is a configuration whose requests go straight to handler as the given
// user. The handler trusts the user in the request's context, so it must be the
// server's local handler, which nothing outside the process can reach.
func InMemory(handler http.Handler, as user.Info, component string) *rest.Config {
	return unlimited(&rest.Config{
		Host:      "http://in-memory",
		Transport: &transport{handler: handler, user: authenticated(as)},
	}, component)
}

// authenticated adds the group that everybody has whom an authenticator knows, and
// which policies give discovery to: no authenticator runs on this way in.
func authenticated(u user.Info) user.Info {
	if slices.Contains(u.GetGroups(), user.AllAuthenticated) {
		return u
	}
	return &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Extra: u.GetExtra(),
		Groups: append(slices.Clone(u.GetGroups()), user.AllAuthenticated),
	}
}

type transport struct {
	handler http.Handler
	user    user.Info
	loans   loans
}

// crossing is the context of a request on the server's side: it ends with the
// client's, and hands on the client's span, as headers would. Other values stay
// behind: a client that is called while the server answers somebody has the
// context of that request, whose audit record, warnings and user are not this one's.
type crossing struct{ context.Context }

// Value implements context.Context.
func (crossing) Value(any) any { return nil }

// AfterFunc spares package context the goroutine that it would watch a foreign
// context with.
func (c crossing) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(c.Context, f) }

func (t *transport) context(client context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(crossing{client})
	ctx = oteltrace.ContextWithSpan(ctx, oteltrace.SpanFromContext(client))
	return genericrequest.WithUser(ctx, t.user), cancel
}

// RoundTrip implements http.RoundTripper. The handler runs on its own goroutine,
// which ends with the request: when the handler returns, when the request's
// context ends, or when the response body is closed.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := t.context(req.Context())
	w := &response{header: http.Header{}, started: make(chan struct{}), cancel: cancel}
	w.cond = sync.NewCond(&w.mu)
	stop := context.AfterFunc(ctx, w.abort)
	accept, borrows := strings.CutPrefix(req.Header.Get("Accept"), lent.MediaType+",")
	if borrows {
		w.loans = &t.loans
		ctx = lent.With(ctx, w)
	}
	server := req.Clone(ctx)
	if borrows {
		server.Header.Set("Accept", accept) // what an answer that lends nothing is in
	}
	server.RequestURI = req.URL.RequestURI()
	server.RemoteAddr = "127.0.0.1:0"
	if server.Body == nil {
		server.Body = http.NoBody
	}
	go func() {
		defer stop()
		defer w.finish()
		defer func() {
			// net/http's convention for "drop the connection".
			if p := recover(); p != nil {
				if p != http.ErrAbortHandler { //nolint:errorlint // a panic value, compared by identity as net/http does
					panic(p)
				}
				w.abort()
			}
		}()
		t.handler.ServeHTTP(w, server)
	}()
	select {
	case <-w.started:
	case <-req.Context().Done():
		cancel()
		return nil, req.Context().Err()
	}
	return &http.Response{
		Status:        http.StatusText(w.status),
		StatusCode:    w.status,
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
		Header:        w.sent,
		Body:          w,
		ContentLength: -1,
		Request:       req,
	}, nil
}

// maxBuffered bounds what a handler may write ahead of its reader.
const maxBuffered = 1 << 20

// keptBuffer is what an answer that has been read keeps for what follows. Most are watches, which begin with all objects and go on with
// nothing for hours; a node has 150 of them.
const keptBuffer = 4 << 10

// response is the http.ResponseWriter of the handler and the body of the client.
type response struct {
	header  http.Header
	sent    http.Header // header as of the first write
	status  int
	started chan struct{}
	cancel  context.CancelFunc

	mu      sync.Mutex
	cond    *sync.Cond
	buf     bytes.Buffer
	wrote   bool
	done    bool // the handler has returned
	aborted bool // the client has gone

	loans    *loans // of the client's transport; nil = it takes bytes
	number   uint64 // of this answer among the loans; 0 = it has lent nothing yet
	waiting  []loan // lent and not taken, oldest first
	lentSize int    // of those that wait
}

// Header implements http.ResponseWriter.
func (r *response) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(status)
}

func (r *response) writeHeader(status int) {
	if r.wrote {
		return
	}
	r.wrote, r.status, r.sent = true, status, r.header.Clone()
	close(r.started)
}

// Write implements http.ResponseWriter. It blocks while the reader is far behind.
func (r *response) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(http.StatusOK)
	// An empty buffer is always written to: what was lent is taken by whoever has read the reference to it.
	for r.buf.Len() > 0 && r.buf.Len()+r.lentSize > maxBuffered && !r.aborted {
		r.cond.Wait()
	}
	if r.aborted {
		return 0, io.ErrClosedPipe
	}
	r.cond.Broadcast()
	return r.buf.Write(p)
}

// Flush implements http.Flusher; what is written can be read at once.
func (r *response) Flush() { r.WriteHeader(http.StatusOK) }

func (r *response) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(http.StatusOK)
	r.done = true
	r.cond.Broadcast()
}

func (r *response) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.aborted = true
	r.cond.Broadcast()
}

// Read implements io.Reader for the client.
func (r *response) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.buf.Len() == 0 && !r.done && !r.aborted {
		r.cond.Wait()
	}
	switch {
	case r.buf.Len() > 0:
		n, err := r.buf.Read(p)
		if r.buf.Len() == 0 && r.buf.Cap() > keptBuffer {
			r.buf = bytes.Buffer{}
		}
		r.cond.Broadcast()
		return n, err
	case r.aborted:
		return 0, context.Canceled
	}
	return 0, io.EOF
}

// Close implements io.Closer for the client; the handler's context ends.
func (r *response) Close() error {
	r.cancel()
	r.abort()
	r.takeBack()
	return nil
}
