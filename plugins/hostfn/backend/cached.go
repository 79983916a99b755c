// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/view"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

// Cached reads from the watch cache of the server's own process, in the served
// versions. The objects are the cache's own: nobody may change them. Until the
// registries are made, reads are refused as those of a server that is starting.
type Cached struct{ View *view.View }

// Find implements hostfn.Objects.
func (c Cached) Find(_ context.Context, gv schema.GroupVersion, kind, resource string) (hostfn.Resource, error) {
	r, err := c.View.Find(gv, kind, resource)
	if err != nil {
		return hostfn.Resource{}, err
	}
	return hostfn.Resource{GroupVersionResource: gv.WithResource(r.Resource), Kind: r.Kind, Namespaced: r.Namespaced}, nil
}

// Get implements hostfn.Objects.
func (c Cached) Get(ctx context.Context, r hostfn.Resource, namespace, name string, fresh bool) (runtime.Object, string, error) {
	reg, err := c.View.Registry(r.GroupVersionResource.GroupResource())
	if err != nil {
		return nil, "", err
	}
	seen, err := c.View.Revision() // before the read: the answer is at least as new
	if err != nil {
		return nil, "", err
	}
	o, err := reg.Get(ctx, &registry.Request{Version: r.Version, Namespace: namespace, Name: name}, freshness(fresh))
	if apierrors.IsNotFound(err) {
		return nil, seen, nil
	}
	if err != nil {
		return nil, "", err
	}
	v, err := o.Versioned()
	return v, seen, err
}

// List implements hostfn.Objects.
func (c Cached) List(ctx context.Context, r hostfn.Resource, s hostfn.Selection) (hostfn.Page, error) {
	reg, err := c.View.Registry(r.GroupVersionResource.GroupResource())
	if err != nil {
		return hostfn.Page{}, err
	}
	list, err := reg.List(ctx, &registry.Request{Version: r.Version, Namespace: s.Namespace},
		registry.ListOptions{Labels: s.Labels, Fields: s.Fields, ResourceVersion: freshness(s.Fresh)})
	if err != nil {
		return hostfn.Page{}, err
	}
	page := hostfn.Page{ResourceVersion: registry.FormatRevision(list.Revision)}
	for _, item := range list.Items {
		if s.Limit > 0 && len(page.Items) == s.Limit {
			page.More = true
			break
		}
		o, err := reg.InVersion(ctx, item, r.Version)
		if err != nil {
			return page, err
		}
		v, err := o.Versioned()
		if err != nil {
			return page, err
		}
		page.Items = append(page.Items, v)
	}
	return page, nil
}

// freshness is a read's resourceVersion: the newest state, or the one that is there.
func freshness(fresh bool) string {
	if fresh {
		return ""
	}
	return "0"
}
