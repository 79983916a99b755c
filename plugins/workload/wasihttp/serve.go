// SPDX-License-Identifier: Apache-2.0

package wasihttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/workload/wasiio"
)

// Bounds of the server.
const (
	mostInstances = 16
	mostHeaders   = 64 << 10
	headerPatient = 10 * time.Second
	idlePatient   = 2 * time.Minute
)

// Config is what a server is made with.
type Config struct {
	// World makes what an instance has.
	World func() *wasiio.Table
	// Log is told what no client is told.
	Log io.Writer
	// Memory bounds how many instances there are at a time, by what the first of them has, in bytes; 0 = no
	// bound but a constant.
	Memory int64
}

// Server serves HTTP by a component that exports wasi:http/incoming-handler. Each request has an instance of its own,
// as the interface's other hosts do it: what one request leaves behind, no other sees.
type Server struct {
	linked *link.Linked
	cfg    Config
	handle *link.Func
	places chan struct{}
	spare  chan *instance
}

// instance is one that nobody has called.
type instance struct {
	in    *link.Instance
	world *wasiio.Table
}

func (i *instance) close(ctx context.Context) {
	i.world.Close()
	_ = i.in.Close(ctx)
}

// Serves says whether a component is an HTTP server.
func Serves(p *link.Program) bool { return wasiio.Export(p, incomingHandler, "handle") != nil }

// NewServer makes a server, and its first instance.
func NewServer(ctx context.Context, l *link.Linked, cfg Config) (*Server, error) {
	s := &Server{linked: l, cfg: cfg, handle: wasiio.Export(l.Program(), incomingHandler, "handle"), spare: make(chan *instance, 1)}
	if s.handle == nil {
		return nil, fmt.Errorf("the component does not export %s%s", incomingHandler, wasiio.Version)
	}
	first, err := s.make(ctx)
	if err != nil {
		return nil, err
	}
	places := mostInstances
	if size := first.size(); cfg.Memory > 0 && size > 0 {
		places = int(min(mostInstances, max(1, cfg.Memory/2/size)))
	}
	s.places = make(chan struct{}, places)
	s.spare <- first
	return s, nil
}

func (s *Server) make(ctx context.Context) (*instance, error) {
	w := s.cfg.World()
	in, err := s.linked.Instantiate(ctx, link.Config{Data: w})
	if err != nil {
		return nil, err
	}
	return &instance{in, w}, nil
}

// size are the bytes of an instance's memories.
func (i *instance) size() int64 {
	var sum int64
	for _, m := range i.in.Modules() {
		for name := range m.ExportedMemoryDefinitions() {
			sum += int64(m.ExportedMemory(name).Size())
		}
	}
	return sum
}

// Serve serves on the listeners until the context ends, and then lets the requests end that are on their way.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	defer s.closeSpare(ctx)
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerPatient, IdleTimeout: idlePatient, MaxHeaderBytes: mostHeaders,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	var tasks run.Tasks
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		tasks.Go("http server", func() { failed <- server.Serve(l) })
	}
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	// How long requests may take is decided by who ends the process.
	err = errors.Join(err, server.Shutdown(context.WithoutCancel(ctx)))
	tasks.Wait()
	return err
}

// closeSpare waits for those that are made.
func (s *Server) closeSpare(ctx context.Context) {
	for range cap(s.places) {
		s.places <- struct{}{}
	}
	select {
	case i := <-s.spare:
		i.close(ctx)
	default:
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	select {
	case s.places <- struct{}{}:
	case <-in.Context().Done():
		return
	}
	i, err := s.take(in.Context())
	if err != nil {
		<-s.places
		s.report(err)
		http.Error(out, "the component could not be instantiated", http.StatusInternalServerError)
		return
	}
	// Else the first byte of an answer waits for what is left of the request, and drops it. HTTP/2 does neither.
	_ = http.NewResponseController(out).EnableFullDuplex()
	e := &exchange{server: s, instance: i, set: make(chan struct{})}
	done := run.Go("a request", func() error { return e.call(in) })
	defer s.leave(in.Context(), i)
	select {
	case <-e.set:
	case <-done:
	}
	failed := e.answer(out)
	if err := cmp.Or(<-done, e.err); err != nil {
		s.report(err)
	}
	if failed {
		panic(http.ErrAbortHandler) // the client must not take half an answer for a whole one
	}
}

// take is an instance for one request.
func (s *Server) take(ctx context.Context) (*instance, error) {
	select {
	case i := <-s.spare:
		return i, nil
	default:
		return s.make(context.WithoutCancel(ctx))
	}
}

// leave ends a request's instance, and its place once there is one for the next request: the end of the answer, which
// the client has when the handler returns, doesn't wait for that.
func (s *Server) leave(ctx context.Context, i *instance) {
	i.close(ctx)
	run.Go("an instance for the next request", func() error {
		defer func() { <-s.places }()
		s.refill(ctx)
		return nil
	})
}

// refill makes an instance for the next request, so that it doesn't wait for that.
func (s *Server) refill(ctx context.Context) {
	if len(s.spare) > 0 {
		return
	}
	i, err := s.make(context.WithoutCancel(ctx))
	if err != nil {
		return // the next request's to tell
	}
	select {
	case s.spare <- i:
	default:
		i.close(ctx)
	}
}

// report writes to the log what no client is told.
func (s *Server) report(err error) { fmt.Fprintln(s.cfg.Log, "wasm: a request failed:", err) }

// exchange is one request with its response.
type exchange struct {
	server   *Server
	instance *instance

	once     sync.Once
	set      chan struct{} // closed when there is a response, or will be none
	response *response
	err      error
}

func (e *exchange) give(r *response, err error) {
	e.once.Do(func() {
		e.response, e.err = r, err
		close(e.set)
	})
}

// call lets the component handle the request, to its end.
func (e *exchange) call(in *http.Request) error {
	w := e.instance.world
	c := &link.Call{Context: in.Context(), Instance: e.instance.in}
	r := &request{
		method: in.Method, scheme: "http", path: in.URL.RequestURI(), authority: in.Host, headers: received(in.Header),
		body: arriving(in.Body, func() http.Header { return in.Trailer }, func() {}),
	}
	if in.Host != "" {
		r.headers.list = append(r.headers.list, field{"host", in.Host})
	}
	_, err := e.instance.in.Call(in.Context(), e.server.handle,
		w.Give(c, httpTypes, "incoming-request", r), w.Give(c, httpTypes, "response-outparam", &outparam{set: e.give}))
	reason := err
	if reason == nil {
		reason = errors.New("the component returned without a response")
	}
	e.give(nil, reason) // has no effect after a response, as the next line has none on a body that is finished
	if e.response != nil && e.response.body != nil {
		e.response.body.sink.Finish(errUnfinished)
	}
	return err
}

// answer writes the response. failed says that its rest is missing.
func (e *exchange) answer(out http.ResponseWriter) (failed bool) {
	<-e.set
	if e.response == nil {
		http.Error(out, "the component failed to answer", http.StatusInternalServerError)
		return false
	}
	for name, values := range e.response.headers.header() {
		out.Header()[name] = values
	}
	if out.Header()["Content-Type"] == nil {
		out.Header()["Content-Type"] = nil // none, and not a guessed one
	}
	out.WriteHeader(e.response.status)
	body := e.response.body
	if body == nil {
		return false
	}
	if err := copyOut(out, body.sink); err != nil {
		return true
	}
	if body.trailers != nil {
		for _, f := range body.trailers.list {
			out.Header().Add(http.TrailerPrefix+f.name, f.value)
		}
	}
	return false
}

// buffers are for what is on its way from components to clients. Made for each response they were two thirds of what the
// collector had to take away again.
var buffers = sync.Pool{New: func() any { return new([wasiio.Most]byte) }}

// copyOut hands on what the component writes as soon as it is there.
func copyOut(out http.ResponseWriter, body *wasiio.Pipe) error {
	flusher, _ := out.(http.Flusher)
	buffer := buffers.Get().(*[wasiio.Most]byte) //nolint:forcetypeassert // the pool has nothing else
	defer buffers.Put(buffer)
	b := buffer[:]
	for {
		n, err := body.Read(b)
		if n > 0 {
			if _, err := out.Write(b[:n]); err != nil {
				body.Abandon(err)
				return err
			}
			if flusher != nil {
				flusher.Flush()
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
