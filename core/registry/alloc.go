package registry

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/wasmplane/wasmplane/core/api/services"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Services says which addresses and ports Services get.
type Services struct {
	// CIDRs of cluster IPs, the primary family's first; empty = 10.96.0.0/12.
	CIDRs []string
	// FirstNodePort and LastNodePort; 0 = 30000 and 32767.
	FirstNodePort, LastNodePort int
}

// allocations gives Services their addresses and ports. What is in use is in
// the store, as IPAddress objects and as upstream's allocation of node ports.
type allocations struct {
	set       *Set
	allocator *services.Allocator
}

func newAllocations(s *Set) (*allocations, error) {
	cfg := s.cfg.Services
	if len(cfg.CIDRs) == 0 {
		cfg.CIDRs = []string{"10.96.0.0/12"}
	}
	if cfg.FirstNodePort == 0 && cfg.LastNodePort == 0 {
		cfg.FirstNodePort, cfg.LastNodePort = 30000, 32767
	}
	a := &allocations{set: s}
	var pools []*services.AddressPool
	for _, cidr := range cfg.CIDRs {
		p, err := services.NewAddressPool(cidr, addresses{s})
		if err != nil {
			return nil, err
		}
		pools = append(pools, p)
	}
	ports, err := services.NewPortRange(cfg.FirstNodePort, cfg.LastNodePort, nodePorts{s})
	if err != nil {
		return nil, err
	}
	a.allocator, err = services.New(services.Config{Pools: pools, Ports: ports, Failed: func(err error) {
		s.cfg.Logger.Warn("A claim of a Service could not be taken back; a repair will find it.", "error", err)
	}})
	return a, err
}

func (r *Registry) isServices() bool {
	return r.res.Group == "" && r.res.GroupResource.Resource == "services"
}

// claim makes the claims of one write; existing is nil for a create. nil claims
// are those of everything that is not a Service.
func (a *allocations) claim(ctx context.Context, w *write, internal, existing runtime.Object) (*services.Claims, error) {
	if !w.r.isServices() || w.req.Subresource != "" {
		return nil, nil
	}
	if existing == nil {
		return a.allocator.Create(ctx, internal, w.opts.isDryRun())
	}
	return a.allocator.Update(ctx, internal, existing, w.opts.isDryRun())
}

// settle keeps the claims of a write that was stored, and takes the others
// back, also where the client has gone in between.
func (a *allocations) settle(ctx context.Context, claims *services.Claims, stored bool) {
	ctx = context.WithoutCancel(ctx)
	switch {
	case claims == nil:
	case stored:
		claims.Commit(ctx)
	default:
		claims.Revert(ctx)
	}
}

// deleted releases what a deleted Service had.
func (a *allocations) deleted(ctx context.Context, r *Registry, item *watchcache.Item) {
	if !r.isServices() {
		return
	}
	internal, _, err := internalCopy(item)
	if err != nil {
		r.cfg.Logger.WarnContext(ctx, "A deleted Service could not be read; a repair will release its claims.", "key", item.Key, "error", err)
		return
	}
	a.allocator.Released(context.WithoutCancel(ctx), internal)
}

// addresses implements services.Addresses on the registry of IPAddresses.
type addresses struct{ set *Set }

// Claim implements services.Addresses.
func (a addresses) Claim(ctx context.Context, o *networkingv1.IPAddress) error {
	r, err := a.registry()
	if err != nil {
		return err
	}
	return r.make(ctx, o)
}

// Release implements services.Addresses.
func (a addresses) Release(ctx context.Context, name string) error {
	r, err := a.registry()
	if err != nil {
		return err
	}
	for {
		kv, err := r.cfg.Store.Get(ctx, r.prefix()+name)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = r.cfg.Store.Delete(ctx, kv.Key, kv.ModRevision)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
	}
}

// Taken implements services.Addresses.
func (a addresses) Taken(name string) bool {
	r, err := a.registry()
	if err != nil {
		return false
	}
	_, _, ok := r.cached.Get(r.prefix() + name)
	return ok
}

func (a addresses) registry() (*Registry, error) {
	return a.set.Builtin(networkingv1.Resource("ipaddresses"))
}

// make creates an object of the server's own, in the storage version: the
// strategy judges it, admission does not.
func (r *Registry) make(ctx context.Context, versioned runtime.Object) error {
	codec := r.res.StorageCodec()
	codec.Default(versioned)
	obj := object.FromVersioned(codec, versioned)
	m, err := obj.Meta()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	rest.FillObjectMetaSystemFields(m)
	internal, err := obj.Internal()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	req := &Request{Version: r.res.StorageVersion.Version, Namespace: m.GetNamespace(), Name: m.GetName()}
	own := genericrequest.WithRequestInfo(ctx, &genericrequest.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIGroup: r.res.Group, APIVersion: req.Version, Resource: r.res.GroupResource.Resource,
		Namespace: req.Namespace, Name: req.Name,
	})
	if err := rest.BeforeCreate(r.res.Strategy, r.Context(own, req), internal); err != nil {
		return err
	}
	obj.SetInternal(internal)
	key, err := r.key(req.Namespace, req.Name)
	if err != nil {
		return err
	}
	w := &write{r: r, req: req, codec: codec, key: key}
	_, err = w.store(ctx, obj, 0)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return apierrors.NewAlreadyExists(r.res.GroupResource, req.Name)
	}
	return err
}

// nodePorts implements services.Ranges on the key that upstream uses.
type nodePorts struct{ set *Set }

// Read implements services.Ranges.
func (n nodePorts) Read(ctx context.Context) (*corev1.RangeAllocation, error) {
	current, _, err := n.read(ctx)
	return current, err
}

func (n nodePorts) read(ctx context.Context) (*corev1.RangeAllocation, int64, error) {
	kv, err := n.set.cfg.Store.Get(ctx, root+services.NodePortsKey)
	if errors.Is(err, store.ErrNotFound) {
		return &corev1.RangeAllocation{}, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the claims of node ports: %w", err)
	}
	current, err := services.DecodeRange(kv.Value)
	return current, kv.ModRevision, err
}

// Update implements services.Ranges.
func (n nodePorts) Update(ctx context.Context, change func(*corev1.RangeAllocation) error) error {
	for {
		current, revision, err := n.read(ctx)
		if err != nil {
			return err
		}
		if err := change(current); err != nil {
			return err
		}
		value, err := services.EncodeRange(current)
		if err != nil {
			return err
		}
		_, err = n.set.cfg.Store.Put(ctx, root+services.NodePortsKey, value, revision, 0)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
	}
}
