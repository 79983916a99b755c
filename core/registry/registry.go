// SPDX-License-Identifier: Apache-2.0

// Package registry gives every API resource its behaviour: what get, list,
// watch, create, update, patch and delete mean, over upstream's strategies, the
// store and the watch cache. It knows no HTTP.
//
// It guarantees that a write is one compare-and-swap of what strategy, field
// management and admission made of exactly the state that it replaces, and that the
// answer to a write carries the revision at which it is durable. Reads are those of
// core/registry/reader.
//
// What does more than that to an object is an action: see core/registry/action.
//
// It refuses to authenticate or authorize: callers have done both. The one
// question that it asks the authorizer itself is whether an update that turns
// out to create may create.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry/allocation"
	"github.com/wasmplane/wasmplane/core/registry/optimistic"
	"github.com/wasmplane/wasmplane/core/registry/reader"
	"github.com/wasmplane/wasmplane/core/registry/servicenetwork"
	"github.com/wasmplane/wasmplane/core/registry/turns"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Admission is the chain as the registry uses it: mutators before the strategy,
// validators on what is going to be stored.
type Admission interface {
	Mutate(ctx context.Context, r *admission.Request) error
	Validate(ctx context.Context, r *admission.Request) error
}

// RoleGuard judges writes of roles and bindings; core/api/rbac.Guard is one.
// old is nil for a create. The objects are versioned.
type RoleGuard interface {
	Check(ctx context.Context, u user.Info, namespace, name string, obj, old runtime.Object) error
}

// Config is what all registries share.
type Config struct {
	Contract   *api.Contract
	Store      store.Store
	Cache      *watchcache.Cache
	Admission  Admission        // nil = nobody has a say
	Authorizer authz.Authorizer // asked when an update creates; nil = it may not
	// Services says which addresses and ports Services get, besides the addresses of
	// ServiceCIDRs that are ready.
	Services allocation.Ranges
	// Computed make the objects of resources that are stored nowhere. The rows of
	// metrics.k8s.io are served only where they are among these.
	Computed map[schema.GroupResource]reader.Computed
	// Roles refuses writes of roles and bindings that hand out more than their
	// writer has; nil = nobody is refused.
	Roles RoleGuard
	// Space says whether there is room for a write; nil = the store alone does.
	// Administrators are the groups whose members may use what is kept back.
	Space          Space
	Administrators []string
	Logger         *slog.Logger     // nil = discard
	Tracer         oteltrace.Tracer // nil = discard
	Now            func() time.Time // nil = time.Now
}

// Set is the registries of everything that is served. Rows can be added and
// removed while it serves (custom resources).
type Set struct {
	cfg      Config
	served   atomic.Pointer[served]
	services *allocation.Allocator
	turns    *turns.Turns
	written  *optimistic.Written
}

// served is one state of the set, never changed once it is in place.
type served struct {
	generation uint64
	order      []*api.Resource
	byName     map[schema.GroupResource]*Registry
	cached     map[string]*watchcache.Resource // by key prefix: events are served by two rows
}

// New makes the registries of every row of the contract and registers them with
// the watch cache.
func New(cfg Config) (*Set, error) {
	switch {
	case cfg.Contract == nil:
		return nil, errors.New("registry: Config.Contract is missing")
	case cfg.Store == nil:
		return nil, errors.New("registry: Config.Store is missing")
	case cfg.Cache == nil:
		return nil, errors.New("registry: Config.Cache is missing")
	}
	if cfg.Admission == nil {
		cfg.Admission = nobody{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Tracer == nil {
		cfg.Tracer = trace.Discard()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Set{cfg: cfg, turns: turns.New(), written: optimistic.NewWritten()}
	var err error
	if s.services, err = allocation.New(allocation.Config{
		Ranges: cfg.Services, Networks: servicenetwork.New(serviceCIDRs{s}, cfg.Services.Complete().CIDRs), Addresses: addresses{s},
		Store: cfg.Store, Logger: cfg.Logger,
	}); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	s.served.Store(&served{byName: map[schema.GroupResource]*Registry{}, cached: map[string]*watchcache.Resource{}})
	for _, res := range cfg.Contract.Resources() {
		if _, made := cfg.Computed[res.GroupResource]; res.Group == api.MetricsGroup && !made {
			continue
		}
		if err := s.Add(res); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Add serves one more row. It replaces a row of the same name, whose watches end
// where the new one has another definition: clients list anew what it makes of
// the objects.
func (s *Set) Add(res *api.Resource) error {
	for {
		old := s.served.Load()
		next := old.copy()
		r := &Registry{set: s, cfg: &s.cfg, res: res, decode: s.cfg.Contract.WatchDecoder(res), ends: &run.Ends{}}
		prefix := reader.Prefix(res)
		before := next.byName[res.GroupResource]
		if before != nil && before.res.Custom == res.Custom {
			r.ends = before.ends // the same definition: watches go on
		}
		if !res.Virtual {
			cached, known := next.cached[prefix]
			if !known {
				var err error
				if cached, err = s.cfg.Cache.Register(prefix, r.decode); err != nil {
					return fmt.Errorf("register %s with the watch cache: %w", res.GroupResource, err)
				}
				next.cached[prefix] = cached
			}
			r.cached = cached
		}
		r.reads = reader.New(s.reading(), res, r.cached, r.decode)
		next.byName[res.GroupResource] = r
		if i := slices.IndexFunc(next.order, func(o *api.Resource) bool { return o.GroupResource == res.GroupResource }); i >= 0 {
			next.order[i] = res
		} else {
			next.order = append(next.order, res)
		}
		if s.served.CompareAndSwap(old, next) {
			if before != nil && before.ends != r.ends {
				before.ends.End()
			}
			return nil
		}
	}
}

// reading is what readers share.
func (s *Set) reading() reader.Config {
	return reader.Config{Contract: s.cfg.Contract, Store: s.cfg.Store, Cache: s.cfg.Cache, Computed: s.cfg.Computed, Logger: s.cfg.Logger}
}

// Count is how many objects a resource has, as far as the watch cache has seen;
// false: it is not served, or not stored.
func (s *Set) Count(gr schema.GroupResource) (int, bool) {
	r, ok := s.served.Load().byName[gr]
	if !ok || r.cached == nil {
		return 0, false
	}
	return r.cached.Count(), true
}

// Remove stops serving a row and ends its watches.
func (s *Set) Remove(gr schema.GroupResource) {
	for {
		old := s.served.Load()
		r, ok := old.byName[gr]
		if !ok {
			return
		}
		next := old.copy()
		delete(next.byName, gr)
		next.order = slices.DeleteFunc(next.order, func(o *api.Resource) bool { return o.GroupResource == gr })
		shared := false
		for _, other := range next.byName {
			shared = shared || other.cached == r.cached
		}
		if !shared && r.cached != nil {
			delete(next.cached, r.reads.Prefix())
		}
		if !s.served.CompareAndSwap(old, next) {
			continue
		}
		r.ends.End()
		if !shared && r.cached != nil {
			s.cfg.Cache.Unregister(r.cached)
		}
		return
	}
}

func (v *served) copy() *served {
	next := &served{
		generation: v.generation + 1, order: slices.Clone(v.order),
		byName: make(map[schema.GroupResource]*Registry, len(v.byName)+1), cached: make(map[string]*watchcache.Resource, len(v.cached)+1),
	}
	for k, r := range v.byName {
		next.byName[k] = r
	}
	for k, c := range v.cached {
		next.cached[k] = c
	}
	return next
}

// For finds the registry of a resource.
func (s *Set) For(gr schema.GroupResource) (*Registry, bool) {
	r, ok := s.served.Load().byName[gr]
	return r, ok
}

// Resources lists what is served, in the order in which it was added, and a
// number that changes whenever the list does.
func (s *Set) Resources() ([]*api.Resource, uint64) {
	v := s.served.Load()
	return v.order, v.generation
}

// Revision is the newest state that the watch cache has seen.
func (s *Set) Revision() int64 { return s.cfg.Cache.Revision() }

// Registry is the behaviour of one resource. It is safe for concurrent use.
type Registry struct {
	set    *Set
	cfg    *Config
	res    *api.Resource
	cached *watchcache.Resource // nil for virtual resources
	decode watchcache.Decoder
	reads  *reader.Reader
	ends   *run.Ends // of the requests that do not outlive the row
}

// OnEnd has cancel called when the row is removed or gets another definition,
// unless forget was called before. Long-running requests use it.
func (r *Registry) OnEnd(cancel context.CancelFunc) (forget func()) { return r.ends.Add(cancel) }

// Resource is the row that the registry serves.
func (r *Registry) Resource() *api.Resource { return r.res }

// nobody is the admission chain without plugins.
type nobody struct{}

func (nobody) Mutate(context.Context, *admission.Request) error   { return nil }
func (nobody) Validate(context.Context, *admission.Request) error { return nil }
