// SPDX-License-Identifier: Apache-2.0

// Package namespace empties namespaces that are being deleted, then lets them go.
//
// Pods go first, everything else when no pod is left. A namespace is released
// (its "kubernetes" finalizer removed) only after a pass that could look at every
// resource type the server has and found none left: an error of discovery keeps it.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// settle is how long after the deletion the last look must have begun. An
// apiserver may not have heard of the deletion yet and still let a create through.
const settle = 2 * time.Second

// page is how many objects one list returns at most.
const page = 500

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// Discover lists the preferred version of every namespaced resource. It may return
// both lists and an error, when some groups could not be asked.
type Discover func() ([]*metav1.APIResourceList, error)

// Controller empties and finalizes namespaces.
type Controller struct {
	client     kubernetes.Interface
	metadata   metadata.Interface
	discover   Discover
	namespaces corelisters.NamespaceLister
	loop       *controllers.Loop[string]
}

// New makes the controller. discover may be nil: then the client's discovery is asked.
func New(env controllers.Env, workers int, metadata metadata.Interface, discover Discover) (*Controller, error) {
	if metadata == nil {
		return nil, errors.New("namespace-controller: no metadata client was given")
	}
	if discover == nil {
		discover = env.Client.Discovery().ServerPreferredNamespacedResources
	}
	core := env.Informers.Core().V1()
	c := &Controller{client: env.Client, metadata: metadata, discover: discover, namespaces: core.Namespaces().Lister()}
	c.loop = controllers.NewLoop(env, "namespace-controller", workers, c.reconcile)
	c.loop.Watch(core.Namespaces().Informer(), controllers.Changes(func(_, current metav1.Object) {
		if current != nil && current.GetDeletionTimestamp() != nil {
			c.loop.Add(current.GetName())
		}
	}))
	// The end of a pod is what most deletions wait for.
	c.loop.Watch(core.Pods().Informer(), controllers.Changes(func(old, current metav1.Object) {
		if current != nil {
			return
		}
		if ns, err := c.namespaces.Get(old.GetNamespace()); err == nil && ns.DeletionTimestamp != nil {
			c.loop.Add(ns.Name)
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, name string) error {
	// Read from the server: what is decided here cannot be taken back.
	ns, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp == nil || len(ns.Spec.Finalizers) == 0 {
		return nil
	}
	controllers.About(ctx, "Namespace", ns)
	if ns.Status.Phase != corev1.NamespaceTerminating {
		ns.Status.Phase = corev1.NamespaceTerminating
		if ns, err = c.client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("marking as terminating: %w", err)
		}
	}
	began := time.Now()
	found := c.empty(ctx, ns)
	if merge(&ns.Status, found.conditions(began)) {
		if ns, err = c.client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("writing conditions: %w", errors.Join(err, found.err()))
		}
		controllers.Did(ctx, "conditions updated", "Namespace", nil)
	}
	if err := found.err(); err != nil {
		return err
	}
	if found.left() > 0 || found.partial {
		return controllers.ErrNotYet
	}
	if wait := ns.DeletionTimestamp.Add(settle).Sub(began); wait > 0 {
		c.loop.AddAfter(name, wait)
		return nil
	}
	return c.release(ctx, ns)
}

// release removes our finalizer; the server removes the namespace with the last one.
func (c *Controller) release(ctx context.Context, ns *corev1.Namespace) error {
	done := ns.DeepCopy()
	done.Spec.Finalizers = slices.DeleteFunc(done.Spec.Finalizers,
		func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := c.client.CoreV1().Namespaces().Finalize(ctx, done, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finalizing: %w", err)
	}
	controllers.Did(ctx, "finalized", "Namespace", nil)
	return nil
}

// empty deletes what it finds, pods before all else, and reports what is left.
func (c *Controller) empty(ctx context.Context, ns *corev1.Namespace) *findings {
	f := &findings{remaining: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
	lists, err := c.discover()
	f.discovery = err
	deletable := discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete", "list"}}, lists)
	resources, bulk := map[schema.GroupVersionResource]bool{}, map[schema.GroupVersionResource]bool{}
	for _, list := range deletable {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			f.parsing = errors.Join(f.parsing, err)
			continue
		}
		for _, r := range list.APIResources {
			resources[gv.WithResource(r.Name)] = true
			bulk[gv.WithResource(r.Name)] = slices.Contains(r.Verbs, "deletecollection")
		}
	}
	if resources[podResource] {
		c.emptyOf(ctx, ns, podResource, bulk[podResource], f)
		if f.remaining[podResource] > 0 {
			f.partial = true
			return f
		}
	}
	for r := range resources {
		if r != podResource && ctx.Err() == nil {
			c.emptyOf(ctx, ns, r, bulk[r], f)
		}
	}
	return f
}

// emptyOf deletes all objects of one resource. Most resources have none in most
// namespaces, so it looks before it deletes.
func (c *Controller) emptyOf(ctx context.Context, ns *corev1.Namespace, r schema.GroupVersionResource, bulk bool, f *findings) {
	failed := func(what string, err error) {
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return // the resource went away, with all its objects, or isn't really listable
		}
		f.deletion = append(f.deletion, fmt.Errorf("%s %s: %w", what, r.GroupResource(), err))
	}
	before, err := c.list(ctx, ns.Name, r)
	if err != nil {
		failed("listing", err)
		return
	}
	if len(before) == 0 {
		return
	}
	if err := c.deleteAll(ctx, ns.Name, r, bulk, before); err != nil {
		failed("deleting", err)
	}
	controllers.Did(ctx, fmt.Sprintf("deleted %d %s", len(before), r.GroupResource()), "Namespace", nil)
	after, err := c.list(ctx, ns.Name, r)
	if err != nil {
		failed("listing", err)
		return
	}
	if len(after) > 0 {
		f.remaining[r] = len(after)
	}
	for _, obj := range after {
		for _, finalizer := range obj.Finalizers {
			f.finalizers[finalizer]++
		}
	}
}

func (c *Controller) deleteAll(ctx context.Context, ns string, r schema.GroupVersionResource, bulk bool,
	objects []metav1.PartialObjectMetadata,
) error {
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &background}
	if bulk {
		err := c.metadata.Resource(r).Namespace(ns).DeleteCollection(ctx, opts, metav1.ListOptions{})
		if !apierrors.IsMethodNotSupported(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	var errs []error
	for i := range objects {
		err := c.metadata.Resource(r).Namespace(ns).Delete(ctx, objects[i].Name, opts)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *Controller) list(ctx context.Context, ns string, r schema.GroupVersionResource) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	opts := metav1.ListOptions{Limit: page}
	for {
		list, err := c.metadata.Resource(r).Namespace(ns).List(ctx, opts)
		if err != nil {
			return nil, err
		}
		all = append(all, list.Items...)
		if opts.Continue = list.Continue; opts.Continue == "" {
			return all, nil
		}
	}
}
