// SPDX-License-Identifier: Apache-2.0

// Package view is what the rest of the server reads of the registries: which
// resources are served, and their objects as the watch cache has them.
package view

import (
	"context"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
)

// View is there before the registries are, because admission needs it and the
// registries need admission. Until Use gives it the registries, reads are refused as
// those of a server that is starting, and no resource is known.
//
// View implements admission.Resources, and what admission/policy asks of objects.
// It is safe for concurrent use, and authorizes nobody.
type View struct {
	contract *api.Contract
	set      atomic.Pointer[registry.Set]
}

// New makes a view of registries that are not made yet.
func New(contract *api.Contract) *View { return &View{contract: contract} }

// Use gives the view its registries.
func (v *View) Use(set *registry.Set) { v.set.Store(set) }

// Set returns the registries. The error is ServiceUnavailable until Use was called.
func (v *View) Set() (*registry.Set, error) {
	if set := v.set.Load(); set != nil {
		return set, nil
	}
	return nil, apierrors.NewServiceUnavailable("the apiserver is starting")
}

// Registry finds the registry of a resource. The error is ServiceUnavailable
// until Use was called, and NotFound for what is not served.
func (v *View) Registry(gr schema.GroupResource) (*registry.Registry, error) {
	set, err := v.Set()
	if err != nil {
		return nil, err
	}
	r, ok := set.For(gr)
	if !ok {
		return nil, apierrors.NewNotFound(gr, "")
	}
	return r, nil
}

// Find says what serves a kind or a resource of a group version; "" matches each
// of them. Resources that store nothing are not found. The errors are Registry's.
func (v *View) Find(gv schema.GroupVersion, kind, resource string) (*api.Resource, error) {
	set, err := v.Set()
	if err != nil {
		return nil, err
	}
	rows, _ := set.Resources()
	for _, r := range rows {
		if r.Group == gv.Group && !r.Virtual && r.Serves(gv.Version) && (resource == "" || r.Resource == resource) &&
			(kind == "" || r.Kind == kind) {
			return r, nil
		}
	}
	return nil, apierrors.NewNotFound(gv.WithResource(resource).GroupResource(), kind)
}

// ResourceOf finds the resource that serves a kind, built in or not.
func (v *View) ResourceOf(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	set, err := v.Set()
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	rows, _ := set.Resources()
	for _, r := range rows {
		if r.Group == kind.Group && r.Kind == kind.Kind && r.Serves(kind.Version) {
			return r.GroupResource.WithVersion(kind.Version), nil
		}
	}
	return schema.GroupVersionResource{}, fmt.Errorf("no resource serves kind %s", kind)
}

// Equivalents implements admission.Resources: rows that store the same objects
// under the same keys are one resource, in every version that they serve.
func (v *View) Equivalents(gvr schema.GroupVersionResource, subresource string) (out []admission.Equivalent) {
	set := v.set.Load()
	if set == nil {
		return nil
	}
	own, ok := set.For(gvr.GroupResource())
	if !ok || own.Resource().Virtual {
		return nil
	}
	rows, _ := set.Resources()
	for _, row := range rows {
		if row.Virtual || row.StoragePrefix != own.Resource().StoragePrefix {
			continue
		}
		r, ok := set.For(row.GroupResource)
		if !ok {
			continue // it has been removed meanwhile
		}
		for _, version := range row.Versions {
			if e, ok := equivalent(r, version, subresource); ok {
				out = append(out, e)
			}
		}
	}
	return out
}

// Namespaced says whether a kind's objects are in namespaces; known is false for
// a kind that is not served.
func (v *View) Namespaced(kind schema.GroupVersionKind) (namespaced, known bool) {
	r, err := v.Find(kind.GroupVersion(), kind.Kind, "")
	if err != nil {
		return false, false
	}
	return r.Namespaced, true
}

// Get reads one object of a kind with its kind set: from the watch cache, and
// from the store where the cache has not seen the object yet.
func (v *View) Get(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error) {
	o, err := v.get(ctx, kind, namespace, name, "0")
	if apierrors.IsNotFound(err) {
		return v.get(ctx, kind, namespace, name, "")
	}
	return o, err
}

// GetNewest is Get, but of the object as it is stored when it is called.
func (v *View) GetNewest(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error) {
	return v.get(ctx, kind, namespace, name, "")
}

func (v *View) get(ctx context.Context, kind schema.GroupVersionKind, namespace, name, revision string) (runtime.Object, error) {
	r, err := v.ofKind(kind)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
	}
	if err != nil {
		return nil, err
	}
	o, err := r.Get(ctx, &registry.Request{Version: kind.Version, Namespace: namespace, Name: name}, revision)
	if err != nil {
		return nil, err
	}
	return o.Named()
}

// List reads the objects of a kind that a selector matches, with their kind set,
// from the watch cache. A kind that is not served has none.
func (v *View) List(ctx context.Context, kind schema.GroupVersionKind, namespace string,
	selector labels.Selector,
) ([]runtime.Object, error) {
	return v.list(ctx, kind, namespace, registry.ListOptions{Labels: selector, ResourceVersion: "0"})
}

// ListNewest is List, but of the objects as they are stored when it is called.
func (v *View) ListNewest(ctx context.Context, kind schema.GroupVersionKind, namespace string,
	selector labels.Selector,
) ([]runtime.Object, error) {
	return v.list(ctx, kind, namespace, registry.ListOptions{Labels: selector})
}

func (v *View) list(ctx context.Context, kind schema.GroupVersionKind, namespace string, o registry.ListOptions,
) ([]runtime.Object, error) {
	r, err := v.ofKind(kind)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := r.List(ctx, &registry.Request{Version: kind.Version, Namespace: namespace}, o)
	if err != nil {
		return nil, err
	}
	objects, err := r.AllInVersion(ctx, list.Items, kind.Version)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Object, len(objects))
	for i, o := range objects {
		if out[i], err = o.Named(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// state is what the objects of a kind are at one time.
type state struct {
	registry *registry.Registry // nil: the kind is not served
	changes  uint64
}

// State is a value that can be compared: as long as it is the same, List lists the same objects of a kind. It is to be asked before List.
func (v *View) State(kind schema.GroupVersionKind) (any, error) {
	r, err := v.ofKind(kind)
	if apierrors.IsNotFound(err) {
		return state{}, nil
	}
	if err != nil {
		return nil, err
	}
	return state{r, r.Changes()}, nil
}

// Types knows the schema of a kind, which apply configurations need. What is
// built in is known from the beginning.
func (v *View) Types(kind schema.GroupVersionKind) (managedfields.TypeConverter, error) {
	r, err := v.Find(kind.GroupVersion(), kind.Kind, "")
	if err != nil {
		var ok bool
		if r, ok = v.contract.ByKind(kind.GroupKind()); !ok {
			return nil, fmt.Errorf("the server does not serve %v", kind)
		}
	}
	return v.contract.TypeConverter(r)
}

// Revision is the resourceVersion of the newest state that the watch cache has seen.
func (v *View) Revision() (string, error) {
	set, err := v.Set()
	if err != nil {
		return "", err
	}
	return registry.FormatRevision(set.Revision()), nil
}

// ofKind is the registry of a kind. Its errors are Registry's.
func (v *View) ofKind(kind schema.GroupVersionKind) (*registry.Registry, error) {
	res, err := v.Find(kind.GroupVersion(), kind.Kind, "")
	if err != nil {
		return nil, err
	}
	return v.Registry(res.GroupResource)
}

func equivalent(r *registry.Registry, version, subresource string) (admission.Equivalent, bool) {
	res := r.Resource()
	e := admission.Equivalent{Resource: res.WithVersion(version), Kind: res.GVK(version)}
	if subresource != "" {
		sub := res.SubresourcesIn(version)[subresource]
		if sub == nil {
			return e, false
		}
		if !sub.WritesParent() { // a Scale, a Binding: the same in every version
			e.Kind = sub.Kind
			return e, true
		}
	}
	e.Convert = func(ctx context.Context, o *object.Object) (*object.Object, error) {
		return r.Convert(ctx, o, version)
	}
	return e, true
}
