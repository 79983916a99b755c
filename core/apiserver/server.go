// SPDX-License-Identifier: Apache-2.0

// Package apiserver is the HTTP face of the control plane: it turns requests into
// operations of core/registry and answers in the words, formats and status codes
// of the Kubernetes API, so that stock kubectl, client-go and Helm work with it.
//
// It guarantees that what was authorized is what is served: one parse of the path
// (request info) decides both. It bounds what a client can make it do: body,
// depth, time, requests in flight. It refuses to know what an object means: that
// is the registry's, and behind it the contract's, business.
//
// The story of a request is the function serve in story.go.
package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/wasmplane/wasmplane/core/aggregator"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/apiserver/body"
	"github.com/wasmplane/wasmplane/core/apiserver/catalogue"
	"github.com/wasmplane/wasmplane/core/apiserver/health"
	"github.com/wasmplane/wasmplane/core/apiserver/held"
	"github.com/wasmplane/wasmplane/core/apiserver/requestmetrics"
	"github.com/wasmplane/wasmplane/core/apiserver/tunnel"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/auth/impersonation"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/action"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/zpages"
)

// Mount serves further paths, behind authentication and authorization as
// non-resource URLs.
type Mount struct {
	Prefix  string // "/trace/": everything below it; "/trace": exactly that
	Handler http.Handler
	// Long: answers take as long as they take; the server has no deadline for them.
	Long bool
}

// Config is what a server is made of.
type Config struct {
	Contract      *api.Contract
	Registries    *registry.Set
	Authenticator authenticator.Request
	Authorizer    authz.Authorizer
	// Tokens issues service account tokens; nil = serviceaccounts/token is refused.
	Tokens action.TokenIssuer
	// Reviewer answers token reviews; nil = they are refused.
	Reviewer action.TokenReviewer
	// Audit is told of every request; nil = nobody is.
	Audit Audit

	// Listen is HOST:PORT; Listener, where set, is used instead.
	Listen   string
	Listener net.Listener
	// TLS has at least GetCertificate; certificates renewed behind it are picked
	// up by the next handshake.
	TLS *tls.Config

	// CatchUp is asked about a resource that nobody here serves: it returns once
	// everything that was defined before the request is served; nil = only what
	// is built in can be.
	CatchUp func(ctx context.Context) error

	Checks []health.Check
	// Aggregator knows the group versions that other servers serve; nil = there are none.
	Aggregator *aggregator.Aggregator
	// Kubelet reaches the nodes for logs, exec, attach, port-forward and proxy;
	// nil = these subresources are refused.
	Kubelet *tunnel.KubeletClient
	// OpenIDConfiguration and JWKS answer the discovery of the service account
	// issuer; nil = 404.
	OpenIDConfiguration, JWKS http.Handler
	Mounts                    []Mount

	// Fairness gives requests their seats; nil = MaxReads and MaxWrites are all that
	// bounds them. The caller runs it.
	Fairness flowcontrol.Interface
	// MaxReads and MaxWrites bound requests in flight; 0 = 400 and 200. With Fairness
	// their sum is the number of seats that it was made with.
	MaxReads, MaxWrites int
	// RequestTimeout bounds requests that are not watches or streams; 0 = 1 minute.
	RequestTimeout time.Duration
	// MinWatch is the shortest time that a watch without timeoutSeconds lives; 0 =
	// 30 minutes. The real one is up to twice that, so that clients don't come back together.
	MinWatch time.Duration
	// WatchStall is how long the client of a watch may take nothing of what was sent,
	// before it is cut off, and of any other answer a third of it; 0 = 30 s.
	WatchStall time.Duration
	// ShutdownDelay is how long requests may take to end when the server stops; 0 = 10 s.
	ShutdownDelay time.Duration
	// Flags that the process was started with, for /flagz.
	Flags zpages.Flags

	Metrics  prometheus.Registerer // nil = not exported
	Gatherer prometheus.Gatherer   // what /metrics shows; nil = 404
	Logger   *slog.Logger          // nil = discard
	Tracer   oteltrace.Tracer      // nil = discard
	Now      func() time.Time      // nil = time.Now
}

func (c *Config) complete() error {
	switch {
	case c.Contract == nil:
		return errors.New("apiserver: Config.Contract is missing")
	case c.Registries == nil:
		return errors.New("apiserver: Config.Registries is missing")
	case c.Authorizer == nil:
		return errors.New("apiserver: Config.Authorizer is missing: nobody would be allowed anything")
	case c.TLS != nil && c.Authenticator == nil:
		return errors.New("apiserver: Config.Authenticator is missing")
	}
	if c.MaxReads == 0 {
		c.MaxReads = 400
	}
	if c.MaxWrites == 0 {
		c.MaxWrites = 200
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = time.Minute
	}
	if c.MinWatch == 0 {
		c.MinWatch = 30 * time.Minute
	}
	if c.WatchStall == 0 {
		c.WatchStall = watchStall
	}
	if c.ShutdownDelay == 0 {
		c.ShutdownDelay = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Tracer == nil {
		c.Tracer = trace.Discard()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// Server serves the API. Make one with New.
type Server struct {
	cfg           Config
	router        *mux.Router
	info          genericrequest.RequestInfoResolver
	metrics       *requestmetrics.Metrics
	impersonation *impersonation.Decider
	fairness      *fairness // nil = two plain limits
	reads         limit
	writes        limit
	budget        body.Budget   // of what requests take in memory
	asking        limit         // requests of which it is being found out whether they may be done
	askers        counts        // of them, by share.Of
	stalled       counts        // watches that stall, by share.Of
	held          held.Requests // large requests that stay
	health        *zpages.Health
	answers       *answer.Writer
	catalogue     *catalogue.Catalogue
	actions       *action.Actions
	tunnel        *tunnel.Tunnel

	ready    chan struct{}
	stopping chan struct{} // closed when the server begins to stop
	stopOnce sync.Once
	ends     run.Ends // requests that would not end by themselves when the server stops
	addr     net.Addr
}

// New checks cfg and makes a server. It serves by Run, or by its handlers alone.
func New(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg,
		info: &genericrequest.RequestInfoFactory{
			APIPrefixes:          sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api"),
		},
		reads:    limit{most: int64(cfg.MaxReads)},
		writes:   limit{most: int64(cfg.MaxWrites)},
		asking:   limit{most: int64(cfg.MaxReads + cfg.MaxWrites)},
		ready:    make(chan struct{}),
		stopping: make(chan struct{}),
		health:   zpages.NewHealth(),
	}
	var err error
	if s.answers, err = answer.New(cfg.Contract, cfg.Logger, cfg.Now); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	if s.metrics, err = requestmetrics.New(cfg.Metrics, &s.reads.now, &s.writes.now); err != nil {
		return nil, err
	}
	s.impersonation = impersonation.New(cfg.Authorizer)
	s.fairness = newFairness(s, cfg.Fairness)
	s.catalogue = catalogue.New(catalogue.Config{
		Contract: cfg.Contract, Registries: cfg.Registries, Aggregator: cfg.Aggregator, Answers: s.answers, Ends: &s.ends,
	})
	s.actions = action.New(action.Config{
		Contract: cfg.Contract, Registries: cfg.Registries, Authorizer: cfg.Authorizer, Tokens: cfg.Tokens, Reviewer: cfg.Reviewer, Now: cfg.Now,
	})
	s.tunnel = tunnel.New(tunnel.Config{
		Kubelet: cfg.Kubelet, Registries: cfg.Registries, Authorizer: cfg.Authorizer, Answers: s.answers, Ends: &s.ends,
	})
	s.router = s.routes()
	return s, nil
}

// Handler serves requests from outside: who sends them is found out.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, s.authenticate) })
}

// LocalHandler serves requests from within the process: the user is the one in
// the request's context. Nothing outside the process may reach it.
func (s *Server) LocalHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, s.local) })
}

// Ready is closed once the server accepts connections.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr is where the server listens, once it is ready.
func (s *Server) Addr() net.Addr { return s.addr }

// Run serves until ctx ends. Then it takes no more connections, ends watches,
// and waits a while for the other requests.
func (s *Server) Run(ctx context.Context) error {
	listener := s.cfg.Listener
	if listener == nil {
		var lc net.ListenConfig
		var err error
		if listener, err = lc.Listen(ctx, "tcp", s.cfg.Listen); err != nil {
			return fmt.Errorf("listen on %s: %w", s.cfg.Listen, err)
		}
	}
	if s.cfg.TLS == nil {
		return errors.New("apiserver: Config.TLS is missing: the API is not served in the clear")
	}
	tlsConfig := s.cfg.TLS.Clone()
	// Small records at first would show the beginning of a page sooner. Our clients
	// read answers whole, and each record costs a call of the kernel.
	tlsConfig.DynamicRecordSizingDisabled = true
	server := &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         tlsConfig,
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          100, // as upstream; a client with more watches opens more connections
			MaxReceiveBufferPerStream:     256 << 10,
			MaxReceiveBufferPerConnection: 1 << 20,
			// A client that is gone without a word holds watches until it is missed.
			SendPingTimeout: 30 * time.Second,
			PingTimeout:     15 * time.Second,
		},
	}
	s.addr = listener.Addr()
	failed := run.Go("API server", func() error { return server.ServeTLS(listener, "", "") })
	close(s.ready)
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	s.stop()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ShutdownDelay)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		s.cfg.Logger.WarnContext(ctx, "some requests did not end in time and were cut off", "error", err)
		_ = server.Close() // nothing more can be done about them
	}
	<-failed
	return nil
}

// stop ends watches and makes /readyz fail.
func (s *Server) stop() {
	s.stopOnce.Do(func() { close(s.stopping) })
	s.ends.End()
}

func (s *Server) isStopping(context.Context) error {
	select {
	case <-s.stopping:
		return errors.New("the server is shutting down")
	default:
		return nil
	}
}
