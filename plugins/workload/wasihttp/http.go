// SPDX-License-Identifier: Apache-2.0

// Package wasihttp is wasi:http of WASI 0.2: requests that a component sends, and a server of those that it handles.
package wasihttp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/workload/wasiio"
)

const (
	httpTypes       = "wasi:http/types"
	outgoingHandler = "wasi:http/outgoing-handler"
	incomingHandler = "wasi:http/incoming-handler"
)

// Cases of wasi:http/types.error-code that are answered here.
const (
	httpNameUnknown     = 1
	httpUnreachable     = 5
	httpRefused         = 6
	httpTerminated      = 7
	httpConnectTimeout  = 8
	httpTLS             = 12
	httpCertificate     = 13
	httpInvalidMethod   = 18
	httpInvalidURI      = 19
	httpIncomplete      = 25
	httpResponseTimeout = 33
	httpInternal        = 38
)

// field is a header field.
type field struct{ name, value string }

// fields are the header fields, or trailers, of a message in their order.
type fields struct {
	list   []field
	frozen bool // of a message that was received, or sent
}

// mostFields bounds what a component collects in one list.
const mostFields = 1024

// refused are the fields that belong to the connection, which is the host's.
var refused = []string{
	"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "host", "http2-settings", "te", "trailer",
}

// Cases of header-error.
const (
	headerSyntax    = 0
	headerForbidden = 1
	headerImmutable = 2
)

// add adds a field; the result is a header-error.
func (f *fields) add(name string, values ...string) any {
	name = strings.ToLower(name)
	switch {
	case f.frozen:
		return canon.Error(wasiio.Enum(headerImmutable))
	case !httpguts.ValidHeaderFieldName(name):
		return canon.Error(wasiio.Enum(headerSyntax))
	case slices.Contains(refused, name):
		return canon.Error(wasiio.Enum(headerForbidden))
	case len(f.list)+len(values) > mostFields:
		canon.Fail("it collects more than %d header fields", mostFields)
	}
	for _, v := range values {
		if !httpguts.ValidHeaderFieldValue(v) {
			return canon.Error(wasiio.Enum(headerSyntax))
		}
	}
	for _, v := range values {
		f.list = append(f.list, field{name, v})
	}
	return canon.OK(nil)
}

func (f *fields) get(name string) []any {
	out := []any{}
	for _, h := range f.list {
		if strings.EqualFold(h.name, name) {
			out = append(out, []byte(h.value))
		}
	}
	return out
}

func (f *fields) remove(name string) any {
	if f.frozen {
		return canon.Error(wasiio.Enum(headerImmutable))
	}
	f.list = slices.DeleteFunc(f.list, func(h field) bool { return strings.EqualFold(h.name, name) })
	return canon.OK(nil)
}

func (f *fields) header() http.Header {
	out := http.Header{}
	for _, h := range f.list {
		out.Add(h.name, h.value)
	}
	return out
}

// received are the fields of a message that came in.
func received(h http.Header) *fields {
	f := &fields{frozen: true}
	for name, values := range h {
		for _, v := range values {
			f.list = append(f.list, field{strings.ToLower(name), v})
		}
	}
	return f
}

// request is one that the component has received, or sends.
type request struct {
	method, scheme string
	path           string // with its query; "" = none
	authority      string
	headers        *fields
	body           *body
	taken          bool
}

// response is one that the component has received, or sends.
type response struct {
	status  int
	headers *fields
	body    *body
	taken   bool
}

// End is that of a response whose body nobody has asked for, which would come in for ever.
func (r *response) End() {
	if r.body != nil && !r.taken {
		r.body.End()
	}
}

// body is that of a message: an incoming one fills the pipe by itself, an outgoing one is filled by the component.
type body struct {
	pipe     *wasiio.PipeSource
	sink     *wasiio.Pipe
	taken    bool
	trailers *fields
	incoming func() http.Header // the trailers, after the end
	closing  func()             // of an incoming one
	request  bool
}

// end is that of a body which nobody has finished.
func (b *body) End() {
	if b.sink != nil {
		b.sink.Finish(errUnfinished)
	}
	if b.pipe != nil {
		b.pipe.End()
		b.closing()
	}
}

var errUnfinished = errors.New("the component did not finish the body")

// options are the time-outs of a request: that of its first byte; 0 = none.
type options struct{ first time.Duration }

// later is a response that does not have to be there yet.
type later struct {
	wasiio.Signal
	answer *response
	err    error
	done   bool
	taken  bool
	cancel context.CancelCauseFunc
}

func (l *later) Ready() (bool, <-chan struct{}) {
	l.Lock()
	defer l.Unlock()
	return l.done, l.Watch()
}

func (l *later) End() {
	if !l.taken {
		l.cancel(errors.New("the component has dropped the response"))
	}
}

// trailers are those of a body that has been read.
type trailers struct {
	wasiio.Always
	fields *fields
	taken  bool
}

// outparam takes the response to a request.
type outparam struct{ set func(*response, error) }

func (o *outparam) End() { o.set(nil, errors.New("the component gave no response")) }

func headersOf(w *wasiio.Table, c *link.Call, f *fields) any {
	return w.Give(c, httpTypes, "fields", f)
}

// methodsOf are functions of a resource: each has the resource as its first argument.
func methodsOf[T any](name string, of map[string]func(v T, w *wasiio.Table, c *link.Call, args []any) any) map[string]wasiio.Function {
	out := map[string]wasiio.Function{}
	for method, f := range of {
		out["[method]"+name+"."+method] = func(w *wasiio.Table, c *link.Call, args []any) any {
			return f(wasiio.Resource[T](w, args, 0), w, c, args)
		}
	}
	return wasiio.In(httpTypes, out)
}

// Functions are those of wasi:http.
var Functions = wasiio.Join(
	wasiio.In(httpTypes, map[string]wasiio.Function{
		"[constructor]fields": func(w *wasiio.Table, c *link.Call, _ []any) any { return headersOf(w, c, &fields{}) },
		"[static]fields.from-list": func(w *wasiio.Table, c *link.Call, args []any) any {
			f := &fields{}
			for _, entry := range link.Arg[[]any](args, 0) {
				pair, _ := entry.([]any)
				if r, _ := f.add(link.Arg[string](pair, 0), string(link.Arg[[]byte](pair, 1))).(canon.Variant); r.Case != 0 {
					return r
				}
			}
			return canon.OK(headersOf(w, c, f))
		},
		"[constructor]outgoing-request": func(w *wasiio.Table, c *link.Call, args []any) any {
			f := wasiio.Owned[*fields](w, args, 0)
			f.frozen = true
			return w.Give(c, httpTypes, "outgoing-request", &request{method: http.MethodGet, headers: f})
		},
		"[constructor]request-options": func(w *wasiio.Table, c *link.Call, _ []any) any {
			return w.Give(c, httpTypes, "request-options", &options{})
		},
		"[constructor]outgoing-response": func(w *wasiio.Table, c *link.Call, args []any) any {
			f := wasiio.Owned[*fields](w, args, 0)
			f.frozen = true
			return w.Give(c, httpTypes, "outgoing-response", &response{status: http.StatusOK, headers: f})
		},
		"[static]response-outparam.set": setResponse,
		"[static]incoming-body.finish":  finishIncoming,
		"[static]outgoing-body.finish":  finishOutgoing,
		"http-error-code": func(w *wasiio.Table, _ *link.Call, args []any) any {
			return wasiio.Some(httpCode(wasiio.Resource[error](w, args, 0)), true)
		},
		"[method]future-trailers.get":                getTrailers,
		"[method]future-trailers.subscribe":          wasiio.Subscribe,
		"[method]future-incoming-response.subscribe": wasiio.Subscribe,
		"[method]future-incoming-response.get":       getResponse,
	}),
	methodsOf("fields", map[string]func(f *fields, w *wasiio.Table, c *link.Call, args []any) any{
		"get": func(f *fields, _ *wasiio.Table, _ *link.Call, args []any) any {
			return f.get(link.Arg[string](args, 1))
		},
		"has": func(f *fields, _ *wasiio.Table, _ *link.Call, args []any) any {
			return len(f.get(link.Arg[string](args, 1))) > 0
		},
		"set": func(f *fields, _ *wasiio.Table, _ *link.Call, args []any) any {
			var values []string
			for _, v := range link.Arg[[]any](args, 2) {
				b, _ := v.([]byte)
				values = append(values, string(b))
			}
			before := slices.Clone(f.list)
			if r, _ := f.remove(link.Arg[string](args, 1)).(canon.Variant); r.Case != 0 {
				return r
			}
			r, _ := f.add(link.Arg[string](args, 1), values...).(canon.Variant)
			if r.Case != 0 {
				f.list = before
			}
			return r
		},
		"append": func(f *fields, _ *wasiio.Table, _ *link.Call, args []any) any {
			return f.add(link.Arg[string](args, 1), string(link.Arg[[]byte](args, 2)))
		},
		"delete": func(f *fields, _ *wasiio.Table, _ *link.Call, args []any) any {
			return f.remove(link.Arg[string](args, 1))
		},
		"entries": func(f *fields, _ *wasiio.Table, _ *link.Call, _ []any) any {
			out := []any{}
			for _, h := range f.list {
				out = append(out, []any{h.name, []byte(h.value)})
			}
			return out
		},
		"clone": func(f *fields, w *wasiio.Table, c *link.Call, _ []any) any {
			return headersOf(w, c, &fields{list: slices.Clone(f.list)})
		},
	}),
	methodsOf("incoming-request", requestFields),
	methodsOf("incoming-request", map[string]func(r *request, w *wasiio.Table, c *link.Call, args []any) any{
		"consume": func(r *request, w *wasiio.Table, c *link.Call, _ []any) any {
			return give(w, c, "incoming-body", r.body, &r.taken)
		},
	}),
	methodsOf("outgoing-request", requestFields),
	methodsOf("outgoing-request", map[string]func(r *request, w *wasiio.Table, c *link.Call, args []any) any{
		"body": func(r *request, w *wasiio.Table, c *link.Call, _ []any) any {
			return give(w, c, "outgoing-body", r.outgoing(), &r.taken)
		},
		"set-method": func(r *request, _ *wasiio.Table, _ *link.Call, args []any) any {
			v := link.Arg[canon.Variant](args, 1)
			name, _ := v.Value.(string)
			if int(v.Case) < len(methods) {
				name = methods[v.Case]
			}
			return assign(&r.method, name, name != "" && httpguts.ValidHeaderFieldName(name))
		},
		"set-path-with-query": func(r *request, _ *wasiio.Table, _ *link.Call, args []any) any {
			v, _ := wasiio.Optional(args, 1)
			text, _ := v.(string)
			_, err := url.ParseRequestURI("/" + strings.TrimPrefix(text, "/"))
			return assign(&r.path, text, err == nil)
		},
		"set-scheme": func(r *request, _ *wasiio.Table, _ *link.Call, args []any) any {
			v, given := wasiio.Optional(args, 1)
			if !given {
				return assign(&r.scheme, "", true)
			}
			s, _ := v.(canon.Variant)
			name, _ := s.Value.(string)
			if int(s.Case) < len(schemes) {
				name = schemes[s.Case]
			}
			return assign(&r.scheme, name, name != "")
		},
		"set-authority": func(r *request, _ *wasiio.Table, _ *link.Call, args []any) any {
			v, _ := wasiio.Optional(args, 1)
			text, _ := v.(string)
			return assign(&r.authority, text, httpguts.ValidHostHeader(text) && !strings.ContainsAny(text, "/?#@"))
		},
	}),
	methodsOf("request-options", map[string]func(o *options, w *wasiio.Table, c *link.Call, args []any) any{
		"connect-timeout":           constantly[*options](canon.None()),
		"between-bytes-timeout":     constantly[*options](canon.None()),
		"set-connect-timeout":       constantly[*options](canon.Error(nil)), // the system's is used
		"set-between-bytes-timeout": constantly[*options](canon.Error(nil)),
		"first-byte-timeout": func(o *options, _ *wasiio.Table, _ *link.Call, _ []any) any {
			return wasiio.Some(uint64(o.first), o.first > 0)
		},
		"set-first-byte-timeout": func(o *options, _ *wasiio.Table, _ *link.Call, args []any) any {
			v, _ := wasiio.Optional(args, 1)
			ns, _ := v.(uint64)
			return assign(&o.first, wasiio.Duration(ns), true)
		},
	}),
	methodsOf("incoming-response", map[string]func(r *response, w *wasiio.Table, c *link.Call, args []any) any{
		"status":  func(r *response, _ *wasiio.Table, _ *link.Call, _ []any) any { return uint16(r.status) },
		"headers": func(r *response, w *wasiio.Table, c *link.Call, _ []any) any { return headersOf(w, c, r.headers) },
		"consume": func(r *response, w *wasiio.Table, c *link.Call, _ []any) any {
			return give(w, c, "incoming-body", r.body, &r.taken)
		},
	}),
	methodsOf("outgoing-response", map[string]func(r *response, w *wasiio.Table, c *link.Call, args []any) any{
		"status-code": func(r *response, _ *wasiio.Table, _ *link.Call, _ []any) any { return uint16(r.status) },
		"set-status-code": func(r *response, _ *wasiio.Table, _ *link.Call, args []any) any {
			code := int(link.Arg[uint16](args, 1))
			return assign(&r.status, code, code >= 200 && code <= 599)
		},
		"headers": func(r *response, w *wasiio.Table, c *link.Call, _ []any) any { return headersOf(w, c, r.headers) },
		"body": func(r *response, w *wasiio.Table, c *link.Call, _ []any) any {
			return give(w, c, "outgoing-body", r.outgoing(), &r.taken)
		},
	}),
	methodsOf("incoming-body", map[string]func(b *body, w *wasiio.Table, c *link.Call, args []any) any{
		"stream": func(b *body, w *wasiio.Table, c *link.Call, _ []any) any {
			if b.taken {
				return canon.Error(nil)
			}
			b.taken = true
			return canon.OK(w.Give(c, wasiio.Streams, wasiio.InputStream, subscribed{b.pipe}))
		},
	}),
	methodsOf("outgoing-body", map[string]func(b *body, w *wasiio.Table, c *link.Call, args []any) any{
		"write": func(b *body, w *wasiio.Table, c *link.Call, _ []any) any {
			if b.taken {
				return canon.Error(nil)
			}
			b.taken = true
			return canon.OK(w.Give(c, wasiio.Streams, wasiio.OutputStream, wasiio.PipeSink{Pipe: b.sink}))
		},
	}),
	wasiio.In(outgoingHandler, map[string]wasiio.Function{"handle": send}),
)

// subscribed is the stream of a body: the body outlives it.
type subscribed struct{ wasiio.Source }

var requestFields = map[string]func(r *request, w *wasiio.Table, c *link.Call, args []any) any{
	"method": func(r *request, _ *wasiio.Table, _ *link.Call, _ []any) any {
		if i := slices.Index(methods, r.method); i >= 0 {
			return wasiio.Enum(uint32(i))
		}
		return canon.Variant{Case: uint32(len(methods)), Value: r.method}
	},
	"path-with-query": func(r *request, _ *wasiio.Table, _ *link.Call, _ []any) any { return wasiio.Some(r.path, r.path != "") },
	"scheme": func(r *request, _ *wasiio.Table, _ *link.Call, _ []any) any {
		if i := slices.Index(schemes, r.scheme); i >= 0 {
			return canon.Some(wasiio.Enum(uint32(i)))
		}
		return wasiio.Some(canon.Variant{Case: uint32(len(schemes)), Value: r.scheme}, r.scheme != "")
	},
	"authority": func(r *request, _ *wasiio.Table, _ *link.Call, _ []any) any {
		return wasiio.Some(r.authority, r.authority != "")
	},
	"headers": func(r *request, w *wasiio.Table, c *link.Call, _ []any) any { return headersOf(w, c, r.headers) },
}

// The cases of method and scheme that have a name.
var (
	methods = []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodConnect,
		http.MethodOptions, http.MethodTrace, http.MethodPatch,
	}
	schemes = []string{"http", "https"}
)

func assign[T any](to *T, v T, valid bool) any {
	if !valid {
		return canon.Error(nil)
	}
	*to = v
	return canon.OK(nil)
}

func constantly[T any](v any) func(T, *wasiio.Table, *link.Call, []any) any {
	return func(T, *wasiio.Table, *link.Call, []any) any { return v }
}

// give gives a message's body to the component, once.
func give(w *wasiio.Table, c *link.Call, name string, b *body, taken *bool) any {
	if *taken {
		return canon.Error(nil)
	}
	*taken = true
	return canon.OK(w.Give(c, httpTypes, name, b))
}

func (r *request) outgoing() *body {
	if r.body == nil {
		r.body = &body{sink: &wasiio.Pipe{}, request: true}
	}
	return r.body
}

func (r *response) outgoing() *body {
	if r.body == nil {
		r.body = &body{sink: &wasiio.Pipe{}}
	}
	return r.body
}

func finishIncoming(w *wasiio.Table, c *link.Call, args []any) any {
	b := wasiio.Owned[*body](w, args, 0)
	t := &trailers{}
	if b.incoming != nil && b.pipe.Finished() { // before that, they are still written
		if h := b.incoming(); len(h) > 0 {
			t.fields = received(h)
		}
	}
	b.End()
	return w.Give(c, httpTypes, "future-trailers", t)
}

func getTrailers(w *wasiio.Table, c *link.Call, args []any) any {
	t := wasiio.Resource[*trailers](w, args, 0)
	if t.taken {
		return canon.Some(canon.Error(nil))
	}
	t.taken = true
	found := canon.None()
	if t.fields != nil {
		found = canon.Some(headersOf(w, c, t.fields))
	}
	return canon.Some(canon.OK(canon.OK(found)))
}

func finishOutgoing(w *wasiio.Table, _ *link.Call, args []any) any {
	b := wasiio.Owned[*body](w, args, 0)
	if v, given := wasiio.Optional(args, 1); given {
		b.trailers = wasiio.Owned[*fields](w, []any{v}, 0)
	}
	if b.request && b.trailers != nil {
		b.sink.Finish(errUnfinished)
		return canon.Error(canon.Variant{Case: httpInternal, Value: canon.Some("requests with trailers are not sent")})
	}
	b.sink.Finish(nil)
	return canon.OK(nil)
}

func setResponse(w *wasiio.Table, _ *link.Call, args []any) any {
	o := wasiio.Owned[*outparam](w, args, 0)
	v := link.Arg[canon.Variant](args, 1)
	if v.Case != 0 {
		e, _ := v.Value.(canon.Variant)
		o.set(nil, &codeError{e})
		return nil
	}
	o.set(wasiio.Owned[*response](w, []any{v.Value}, 0), nil)
	return nil
}

// codeError is an error-code of the component's.
type codeError struct{ code canon.Variant }

func (e *codeError) Error() string {
	if text, ok := e.code.Value.(canon.Variant); ok && e.code.Case == httpInternal && text.Case == 1 {
		if reason, ok := text.Value.(string); ok {
			return reason
		}
	}
	return "the component answered with an error"
}

// httpCode is the error-code that an error is.
func httpCode(err error) canon.Variant {
	var name *net.DNSError
	var certificate interface{ CertificateInvalid() }
	var in *codeError
	var op *net.OpError
	switch {
	case errors.As(err, &in):
		return in.code
	case errors.As(err, &name):
		return canon.Variant{Case: httpNameUnknown, Value: []any{canon.Some(name.Err), canon.None()}}
	case errors.Is(err, syscall.ECONNREFUSED):
		return wasiio.Enum(httpRefused)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return wasiio.Enum(httpUnreachable)
	case errors.As(err, &op) && op.Op == "dial" && op.Timeout():
		return wasiio.Enum(httpConnectTimeout)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &op) && op.Timeout():
		return wasiio.Enum(httpResponseTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return wasiio.Enum(httpIncomplete)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return wasiio.Enum(httpTerminated)
	case errors.As(err, &certificate), strings.Contains(err.Error(), "certificate"):
		return wasiio.Enum(httpCertificate)
	case strings.Contains(err.Error(), "tls:"):
		return wasiio.Enum(httpTLS)
	}
	return canon.Variant{Case: httpInternal, Value: canon.Some(err.Error())}
}

// transport is that of all instances. No proxy of the environment is asked and no redirect followed: a component
// does either itself.
var transport = &http.Transport{
	DialContext:         (&net.Dialer{Timeout: wasiio.MostDial}).DialContext,
	ForceAttemptHTTP2:   true,
	DisableCompression:  true,
	MaxIdleConnsPerHost: 8,
	IdleConnTimeout:     time.Minute,
}

// send sends a request; its body may be written while the response is waited for.
func send(w *wasiio.Table, c *link.Call, args []any) any {
	r := wasiio.Owned[*request](w, args, 0)
	var o options
	if v, given := wasiio.Optional(args, 1); given {
		o = *wasiio.Owned[*options](w, []any{v}, 0)
	}
	if r.scheme == "" {
		r.scheme = "https"
	}
	if !slices.Contains(schemes, r.scheme) || r.authority == "" {
		return canon.Error(wasiio.Enum(httpInvalidURI))
	}
	if r.method == http.MethodConnect {
		return canon.Error(wasiio.Enum(httpInvalidMethod))
	}
	target := r.scheme + "://" + r.authority + "/" + strings.TrimPrefix(r.path, "/")
	ctx, cancel := context.WithCancelCause(c.Context)
	out, err := http.NewRequestWithContext(ctx, r.method, target, nil)
	if err != nil {
		cancel(err)
		return canon.Error(wasiio.Enum(httpInvalidURI))
	}
	out.Header = r.headers.header()
	if out.Header["User-Agent"] == nil {
		out.Header["User-Agent"] = nil // none, and not the library's
	}
	if r.body != nil {
		out.Body, out.ContentLength = r.body.sink, length(out.Header)
	}
	l := &later{cancel: cancel}
	if o.first > 0 {
		time.AfterFunc(o.first, func() {
			if done, _ := l.Ready(); !done {
				cancel(context.DeadlineExceeded)
			}
		})
	}
	run.Go("a request", func() error {
		answer, err := transport.RoundTrip(out)
		if err != nil {
			err = cmp.Or(context.Cause(ctx), err)
			cancel(err)
		}
		l.Change(func() {
			if l.done, l.err = true, err; err == nil {
				l.answer = &response{status: answer.StatusCode, headers: received(answer.Header)}
				l.answer.body = arriving(answer.Body, func() http.Header { return answer.Trailer }, func() { cancel(errUnread) })
			}
		})
		return nil
	})
	return canon.OK(w.Give(c, httpTypes, "future-incoming-response", l))
}

// length is that of a message which says it.
func length(h http.Header) int64 {
	var n int64 = -1
	if text := h.Get("Content-Length"); text != "" {
		n = 0
		for _, c := range text {
			if c < '0' || c > '9' || n > 1<<50 {
				return -1
			}
			n = 10*n + int64(c-'0')
		}
	}
	return n
}

// arriving is a body that comes in; closing is called when nobody wants more of it.
func arriving(in io.Reader, trailer func() http.Header, closing func()) *body {
	return &body{pipe: wasiio.Pump("a body", in), incoming: trailer, closing: closing}
}

var errUnread = errors.New("the component does not read on")

func getResponse(w *wasiio.Table, c *link.Call, args []any) any {
	l := wasiio.Resource[*later](w, args, 0)
	l.Lock()
	defer l.Unlock()
	switch {
	case !l.done:
		return canon.None()
	case l.taken:
		return canon.Some(canon.Error(nil))
	}
	l.taken = true
	if l.err != nil {
		return canon.Some(canon.OK(canon.Error(httpCode(l.err))))
	}
	return canon.Some(canon.OK(canon.OK(w.Give(c, httpTypes, "incoming-response", l.answer))))
}
