// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/wasmplane/wasmplane/core/api/services"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/allocation"
	"github.com/wasmplane/wasmplane/core/registry/ended"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

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
		kv, err := r.cfg.Store.Get(ctx, r.reads.Prefix()+name)
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
	_, ok := r.reads.Cached(r.reads.Prefix() + name)
	return ok
}

func (a addresses) registry() (*Registry, error) {
	return a.set.Builtin(networkingv1.Resource("ipaddresses"))
}

// serviceCIDRs implements servicenetwork.Source on the registry of ServiceCIDRs.
type serviceCIDRs struct{ set *Set }

// Cached implements servicenetwork.Source.
func (c serviceCIDRs) Cached() []*watchcache.Item {
	if r, err := c.registry(); err == nil {
		return r.cached.List(watchcache.ListOptions{}).Items
	}
	return nil
}

// Stored implements servicenetwork.Source.
func (c serviceCIDRs) Stored(ctx context.Context, key string) (*watchcache.Item, error) {
	r, err := c.registry()
	if err != nil {
		return nil, err
	}
	return r.reads.Stored(ctx, key)
}

func (c serviceCIDRs) registry() (*Registry, error) {
	return c.set.Builtin(networkingv1.Resource("servicecidrs"))
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
	key, err := r.reads.Key(req.Namespace, req.Name)
	if err != nil {
		return err
	}
	w := &write{r: r, req: req, Body: r.body(req, codec), key: key}
	_, err = w.store(ctx, obj, nil)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return apierrors.NewAlreadyExists(r.res.GroupResource, req.Name)
	}
	return err
}

func (r *Registry) isServices() bool {
	return r.res.Group == "" && r.res.GroupResource.Resource == "services"
}

// claim makes the claims of one write of a Service; existing is nil for a create.
// All other writes have none.
func (w *write) claim(ctx context.Context, internal, existing runtime.Object) (*allocation.Claims, error) {
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	if !w.r.isServices() || w.req.Subresource != "" {
		return nil, nil
	}
	return w.r.set.services.Claim(ctx, internal, existing, w.Options.IsDryRun())
}

// released releases what a deleted Service had.
func (r *Registry) released(ctx context.Context, item *watchcache.Item) {
	if !r.isServices() {
		return
	}
	internal, _, err := internalCopy(item)
	if err != nil {
		r.cfg.Logger.WarnContext(ctx, "a deleted Service could not be read; a repair will release its claims", "key", item.Key, "error", err)
		return
	}
	r.set.services.Release(ctx, internal)
}

// RepairServices compares the claims of addresses and node ports with the Services
// of c, at once and then as often as every says, puts right what differs and logs
// it. It ends with ctx.
func (s *Set) RepairServices(ctx context.Context, c services.Cluster, every time.Duration) {
	s.services.Repair(ctx, c, every)
}
