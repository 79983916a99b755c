// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

// Client reads by a client of the API, whose server answers from its cache.
type Client struct {
	set    *client.Set
	mapper meta.ResettableRESTMapper
}

// NewClient makes a Client with the rights of set's identity.
func NewClient(set *client.Set) Client {
	return Client{set, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(set.Kube.Discovery()))}
}

// Find implements hostfn.Objects.
func (c Client) Find(_ context.Context, gv schema.GroupVersion, kind, resource string) (hostfn.Resource, error) {
	gvk := gv.WithKind(kind)
	if kind == "" {
		var err error
		if gvk, err = c.mapper.KindFor(gv.WithResource(resource)); err != nil {
			return hostfn.Resource{}, err
		}
	}
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gv.Version)
	if err != nil {
		return hostfn.Resource{}, err
	}
	if resource != "" && m.Resource.Resource != resource {
		return hostfn.Resource{}, apierrors.NewNotFound(gv.WithResource(resource).GroupResource(), kind)
	}
	return hostfn.Resource{GroupVersionResource: m.Resource, Kind: gvk.Kind, Namespaced: m.Scope.Name() == meta.RESTScopeNameNamespace}, nil
}

// Get implements hostfn.Objects.
func (c Client) Get(ctx context.Context, r hostfn.Resource, namespace, name string, fresh bool) (runtime.Object, string, error) {
	o, err := c.set.Dynamic.Resource(r.GroupVersionResource).Namespace(namespace).Get(ctx, name,
		metav1.GetOptions{ResourceVersion: freshness(fresh)})
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	return o, o.GetResourceVersion(), nil
}

// List implements hostfn.Objects.
func (c Client) List(ctx context.Context, r hostfn.Resource, s hostfn.Selection) (hostfn.Page, error) {
	l, err := c.set.Dynamic.Resource(r.GroupVersionResource).Namespace(s.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: s.Labels.String(), FieldSelector: s.Fields.String(), Limit: int64(s.Limit), ResourceVersion: freshness(s.Fresh),
	})
	if err != nil {
		return hostfn.Page{}, err
	}
	page := hostfn.Page{ResourceVersion: l.GetResourceVersion(), More: l.GetContinue() != ""}
	for i := range l.Items {
		if s.Limit > 0 && i == s.Limit { // a list from the cache comes whole
			page.More = true
			break
		}
		page.Items = append(page.Items, &l.Items[i])
	}
	return page, nil
}
