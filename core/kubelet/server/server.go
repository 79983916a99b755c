// SPDX-License-Identifier: Apache-2.0

// Package server serves the kubelet's API for the pods of this process' nodes: logs, exec,
// attach, port-forward, and the nodes' statistics. One Server serves all kubelets of a
// process; a request names a pod, and the pod is on one of them.
//
// Nobody gets in without a certificate or a token that the API vouches for, nor
// past what the API lets them do with the node. Streams pass through to the
// runtime's own streaming server: the connection is handed on, never redirected,
// and nothing of it is kept in memory.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/logs"
	"github.com/wasmplane/wasmplane/core/kubelet/reach"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/zpages"
)

// Node is a kubelet as the server sees it.
type Node interface {
	NodeName() string
	// Pods with their statuses.
	Pods() []*corev1.Pod
	// Pod by its name and, unless empty, its UID; nil if it is not on this node.
	Pod(namespace, name string, uid types.UID) *corev1.Pod
	// Runtime that runs them.
	Runtime() engine.Engine
	// Sandbox of a pod, empty if it has none that is ready.
	Sandbox(uid types.UID) string
	// Exited is closed when a container has ended.
	Exited(pod types.UID, container string) <-chan struct{}
	// Config of the kubelet, as far as it may be told.
	Config() any
}

// Config of a Server.
type Config struct {
	// Listener to serve on. Required. It is closed when Run ends.
	Listener net.Listener
	// TLS with the serving certificate. Required. Client certificates are asked for.
	TLS *tls.Config
	// Authenticator and Authorizer of requests. Required; see Delegate.
	Authenticator authenticator.Request
	Authorizer    authorizer.UnconditionalAuthorizer
	Logger        *slog.Logger
	// Metrics of the kubelets, beside what the server counts of their pods; nil: none.
	Metrics prometheus.Gatherer
	// Flags that the process was started with, for /flagz.
	Flags zpages.Flags
	// SandboxImage is the image that sandboxes have; empty: it is not known.
	SandboxImage string
	// BodyTimeout is how long a body may take whose sender is not known yet, or may
	// not do what it asks; 0 = 30s.
	BodyTimeout time.Duration
}

// Server of the nodes of a process.
type Server struct {
	cfg  Config
	port int32

	mu     sync.RWMutex
	nodes  map[string]Node
	before map[string]usage // of nodes, when a summary was asked for

	health   *zpages.Health
	queries  chan struct{} // of machines' logs, that are being answered
	counting chan struct{} // has the one who reads cgroups
	// checkpointing has the one who makes a checkpoint: it takes room on the disk, and stops the container meanwhile.
	checkpointing chan struct{}
}

// New makes a Server; Run runs it.
func New(cfg Config) (*Server, error) {
	if cfg.Listener == nil || cfg.TLS == nil || cfg.Authenticator == nil || cfg.Authorizer == nil {
		return nil, errors.New("a kubelet's server needs a listener, a serving certificate, an authenticator and an authorizer")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.BodyTimeout == 0 {
		cfg.BodyTimeout = 30 * time.Second
	}
	s := &Server{
		cfg: cfg, nodes: map[string]Node{}, before: map[string]usage{}, health: zpages.NewHealth(),
		queries: make(chan struct{}, mostQueries), counting: make(chan struct{}, 1), checkpointing: make(chan struct{}, 1),
	}
	if a, ok := cfg.Listener.Addr().(*net.TCPAddr); ok {
		s.port = int32(a.Port) //nolint:gosec // a port
	}
	return s, nil
}

// Port that the server listens on.
func (s *Server) Port() int32 { return s.port }

// Add serves a node's pods until the function returned is called.
func (s *Server) Add(n Node) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[n.NodeName()] = n
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.nodes[n.NodeName()] == n {
			delete(s.nodes, n.NodeName())
			delete(s.before, n.NodeName())
		}
	}
}

// Run serves until ctx ends. Streams that are open then are cut.
func (s *Server) Run(ctx context.Context) error {
	conf := s.cfg.TLS.Clone()
	if conf.ClientAuth == tls.NoClientCert {
		conf.ClientAuth = tls.RequestClientCert // who they are is the authenticator's business
	}
	conf.MinVersion = max(conf.MinVersion, tls.VersionTLS12)
	// HTTP/1.1 alone: connections are upgraded.
	conf.NextProtos = []string{"http/1.1"}
	const headers = 32 << 10
	h := &http.Server{
		Handler: s.Handler(), TLSConfig: conf, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: headers,
		ErrorLog:     slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		BaseContext:  func(net.Listener) context.Context { return ctx },
	}
	failed := run.Go("kubelet server", func() error { return h.ServeTLS(s.cfg.Listener, "", "") })
	select {
	case err := <-failed:
		return fmt.Errorf("serve the kubelet's API at %s: %w", s.cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	_ = h.Close()
	<-failed
	return nil
}

// Handler of all requests. A request is told who sent it before anything else.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	// Each route says which part of the node it needs the right to.
	var paths []string
	route := func(pattern, part string, h http.HandlerFunc) {
		_, path, _ := strings.Cut(pattern, " ")
		paths = append(paths, path)
		mux.HandleFunc(pattern, s.guarded(part, h))
	}
	route("GET /containerLogs/{namespace}/{pod}/{container}", "proxy", s.logs)
	for _, verb := range []string{"GET", "POST"} {
		route(verb+" /exec/{namespace}/{pod}/{container}", "proxy", s.exec)
		route(verb+" /exec/{namespace}/{pod}/{uid}/{container}", "proxy", s.exec)
		route(verb+" /attach/{namespace}/{pod}/{container}", "proxy", s.attach)
		route(verb+" /attach/{namespace}/{pod}/{uid}/{container}", "proxy", s.attach)
		route(verb+" /portForward/{namespace}/{pod}", "proxy", s.portForward)
		route(verb+" /portForward/{namespace}/{pod}/{uid}", "proxy", s.portForward)
	}
	route("POST /run/{namespace}/{pod}/{container}", "proxy", s.run)
	route("POST /run/{namespace}/{pod}/{uid}/{container}", "proxy", s.run)
	route("POST /checkpoint/{namespace}/{pod}/{container}", "checkpoint", s.checkpoint)
	route("GET /logs/{path...}", "log", s.machineLogs)
	route("GET /pods", "pods", s.pods)
	route("GET /pods/{$}", "pods", s.pods)
	route("GET /runningpods/{$}", "pods", s.runningPods)
	route("GET /stats/summary", "stats", s.summary)
	route("GET /metrics", "metrics", s.metrics)
	route("GET /metrics/resource", "metrics", s.resourceMetrics)
	route("GET /metrics/cadvisor", "metrics", s.cadvisorMetrics)
	route("GET /metrics/probes", "metrics", s.probeMetrics)
	route("POST "+reach.Path, "proxy", s.reach)
	route("GET "+zpages.SLIPath, "metrics", s.health.Handler().ServeHTTP)
	route("DELETE "+zpages.SLIPath, "metrics", s.health.Handler().ServeHTTP)
	route("GET /configz", "configz", s.configz)
	route("GET "+zpages.FlagsPath, "configz", zpages.FlagsPage("kubelet", s.cfg.Flags).ServeHTTP)
	route("GET /healthz", "healthz", s.healthz)
	route("GET /healthz/{what}", "healthz", s.healthz)
	route("GET "+zpages.StatusPath, "statusz", zpages.Status("kubelet", paths).ServeHTTP) // after all that it lists
	route("/", "proxy", func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	return mux
}

// find a pod on any of the nodes, and its node.
func (s *Server) find(r *http.Request) (Node, *corev1.Pod) {
	if r.PathValue("pod") == "" {
		return nil, nil // it is about a node: thousands that share a server are not asked for a pod without a name
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.nodes {
		if p := n.Pod(r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid"))); p != nil {
			return n, p
		}
	}
	return nil, nil
}

// about is the node that a request is about, if it names no pod: the one that the
// query says, or the only one.
func (s *Server) about(r *http.Request) Node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if name := r.URL.Query().Get("node"); name != "" {
		return s.nodes[name]
	}
	var first Node
	for _, n := range s.nodes {
		if first == nil || n.NodeName() < first.NodeName() {
			first = n
		}
	}
	return first
}

// logs answers what a container wrote.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	n, p := s.find(r)
	name := r.PathValue("container")
	if p == nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	if !hasContainer(p, name) {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", name, p.Name), http.StatusNotFound)
		return
	}
	o, previous, err := logOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	id, err := containerFor(p, name, previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.Done = n.Exited(p.UID, id)
	out := &flusher{w: w}
	if err := readLog(r.Context(), n, id, o, out); err != nil && r.Context().Err() == nil {
		s.cfg.Logger.Info("a log cannot be read", "kind", "Pod", "namespace", p.Namespace, "name", p.Name, "container", name, "error", err)
		if !out.wrote {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	out.begin()
}

func readLog(ctx context.Context, n Node, id string, o logs.Options, out io.Writer) error {
	e := n.Runtime()
	if lr, ok := e.(engine.LogReader); ok {
		r, err := lr.Logs(ctx, id)
		if err != nil {
			return fmt.Errorf("ask the runtime for the log: %w", err)
		}
		defer r.Close()
		return logs.CopyFrom(ctx, r, o, out, out)
	}
	st, err := e.ContainerStatus(ctx, id)
	if err != nil {
		return fmt.Errorf("ask the runtime where the log is: %w", err)
	}
	if st.LogPath == "" {
		return errors.New("the container has no log")
	}
	return logs.Copy(ctx, st.LogPath, o, out, out)
}

// flusher passes on what it is given at once: a follower waits for it.
type flusher struct {
	w     http.ResponseWriter
	wrote bool
}

func (f *flusher) begin() {
	if !f.wrote {
		f.wrote = true
		f.w.Header().Set("Content-Type", "text/plain")
		f.w.WriteHeader(http.StatusOK)
	}
}

func (f *flusher) Write(b []byte) (int, error) {
	f.begin()
	n, err := f.w.Write(b)
	return n, err
}

// Flush passes on what has gathered.
func (f *flusher) Flush() {
	f.begin()
	_ = http.NewResponseController(f.w).Flush()
}

// run answers what a command printed.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	n, p := s.find(r)
	if p == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	id, err := runningContainer(p, r.PathValue("container"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	const limit = 120 // seconds
	out, errs, _, err := n.Runtime().ExecSync(r.Context(), id, r.URL.Query()["cmd"], limit)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(append(out, errs...))
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context, n Node, p *corev1.Pod) (string, error) {
		id, err := runningContainer(p, r.PathValue("container"))
		if err != nil {
			return "", err
		}
		o := streamsOf(r.URL.Query())
		return n.Runtime().Exec(ctx, &cri.ExecRequest{
			ContainerId: id, Cmd: r.URL.Query()["command"], Tty: o.tty, Stdin: o.in, Stdout: o.out,
			Stderr: o.err,
		})
	})
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context, n Node, p *corev1.Pod) (string, error) {
		name := r.PathValue("container")
		id, err := runningContainer(p, name)
		if err != nil {
			return "", err
		}
		o := streamsOf(r.URL.Query())
		// Whether there is a terminal is the container's own matter.
		o.tty = ttyOf(p, name)
		if o.tty {
			o.err = false
		}
		return n.Runtime().Attach(ctx, &cri.AttachRequest{ContainerId: id, Tty: o.tty, Stdin: o.in, Stdout: o.out, Stderr: o.err})
	})
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context, n Node, p *corev1.Pod) (string, error) {
		sb := n.Sandbox(p.UID)
		if sb == "" {
			return "", notThere(fmt.Sprintf("pod %s/%s has no network that is ready", p.Namespace, p.Name))
		}
		ports, err := portsOf(r.URL.Query())
		if err != nil {
			return "", badRequest(err.Error())
		}
		return n.Runtime().PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: sb, Port: ports})
	})
}
