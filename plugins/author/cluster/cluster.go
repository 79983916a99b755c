// SPDX-License-Identifier: Apache-2.0

// Package cluster is a running cluster for plugins that are tried outside of it: its
// objects answer their host functions, and what it stores can be judged by a plugin as
// if it were written now. It reads with the rights of a kubeconfig and writes nothing.
package cluster

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

// Cluster reads a cluster under the identity of a kubeconfig: objects to ask
// about, and what host functions want to know. It writes nothing.
type Cluster struct {
	set       *client.Set
	discovery discovery.DiscoveryInterface
	mapper    meta.ResettableRESTMapper
	expand    meta.RESTMapper
}

// New makes a Cluster that asks by set.
func New(set *client.Set) *Cluster {
	cached := memory.NewMemCacheClient(set.Kube.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	return &Cluster{set: set, discovery: cached, mapper: mapper, expand: restmapper.NewShortcutExpander(mapper, cached, nil)}
}

// Read reads one object, by a kind, resource or short name as kubectl takes it. namespace "" is default.
func (c *Cluster) Read(ctx context.Context, kind, namespace, name string) (map[string]any, error) {
	m, err := c.find(kind)
	if err != nil {
		return nil, fmt.Errorf("find out what %q is: %w", kind, err)
	}
	if namespace == "" && m.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace = metav1.NamespaceDefault
	}
	u, err := c.in(m.Resource, namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read %s/%s: %w", kind, name, err)
	}
	return u.Object, nil
}

func (c *Cluster) find(kind string) (*meta.RESTMapping, error) {
	if gvr, err := c.expand.ResourceFor(schema.ParseGroupResource(kind).WithVersion("")); err == nil {
		gvk, err := c.mapper.KindFor(gvr)
		if err != nil {
			return nil, err
		}
		return c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	gk := schema.ParseGroupKind(kind)
	return c.mapper.RESTMapping(gk)
}

func (c *Cluster) in(gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return c.set.Dynamic.Resource(gvr)
	}
	return c.set.Dynamic.Resource(gvr).Namespace(namespace)
}

// Namespaces answers the labels of a namespace.
func (c *Cluster) Namespaces(ctx context.Context, name string) (map[string]string, bool) {
	ns, err := c.set.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, false
	}
	return ns.Labels, true
}

// Find implements hostfn.Objects.
func (c *Cluster) Find(_ context.Context, gv schema.GroupVersion, kind, resource string) (hostfn.Resource, error) {
	gvk := gv.WithKind(kind)
	if resource != "" {
		var err error
		if gvk, err = c.mapper.KindFor(gv.WithResource(resource)); err != nil {
			return hostfn.Resource{}, notServed(gv, resource, err)
		}
	}
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return hostfn.Resource{}, notServed(gv, kind, err)
	}
	return hostfn.Resource{GroupVersionResource: m.Resource, Kind: gvk.Kind, Namespaced: m.Scope.Name() == meta.RESTScopeNameNamespace}, nil
}

func notServed(gv schema.GroupVersion, what string, err error) error {
	if meta.IsNoMatchError(err) {
		return apierrors.NewNotFound(schema.GroupResource{Group: gv.Group, Resource: what}, "")
	}
	return err
}

// Get implements hostfn.Objects.
func (c *Cluster) Get(ctx context.Context, r hostfn.Resource, namespace, name string, _ bool) (runtime.Object, string, error) {
	if !r.Namespaced {
		namespace = ""
	}
	u, err := c.in(r.GroupVersionResource, namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	return u, u.GetResourceVersion(), nil
}

// List implements hostfn.Objects.
func (c *Cluster) List(ctx context.Context, r hostfn.Resource, s hostfn.Selection) (hostfn.Page, error) {
	o := metav1.ListOptions{Limit: int64(s.Limit)}
	if s.Labels != nil {
		o.LabelSelector = s.Labels.String()
	}
	if s.Fields != nil {
		o.FieldSelector = s.Fields.String()
	}
	list, err := c.in(r.GroupVersionResource, s.Namespace).List(ctx, o)
	if err != nil {
		return hostfn.Page{}, err
	}
	page := hostfn.Page{ResourceVersion: list.GetResourceVersion(), More: list.GetContinue() != ""}
	for i := range list.Items {
		page.Items = append(page.Items, &list.Items[i])
	}
	return page, nil
}

// pageSize bounds how much of a resource is held at once.
const pageSize = 500

// each reads all objects of a resource, in pages.
func (c *Cluster) each(ctx context.Context, gvr schema.GroupVersionResource, namespace string, do func(tree map[string]any) error) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := c.in(gvr, namespace).List(ctx, o)
		if err != nil {
			return fmt.Errorf("list %s: %w", gvr.Resource, err)
		}
		for i := range list.Items {
			if list.Items[i].GetAPIVersion() == "" { // items of lists may leave out what the list says
				list.Items[i].SetGroupVersionKind(list.GroupVersionKind())
			}
			if err := do(list.Items[i].Object); err != nil {
				return err
			}
		}
		if o.Continue = list.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// resources lists what the cluster serves and can list, in the preferred versions.
func (c *Cluster) resources() (out []metav1.APIResource, err error) {
	lists, err := discovery.ServerPreferredResources(c.discovery)
	var partial *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partial) { // an aggregated API that is down is no reason to audit nothing
		return nil, fmt.Errorf("ask what the cluster serves: %w", err)
	}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			r.Group, r.Version = gv.Group, gv.Version
			out = append(out, r)
		}
	}
	return out, nil
}

var _ hostfn.Objects = (*Cluster)(nil)

// Nodes are the cluster's nodes with their pods.
func (c *Cluster) Nodes(ctx context.Context) (n author.Nodes, err error) {
	nodes, err := c.set.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return n, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := c.set.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName!="})
	if err != nil {
		return n, fmt.Errorf("list pods: %w", err)
	}
	for i := range nodes.Items {
		n.Nodes = append(n.Nodes, &nodes.Items[i])
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			n.Running = append(n.Running, p)
		}
	}
	return n, nil
}
