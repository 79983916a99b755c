// SPDX-License-Identifier: Apache-2.0

// Package reconcilehost runs Reconcilers: control loops whose logic is handed in
// from outside, a Wasm plugin's for one. It owns everything but the logic: watches,
// the queue, the snapshot, carrying out the plan, retries.
//
// A reconciler works as a service account of its own. What it writes goes out under
// that identity; what it reads comes from caches that all reconcilers share, one informer a kind,
// after an access review said that its account may list and watch those kinds. The review
// comes before the call that it is for, and its answer is believed for some seconds, or until RBAC
// changes: a right that is taken away ends what a reconciler sees, at once where RBAC gave it, and
// after Config.Review whatever authorizer did. Who is never called asks nothing.
//
// An idle reconciler is data: no goroutine, no timer, no request. Reconcilers come, change and go
// while the host runs.
package reconcilehost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Config of a Host.
type Config struct {
	// ClientFor makes the client of a service account. Needed.
	ClientFor func(namespace, name string) (dynamic.Interface, error)
	// Reader fills the shared caches, as an identity that may list and watch what
	// reconcilers read. Needed.
	Reader dynamic.Interface
	// Kube discovers kinds and asks for access reviews, as the same identity. Needed
	// unless Mapper and Permitted are given.
	Kube kubernetes.Interface
	// Mapper finds the resource of a kind; nil = by discovery.
	Mapper meta.RESTMapper
	// Permitted says whether an account may see a resource; nil = ask by SubjectAccessReview.
	Permitted Permitted
	// Workers of each reconciler; 0 = 1.
	Workers int
	// Review is how long an answer to the question is believed that a reconciler may see its
	// objects, where RBAC doesn't change before; 0 = 3 s.
	Review time.Duration
	// Retry is how often a reconciler that was refused asks again, where RBAC doesn't
	// change before; 0 = 1 min. It begins with a second and grows.
	Retry time.Duration

	Log    *slog.Logger
	Tracer oteltrace.Tracer
}

// Host runs reconcilers.
type Host struct {
	cfg    Config
	caches *caches
	rbac   *rbac

	mu      sync.Mutex
	wanted  map[string]*hosted
	changed chan struct{}
}

// New makes a host of no reconcilers.
func New(cfg Config) (*Host, error) {
	if cfg.ClientFor == nil || cfg.Reader == nil {
		return nil, errors.New("reconcilehost: ClientFor and Reader are needed")
	}
	if cfg.Kube == nil && (cfg.Mapper == nil || cfg.Permitted == nil) {
		return nil, errors.New("reconcilehost: Kube is needed, or both Mapper and Permitted")
	}
	if cfg.Mapper == nil {
		cfg.Mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(cfg.Kube.Discovery()))
	}
	if cfg.Permitted == nil {
		cfg.Permitted = review(cfg.Kube)
	}
	cfg.Review = cmp.Or(cfg.Review, 3*time.Second)
	cfg.Retry = cmp.Or(cfg.Retry, time.Minute)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Tracer == nil {
		cfg.Tracer = trace.Discard()
	}
	return &Host{
		cfg:     cfg,
		caches:  newCaches(cfg.Reader, cfg.Log),
		rbac:    newRBAC(),
		wanted:  map[string]*hosted{},
		changed: make(chan struct{}, 1),
	}, nil
}

// Set adds a reconciler, or replaces the one of the same name: the old one finishes
// the key that it works on, then the new one sees every object once.
func (h *Host) Set(r controllers.Reconciler) error {
	in := r.Inputs()
	namespace, name, ok := strings.Cut(in.ServiceAccount, "/")
	switch {
	case r.Name() == "":
		return errors.New("a reconciler needs a name")
	case in.Primary.Resource.Resource == "" || in.Primary.Kind == "":
		return fmt.Errorf("reconciler %s: the resource and kind of its primary objects are needed", r.Name())
	case !ok || namespace == "" || name == "" || strings.Contains(name, "/"):
		return fmt.Errorf("reconciler %s: its service account is %q; want NAMESPACE/NAME", r.Name(), in.ServiceAccount)
	}
	for _, o := range in.Owned {
		if o.Resource.Resource == "" || o.Kind == "" {
			return fmt.Errorf("reconciler %s: the resource and kind of each owned object are needed", r.Name())
		}
	}
	client, err := h.cfg.ClientFor(namespace, name)
	if err != nil {
		return fmt.Errorf("reconciler %s: the client of service account %s: %w", r.Name(), in.ServiceAccount, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wanted[r.Name()] = newHosted(h.cfg, r, client, namespace, name, h.rbac)
	h.wake()
	return nil
}

// Remove takes a reconciler out. What it applied stays.
func (h *Host) Remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.wanted, name)
	h.wake()
}

func (h *Host) wake() {
	select {
	case h.changed <- struct{}{}:
	default: // Run will look anyway
	}
}

// Status is how a reconciler does.
type Status struct {
	Name string
	// Serving: it was permitted when it was last called, its caches are filled, keys are worked on.
	Serving bool
	// Problem says why it isn't serving, or what went wrong last; empty if nothing.
	Problem string
	// Reconciles and Failures since it was set.
	Reconciles, Failures uint64
}

// Status of a reconciler; ok is false if there is none of that name.
func (h *Host) Status(name string) (s Status, ok bool) {
	h.mu.Lock()
	r := h.wanted[name]
	h.mu.Unlock()
	if r == nil {
		return Status{}, false
	}
	return r.report(), true
}

// Run serves the reconcilers until ctx ends.
func (h *Host) Run(ctx context.Context) error {
	running := map[string]*lease{}
	// Caches end after those who listen to them.
	defer h.caches.wait()
	defer h.rbac.stop()
	defer func() {
		for _, l := range running {
			l.stop()
		}
	}()
	for {
		h.follow(ctx, running)
		select {
		case <-ctx.Done():
			return nil
		case <-h.changed:
		}
	}
}

// lease is a reconciler that runs.
type lease struct {
	hosted *hosted
	cancel context.CancelFunc
}

func (l *lease) stop() {
	l.cancel()
	l.hosted.stop()
}

// follow starts and stops reconcilers until what runs is what is wanted.
func (h *Host) follow(ctx context.Context, running map[string]*lease) {
	h.mu.Lock()
	wanted := make(map[string]*hosted, len(h.wanted))
	for name, r := range h.wanted {
		wanted[name] = r
	}
	h.mu.Unlock()
	for name, l := range running {
		if wanted[name] != l.hosted {
			l.stop()
			delete(running, name)
		}
	}
	if len(wanted) > 0 {
		if err := h.rbac.follow(ctx, h.caches); err != nil {
			h.cfg.Log.ErrorContext(ctx, "changes of RBAC are not followed", "error", err)
		}
	}
	for name, r := range wanted {
		if running[name] != nil {
			continue
		}
		serving, cancel := context.WithCancel(ctx)
		running[name] = &lease{hosted: r, cancel: cancel}
		r.begin(serving, h.caches)
	}
}
