// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstreamaudit "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/apiserver/share"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Audit is told of every request that somebody sent.
type Audit interface {
	// Begin is called when user is known and before anything is decided. The
	// context that it returns is the rest of the request's; end is called with
	// the status code when the answer has been written. An error refuses the request.
	Begin(ctx context.Context, req *http.Request, info *genericrequest.RequestInfo,
		who user.Info) (next context.Context, end func(status int), err error)
}

// serve tells the story of a request: what is asked, who asks, may they, all that
// they send, and then, in its turn, the answer.
func (s *Server) serve(rw http.ResponseWriter, req *http.Request, who identify) {
	w := &recorder{ResponseWriter: rw}
	started := s.cfg.Now()
	defer s.recovered(w, req)
	if req.ContentLength != 0 {
		// net/http reads a body that nobody wanted before it sends the answer:
		// without an end to that, who is refused could hold the connection for ever.
		_ = http.NewResponseController(w).SetReadDeadline(started.Add(s.cfg.RequestTimeout)) // callers within the process have no connection
	}

	info, err := s.info.NewRequestInfo(req)
	if err != nil {
		s.answers.Fail(w, req, apierrors.NewBadRequest(fmt.Sprintf("failed to create RequestInfo: %v", err)))
		return
	}
	if info.IsResourceRequest && !reading(info.Verb) {
		deepen(len(info.Path))
	}
	ctx := genericrequest.WithRequestInfo(req.Context(), info)
	ctx = warning.WithWarningRecorder(ctx, &warnings{header: w.Header()})
	ctx = audit.Identify(ctx, req, w.Header())
	if !longRunning(info) {
		ctx = genericrequest.WithLatencyTrackers(ctx) // of what is not the server's own doing
	}
	defer func() {
		s.metrics.Observe(ctx, s.known(info), w.status(), s.cfg.Now().Sub(started), w.size, longRunning(info))
	}()

	ctx, span := s.trace(ctx, info)
	defer func() { span.end(ctx, w) }()

	asker, err := who(span, req.WithContext(ctx))
	if err != nil {
		ctx, audited, _ := s.audit(ctx, req, info, nil)
		span.forget()
		s.answers.Unauthorized(w, req.WithContext(ctx), err)
		audited(w.status())
		return
	}
	answer.CloseUnlessKnown(w, req, asker)
	span.user(asker)
	ctx = genericrequest.WithUser(ctx, asker)
	ctx, audited, err := s.audit(ctx, req, info, asker)
	req = req.WithContext(ctx) // refusals are recorded too
	if err != nil {
		s.answers.Fail(w, req, apierrors.NewInternalError(err))
		return
	}
	defer func() { s.complete(ctx, w, audited, recover()) }()

	if asker, err = s.impersonate(ctx, req, info, asker); err != nil {
		s.forbid(w, req, err)
		return
	}
	account := s.budget.Open(asker)
	defer account.Close()
	ctx = decodedsize.With(genericrequest.WithUser(ctx, asker), account) // from here on the request is somebody else's
	req = req.WithContext(ctx)
	// Before there is a seat: who may not has none, and none is held while a body comes.
	if !s.permitted(w, req, info, asker) {
		return
	}
	if err := s.fetch(w, req, info, account); err != nil {
		s.classify(w, req, info, asker)
		s.answers.Fail(w, req, err)
		return
	}
	s.seated(w, req, info, asker, func(req *http.Request) { s.answer(w, req, info, asker) })
}

// deepen grows the stack of the request's goroutine at once to what a write is
// going to need, while there is little on it. By itself it would double time and
// again with all of the write's calls on it, each of which has to be moved.
//
//go:noinline
func deepen(somewhere int) byte {
	var room [20 << 10]byte
	room[somewhere%len(room)]++ // else the compiler would see through it
	return room[len(room)/2]
}

// answer is the rest of the story, once the request has its turn.
func (s *Server) answer(w *recorder, req *http.Request, info *genericrequest.RequestInfo, asker user.Info) {
	ctx, cancel, err := s.deadline(req.Context(), w, req, info)
	if err != nil {
		s.answers.Fail(w, req, err)
		return
	}
	defer cancel()
	defer s.guard(ctx, w, info, asker)()
	s.router.ServeHTTP(w, req.WithContext(ctx))
}

// guard bounds how long an answer waits for a client that does not take it, by
// stalled writes and, where the request has a deadline, by that.
func (s *Server) guard(ctx context.Context, w *recorder, info *genericrequest.RequestInfo, asker user.Info) (stop func()) {
	g := &stall{s: s, w: w, share: share.Of(asker)}
	switch {
	case info.Verb == "watch":
		g.relief = func() { watchBegun(ctx) }
		w.guard = g
		return func() {}
	case longRunning(info) || s.longMount(info):
		return func() {}
	}
	w.guard = g
	within := context.AfterFunc(ctx, g.timeUp)
	return func() {
		if !within() {
			g.end()
		}
	}
}

// forbid answers somebody who may not. What it says repeats words of the request,
// so that no browser may take it for a page.
func (s *Server) forbid(w http.ResponseWriter, req *http.Request, err error) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.answers.Fail(w, req, err)
}

// identify finds out who sends a request.
type identify func(span *requestSpan, req *http.Request) (user.Info, error)

func (s *Server) authenticate(span *requestSpan, req *http.Request) (user.Info, error) {
	ctx, done := span.child(req.Context(), trace.Authenticate)
	began := time.Now()
	response, ok, err := s.cfg.Authenticator.AuthenticateRequest(req.WithContext(ctx))
	done(err)
	var who user.Info
	if ok && response != nil {
		who = response.User
	}
	s.metrics.Authenticated(who, err, began)
	if err != nil {
		s.cfg.Logger.DebugContext(req.Context(), "a request was not authenticated", "path", req.URL.Path, "error", err)
		return nil, err
	}
	if !ok || response == nil || response.User == nil {
		return nil, errNobody
	}
	// The credential has done its work; nothing behind may read or pass it on.
	req.Header.Del("Authorization")
	return response.User, nil
}

// local takes the user that in-process callers put into the context.
func (s *Server) local(_ *requestSpan, req *http.Request) (user.Info, error) {
	who, ok := genericrequest.UserFrom(req.Context())
	if !ok || who == nil {
		return nil, errNobody
	}
	return who, nil
}

var errNobody = errors.New("no credentials")

func (s *Server) audit(ctx context.Context, req *http.Request, info *genericrequest.RequestInfo,
	who user.Info,
) (context.Context, func(int), error) {
	if s.cfg.Audit == nil {
		return ctx, func(int) {}, nil
	}
	return s.cfg.Audit.Begin(ctx, req, info, who)
}

// complete ends the record of a request. A panic is recorded and then goes on.
func (s *Server) complete(ctx context.Context, w *recorder, audited func(int), panicked any) {
	switch panicked {
	case nil:
		audited(w.status())
		return
	case http.ErrAbortHandler:
		audited(w.status())
	default:
		audit.From(ctx).Panicked(panicked)
	}
	panic(panicked)
}

// askersMost is the part of all requests that may ask the chain at one time which one
// user's may be.
const askersMost = 4

// permitted answers whoever may not, or has too many requests that ask the chain: these
// hold no seat, and an authorizer may be slow. Administrators always get in.
func (s *Server) permitted(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, who user.Info) bool {
	if !slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		whose := share.Of(who)
		defer s.askers.leave(whose)
		if n := s.askers.enter(whose); int64(n) > max(s.asking.most/askersMost, 1) || !s.asking.enter() {
			s.classify(w, req, info, who)
			s.refuse(w, req, info, 1)
			return false
		}
		defer s.asking.leave()
	}
	if err := s.authorize(req.Context(), info, who); err != nil {
		s.classify(w, req, info, who)
		s.forbid(w, req, err)
		return false
	}
	return true
}

// authorize asks the chain, which records what it decided; the refusal is upstream's words.
func (s *Server) authorize(ctx context.Context, info *genericrequest.RequestInfo, who user.Info) error {
	a := authz.AttributesOf(info, who)
	began := time.Now()
	decision, reason, err := s.cfg.Authorizer.Authorize(ctx, a)
	s.metrics.Authorized(decision, err, began)
	if decision == authorizer.DecisionAllow {
		annotate(ctx, "allow", reason)
		return nil
	}
	// An authorizer may fail in part and allow all the same, so the decision comes first.
	if err != nil {
		upstreamaudit.AddAuditAnnotation(ctx, reasonAnnotation, "internal error")
	} else {
		annotate(ctx, "forbid", reason)
	}
	return authz.Refused(a, reason, err)
}

// Keys of the audit log, as upstream has them.
const (
	decisionAnnotation = "authorization.k8s.io/decision"
	reasonAnnotation   = "authorization.k8s.io/reason"
)

// annotate records a decision.
func annotate(ctx context.Context, decision, reason string) {
	upstreamaudit.AddAuditAnnotations(ctx, decisionAnnotation, decision, reasonAnnotation, reason)
}

// limit bounds requests in flight.
type limit struct {
	most int64
	now  atomic.Int64
}

func (l *limit) enter() bool {
	if l.now.Add(1) <= l.most {
		return true
	}
	l.now.Add(-1)
	return false
}

func (l *limit) leave() { l.now.Add(-1) }

// admit bounds how many requests are served at once, reads and writes apart.
// Watches and streams don't count; nor do administrators, who have to get in
// when everything is on fire.
func (s *Server) admit(info *genericrequest.RequestInfo, who user.Info) (release func(), ok bool) {
	if longRunning(info) {
		return func() {}, true
	}
	for _, g := range who.GetGroups() {
		if g == user.SystemPrivilegedGroup {
			return func() {}, true
		}
	}
	l := &s.writes
	if reading(info.Verb) {
		l = &s.reads
	}
	return l.leave, l.enter()
}

func reading(verb string) bool {
	return verb == "get" || verb == "list" || verb == "watch" || verb == "proxy"
}

// longRunning requests have no deadline of the server's.
func longRunning(info *genericrequest.RequestInfo) bool {
	if info.Verb == "watch" || info.Verb == "proxy" {
		return true
	}
	if info.IsResourceRequest {
		switch info.Subresource {
		case "attach", "exec", "log", "portforward", "proxy":
			return true
		}
	}
	return false
}

// longMount: what is mounted there takes its time.
func (s *Server) longMount(info *genericrequest.RequestInfo) bool {
	return !info.IsResourceRequest && slices.ContainsFunc(s.cfg.Mounts, func(m Mount) bool { return m.Long && m.Prefix == info.Path })
}

// deadline bounds the request: by ?timeout=, and by the server's own bound. A
// body that trickles in is cut off by the same deadline.
func (s *Server) deadline(ctx context.Context, w http.ResponseWriter, req *http.Request,
	info *genericrequest.RequestInfo,
) (context.Context, context.CancelFunc, error) {
	if longRunning(info) || s.longMount(info) {
		if req.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // as above
		}
		ctx, cancel := context.WithCancel(ctx)
		return ctx, cancel, nil
	}
	timeout := s.cfg.RequestTimeout
	if strings.Contains(req.URL.RawQuery, "timeout=") {
		if text := req.URL.Query().Get("timeout"); text != "" {
			asked, err := time.ParseDuration(text)
			if err != nil {
				return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %v", err))
			}
			if asked > 0 && asked < timeout {
				timeout = asked
			}
		}
	}
	if req.ContentLength != 0 {
		// Callers within the process have no connection to put a deadline on.
		_ = http.NewResponseController(w).SetReadDeadline(s.cfg.Now().Add(timeout))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, cancel, nil
}

// recovered answers a request whose handling panicked, and keeps the others going.
func (s *Server) recovered(w *recorder, req *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p) // net/http's way of dropping a connection
	}
	s.cfg.Logger.ErrorContext(req.Context(), "handling a request panicked", "method", req.Method, "path", req.URL.Path, "panic", p,
		"stack", string(debug.Stack()))
	if w.code == 0 && !w.hijacked {
		s.answers.Fail(w, req, apierrors.NewInternalError(fmt.Errorf("the server panicked while it handled the request: %v", p)))
		return
	}
	panic(http.ErrAbortHandler) // half an answer must not look like a whole one
}

// requestSpan records a write, or a read that failed, as one span with children.
// Reads that succeed leave no trace, nor do renewals of leases: there are far too many of them, and they would push
// what somebody wants to see out of a store that is bounded.
type requestSpan struct {
	server *Server
	info   *genericrequest.RequestInfo
	span   oteltrace.Span // nil for reads and renewals
	begin  time.Time
	who    user.Info
	forgot bool
}

// forget records nothing: the store is bounded, and whoever can reach the server
// could have it forget what others did. The audit log has failed logins.
func (r *requestSpan) forget() { r.span, r.forgot = nil, true }

func (s *Server) trace(ctx context.Context, info *genericrequest.RequestInfo) (context.Context, *requestSpan) {
	r := &requestSpan{server: s, info: info, begin: s.cfg.Now()}
	if info.IsResourceRequest && !reading(info.Verb) && !renewing(info) {
		ctx, r.span = s.cfg.Tracer.Start(ctx, trace.Request, r.attributes())
	}
	return ctx, r
}

// renewing: a lease is written again by who holds it, every few seconds for as long as it lives.
func renewing(info *genericrequest.RequestInfo) bool {
	return info.Resource == "leases" && info.APIGroup == coordinationv1.GroupName && (info.Verb == "update" || info.Verb == "patch")
}

func (r *requestSpan) attributes() oteltrace.SpanStartEventOption {
	resource := schema.GroupResource{Group: r.info.APIGroup, Resource: r.info.Resource}.String()
	if r.info.Subresource != "" {
		resource += "/" + r.info.Subresource
	}
	return oteltrace.WithAttributes(
		trace.ComponentKey.String("apiserver"),
		trace.VerbKey.String(r.info.Verb),
		trace.ResourceKey.String(resource),
		trace.NamespaceKey.String(r.info.Namespace),
		trace.NameKey.String(r.info.Name),
	)
}

func (r *requestSpan) user(who user.Info) {
	r.who = who
	if r.span != nil {
		r.span.SetAttributes(trace.UserKey.String(who.GetName()))
	}
}

// child is a step of the request. done ends it.
func (r *requestSpan) child(ctx context.Context, name string) (context.Context, func(error)) {
	if r.span == nil {
		return ctx, func(error) {}
	}
	ctx, span := r.server.cfg.Tracer.Start(ctx, name, oteltrace.WithAttributes(trace.ComponentKey.String("apiserver")))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

func (r *requestSpan) end(ctx context.Context, w *recorder) {
	failed := w.status() >= http.StatusBadRequest
	if r.span == nil {
		if r.forgot || !failed || !r.info.IsResourceRequest || w.status() == http.StatusNotFound {
			return
		}
		_, r.span = r.server.cfg.Tracer.Start(ctx, trace.Request, r.attributes(), oteltrace.WithTimestamp(r.begin))
		if r.who != nil {
			r.user(r.who)
		}
	}
	r.span.SetAttributes(trace.StatusKey.Int(w.status()))
	if failed {
		r.span.SetStatus(codes.Error, http.StatusText(w.status()))
	}
	r.span.End()
}
