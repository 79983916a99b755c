// SPDX-License-Identifier: Apache-2.0

// Package secureserving serves the addresses of a component that is its own process:
// /metrics, /metrics/slis, /statusz, /flagz and /debug/pprof/ for authorized clients, /livez, /readyz and /healthz for
// everybody, as upstream's components do.
//
// It serves TLS only, unless it listens on loopback alone and is told to do
// without. Who asks is known by a client certificate or a token, and what they may
// do is asked of the API, as for the API itself.
package secureserving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	probes "github.com/wasmplane/wasmplane/core/apiserver/health"
	"github.com/wasmplane/wasmplane/core/profiling"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/zpages"
)

// Check is one thing that has to be well.
type Check struct {
	Name string
	// Do says what is wrong; nil = nothing.
	Do func(*http.Request) error
}

// Config of a Server.
type Config struct {
	// Component's name, for the log.
	Component string
	// Upstream is what upstream calls the component, for its pages.
	Upstream string
	// Flags that the process was started with, for /flagz.
	Flags zpages.Flags
	// Listener to serve on. Required. It is closed when Run ends.
	Listener net.Listener
	// TLS with the serving certificate. Nil: no TLS and nobody is asked who they are;
	// the listener has to be on a loopback address then.
	TLS *tls.Config
	// Authenticator and Authorizer of whoever wants metrics or profiles. Required with TLS;
	// without it there are no profiles.
	Authenticator authenticator.Request
	Authorizer    authorizer.UnconditionalAuthorizer
	Gatherer      prometheus.Gatherer
	// Also are answers at other paths, to who may read metrics.
	Also map[string]http.HandlerFunc
	// Live are asked by /livez and /healthz, Ready, besides them, by /readyz.
	Live, Ready []Check
	Logger      *slog.Logger
}

// Server of one component.
type Server struct{ cfg Config }

// New checks the configuration; Run serves.
func New(cfg Config) (*Server, error) {
	if cfg.Listener == nil || cfg.Gatherer == nil || cfg.Logger == nil {
		return nil, errors.New("a component's server needs a listener, metrics and a logger")
	}
	if cfg.TLS == nil {
		at, err := netip.ParseAddrPort(cfg.Listener.Addr().String())
		if err != nil || !at.Addr().Unmap().IsLoopback() {
			return nil, fmt.Errorf("%s is no loopback address: metrics without TLS are for this machine alone", cfg.Listener.Addr())
		}
		return &Server{cfg}, nil
	}
	if cfg.Authenticator == nil || cfg.Authorizer == nil {
		return nil, errors.New("a component's server with TLS needs an authenticator and an authorizer")
	}
	return &Server{cfg}, nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	h := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: 90 * time.Second, MaxHeaderBytes: 32 << 10,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: 100}, // as the API's
		ErrorLog:    slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	serve := func() error { return h.Serve(s.cfg.Listener) }
	if s.cfg.TLS != nil {
		conf := s.cfg.TLS.Clone()
		conf.MinVersion = max(conf.MinVersion, tls.VersionTLS12)
		if conf.ClientAuth == tls.NoClientCert {
			conf.ClientAuth = tls.RequestClientCert // who they are is the authenticator's business
		}
		h.TLSConfig = conf
		serve = func() error { return h.ServeTLS(s.cfg.Listener, "", "") }
	}
	failed := run.Go("server of metrics and health", serve)
	s.cfg.Logger.InfoContext(ctx, "metrics and health are served", "component", s.cfg.Component, "address", s.cfg.Listener.Addr().String(),
		"tls", s.cfg.TLS != nil)
	select {
	case err := <-failed:
		return fmt.Errorf("serve metrics and health at %s: %w", s.cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	_ = h.Close()
	<-failed
	return nil
}

// Handler of all requests.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	counted := zpages.NewHealth()
	live := append([]Check{{Name: "ping", Do: func(*http.Request) error { return nil }}}, s.cfg.Live...)
	probe := prober{mux, counted}
	probe.serve("healthz", live)
	probe.serve("livez", live)
	probe.serve("readyz", append(live[:len(live):len(live)], s.cfg.Ready...))
	metrics := promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4,
	})
	mux.Handle("GET /metrics", s.guarded(metrics))
	mux.Handle("GET "+zpages.SLIPath, s.guarded(counted.Handler()))
	mux.Handle("DELETE "+zpages.SLIPath, s.guarded(counted.Handler()))
	mux.Handle("GET "+zpages.FlagsPath, s.guarded(zpages.FlagsPage(s.cfg.Upstream, s.cfg.Flags)))
	paths := []string{"/healthz", "/livez", "/readyz", "/metrics", zpages.FlagsPath}
	for path, h := range s.cfg.Also {
		paths = append(paths, path)
		mux.Handle("GET "+path, s.guarded(h))
	}
	if s.cfg.TLS != nil { // without it nobody is asked who they are
		paths = append(paths, profiling.Prefix)
		mux.Handle("GET "+profiling.Prefix, s.guarded(profiling.Handler()))
	}
	mux.Handle("GET "+zpages.StatusPath, s.guarded(zpages.Status(s.cfg.Upstream, paths)))
	mux.Handle("/", s.guarded(http.NotFoundHandler()))
	return mux
}

// guarded lets a request through if it is known who sent it, and they may.
func (s *Server) guarded(h http.Handler) http.Handler {
	if s.cfg.TLS == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok, err := s.cfg.Authenticator.AuthenticateRequest(r)
		if err != nil || !ok {
			s.cfg.Logger.Debug("a request could not be authenticated", "path", r.URL.Path, "error", err)
			if r.ProtoMajor == 2 {
				w.Header().Set("Connection", "close") // strangers keep no connection of many streams
			}
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		decision, reason, err := s.cfg.Authorizer.Authorize(r.Context(), authorizer.AttributesRecord{
			User: who.User, Verb: strings.ToLower(r.Method), Path: r.URL.Path,
		})
		if err != nil {
			s.cfg.Logger.Warn("a request could not be authorized", "user", who.User.GetName(), "path", r.URL.Path, "error", err)
		}
		if err != nil || decision != authorizer.DecisionAllow {
			s.cfg.Logger.Debug("a request was refused", "user", who.User.GetName(), "path", r.URL.Path, "reason", reason)
			http.Error(w, fmt.Sprintf("Forbidden: User %q cannot %s path %q", who.User.GetName(), strings.ToLower(r.Method), r.URL.Path),
				http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// prober serves checks as upstream does: "ok", a line for each with ?verbose, and
// /NAME/CHECK for one alone. Why a check fails is not told to who need not say who
// they are.
type prober struct {
	mux     *http.ServeMux
	counted *zpages.Health
}

func (p prober) serve(name string, checks []Check) {
	for _, c := range checks {
		p.mux.HandleFunc("GET /"+name+"/"+c.Name, func(w http.ResponseWriter, r *http.Request) { p.answer(w, r, name, []Check{c}, nil) })
	}
	p.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
		p.answer(w, r, name, checks, r.URL.Query()["exclude"])
	})
}

// well asks a check, and counts how it went.
func (p prober) well(r *http.Request, probe string, c Check) bool {
	err := c.Do(r)
	p.counted.Checked(c.Name, probe, err)
	return err == nil
}

func (p prober) answer(w http.ResponseWriter, r *http.Request, name string, checks []Check, without []string) {
	var lines strings.Builder
	failed := false
	for _, c := range checks {
		switch {
		case slices.Contains(without, c.Name):
			fmt.Fprintf(&lines, "[+]%s excluded: ok\n", c.Name)
		case !p.well(r, name, c):
			failed = true
			fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", c.Name)
		default:
			fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
		}
	}
	lines.WriteString(probes.Unmatched(without, func(name string) bool {
		return slices.ContainsFunc(checks, func(c Check) bool { return c.Name == name })
	}))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch _, verbose := r.URL.Query()["verbose"]; {
	case failed:
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, "%s%s check failed\n", lines.String(), name)
	case verbose:
		_, _ = fmt.Fprintf(w, "%s%s check passed\n", lines.String(), name)
	default:
		_, _ = w.Write([]byte("ok"))
	}
}
