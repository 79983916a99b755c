// SPDX-License-Identifier: Apache-2.0

// Package garbage collects objects whose owners are gone, and carries out what a
// deletion says about dependents: delete them afterwards (background), before
// (foreground), or let them live without an owner (orphan).
//
// The graph of owners is built from watches on the metadata of every resource that
// can be deleted, and is only ever a hint where to look. Before an object is
// deleted, the server is asked for it and for each of its owners; the deletion
// itself carries the UID and the resource version that were seen. What cannot be
// verified (a kind that discovery doesn't know, a server that errs) is not deleted.
package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Config is what the collector needs beside its Env.
type Config struct {
	// Metadata reads, patches and deletes objects of any type, as the collector's
	// own identity.
	Metadata metadata.Interface
	// Discover lists what the server has; nil = ask the Env's client.
	Discover Discover
	// Shared returns an informer that the process keeps of a resource anyway, or
	// nil: it saves a second copy of, say, all pods. It may be nil itself.
	Shared func(schema.GroupVersionResource) cache.SharedInformer
	// Ignored resources are neither watched nor collected; nil = events, which own
	// nothing and are many.
	Ignored func(schema.GroupResource) bool
}

// Collector is the garbage collector.
type Collector struct {
	client   metadata.Interface
	recorder record.EventRecorder
	monitors *monitors
	graph    *graph
	absent   *lru.Cache // owners that the server said don't exist, by identity
	checks   *controllers.Loop[types.UID]
	orphans  *controllers.Loop[types.UID]
	// queue takes what is to be looked at: into the loops above.
	queue func(work)
}

// New makes the collector.
func New(env controllers.Env, workers int, cfg Config) (*Collector, error) {
	if cfg.Metadata == nil {
		return nil, errors.New("generic-garbage-collector: no metadata client was given")
	}
	if cfg.Discover == nil {
		cfg.Discover = env.Client.Discovery().ServerGroupsAndResources
	}
	if cfg.Ignored == nil {
		cfg.Ignored = func(r schema.GroupResource) bool {
			return r.Resource == "events" && (r.Group == "" || r.Group == "events.k8s.io")
		}
	}
	c := &Collector{
		client:   cfg.Metadata,
		recorder: env.Recorder("garbage-collector-controller"),
		graph:    newGraph(),
		absent:   lru.New(500),
	}
	c.checks = controllers.NewLoop(env, "garbage-collector", workers, c.check)
	c.orphans = controllers.NewLoop(env, "garbage-collector-orphans", workers, c.orphan)
	c.queue = func(w work) {
		for _, uid := range w.check {
			c.checks.Add(uid)
		}
		for _, uid := range w.orphan {
			c.orphans.Add(uid)
		}
	}
	c.monitors = &monitors{
		discover:  cfg.Discover,
		client:    cfg.Metadata,
		shared:    cfg.Shared,
		ignored:   cfg.Ignored,
		changed:   c.changed,
		unwatched: func(k kind) { c.queue(c.graph.unwatch(k.GroupVersionKind)) },
		log:       c.checks.Log(),
		refresh:   make(chan struct{}, 1),
		kinds:     map[schema.GroupVersionKind]kind{},
		running:   map[schema.GroupVersionResource]*monitor{},
	}
	return c, nil
}

// Run works until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { c.monitors.run(ctx) })
	c.awaitFirstSync(ctx)
	orphans := make(chan error, 1)
	running.Go(func() { orphans <- c.orphans.Run(ctx) })
	err := c.checks.Run(ctx)
	stop()
	return errors.Join(err, <-orphans)
}

func (c *Collector) awaitFirstSync(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstSync)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), c.monitors.synced) && ctx.Err() == context.DeadlineExceeded {
		c.checks.Log().WarnContext(ctx, "not every resource could be listed yet; collecting begins with the others")
	}
}

// changed feeds an event of a watch into the graph.
func (c *Collector) changed(k kind, old, current metav1.Object) {
	switch k.resource.GroupResource() {
	case schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}:
		c.monitors.wantRefresh()
	}
	if current == nil {
		c.gone(observe(k, old).identity)
		return
	}
	if old != nil && sameEdges(old, current) {
		return // nearly every update: a status
	}
	c.queue(c.graph.upsert(observe(k, current)))
}

func sameEdges(a, b metav1.Object) bool {
	return (a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil) &&
		slices.Equal(a.GetFinalizers(), b.GetFinalizers()) &&
		slices.EqualFunc(a.GetOwnerReferences(), b.GetOwnerReferences(), func(x, y metav1.OwnerReference) bool {
			return x.UID == y.UID && blocks(x) == blocks(y) && x.Name == y.Name && x.Kind == y.Kind
		})
}

func (c *Collector) gone(id identity) {
	c.absent.Add(id, nil)
	c.queue(c.graph.remove(id))
}

// check decides about one object: is it to be deleted because its owners are gone,
// or let go because the dependents that it waited for are?
func (c *Collector) check(ctx context.Context, uid types.UID) error {
	v, ok := c.graph.view(uid)
	if !ok || v.absent || v.content || (v.deleting && !v.foreground) {
		return nil // gone, wanted, or on its way: its end will come as an event
	}
	live, k, err := c.get(ctx, v.identity)
	if apierrors.IsNotFound(err) || (err == nil && live.UID != uid) {
		c.gone(v.identity)
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking up %s %s/%s: %w", v.kind, v.namespace, v.name, err)
	}
	controllers.About(ctx, k.Kind, live)
	switch {
	case v.virtual:
		// It exists, and its watch will tell. Until then its dependents are safe; if
		// it is deleted before that, no event comes, so we look again.
		return controllers.ErrNotYet
	case v.foreground:
		return c.finishForeground(ctx, k, live)
	case len(live.OwnerReferences) == 0:
		return nil
	}
	return c.judge(ctx, k, live, v.hasDependents)
}

// finishForeground lets an object go when no dependent blocks it any more.
func (c *Collector) finishForeground(ctx context.Context, k kind, live *metav1.PartialObjectMetadata) error {
	waiting := false
	for _, d := range c.graph.dependents(live.UID) {
		if !d.blocking {
			continue
		}
		waiting = true
		if !d.foreground {
			c.queue(work{check: []types.UID{d.uid}})
		}
	}
	if waiting {
		return nil // each of them queues this object when it is gone
	}
	return c.removeFinalizer(ctx, k, live, metav1.FinalizerDeleteDependents)
}

// verdict sorts an object's owners.
type verdict struct {
	solid []metav1.OwnerReference
	// gone owners, and those that only wait for this object to be deleted first.
	dangling, waiting []metav1.OwnerReference
}

func (c *Collector) judge(ctx context.Context, k kind, live *metav1.PartialObjectMetadata, hasDependents bool) error {
	v, err := c.classify(ctx, k, live)
	if err != nil {
		return err
	}
	switch {
	case len(v.solid) > 0 && len(v.dangling)+len(v.waiting) == 0:
		return nil
	case len(v.solid) > 0:
		// Somebody still wants it; the references that would hold up or mislead go.
		return c.setOwners(ctx, k, live, v.solid, "dangling owner references removed")
	case live.DeletionTimestamp != nil:
		return nil // it goes already
	case len(v.waiting) > 0 && hasDependents:
		if err := c.breakCycle(ctx, k, live); err != nil {
			return err
		}
		return c.delete(ctx, k, live, metav1.DeletePropagationForeground)
	}
	return c.delete(ctx, k, live, propagation(live))
}

// propagation honours what the object's own finalizers say.
func propagation(live *metav1.PartialObjectMetadata) metav1.DeletionPropagation {
	switch {
	case slices.Contains(live.Finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(live.Finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}

func (c *Collector) classify(ctx context.Context, k kind, live *metav1.PartialObjectMetadata) (verdict, error) {
	var v verdict
	for _, ref := range live.OwnerReferences {
		if c.graph.stands(ref, live.Namespace) {
			v.solid = append(v.solid, ref)
			continue
		}
		owner, err := c.owner(ctx, k, live, ref)
		switch {
		case err != nil:
			return v, err
		case owner == nil:
			v.dangling = append(v.dangling, ref)
		case owner.DeletionTimestamp != nil && slices.Contains(owner.Finalizers, metav1.FinalizerDeleteDependents):
			v.waiting = append(v.waiting, ref)
		default:
			v.solid = append(v.solid, ref)
		}
	}
	return v, nil
}

// owner asks the server for an owner; nil if it doesn't exist.
func (c *Collector) owner(ctx context.Context, k kind, live *metav1.PartialObjectMetadata,
	ref metav1.OwnerReference,
) (*metav1.PartialObjectMetadata, error) {
	id := ownerIdentity(ref, live.Namespace)
	ownerKind, err := c.monitors.lookUp(id.gvk())
	if err != nil {
		return nil, err
	}
	if ownerKind.namespaced && !k.namespaced {
		// No namespace says where such an owner would be. Deleting what may have an
		// owner is worse than keeping what has none.
		c.recorder.Eventf(&corev1.ObjectReference{APIVersion: k.GroupVersion().String(), Kind: k.Kind, Name: live.Name, UID: live.UID},
			corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
			"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q", ref.APIVersion, ref.Kind, live.Namespace, ref.Name, ref.UID, live.Namespace)
		return &metav1.PartialObjectMetadata{}, nil // counts as standing
	}
	if !ownerKind.namespaced {
		id.namespace = ""
	}
	if _, gone := c.absent.Get(id); gone {
		return nil, nil
	}
	owner, err := c.resource(ownerKind, id.namespace).Get(ctx, id.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && owner.UID != ref.UID) {
		c.absent.Add(id, nil)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up owner %s %s/%s: %w", id.kind, id.namespace, id.name, err)
	}
	return owner, nil
}

// breakCycle makes an object's references to its owners non-blocking if one of its
// dependents is in foreground deletion itself: they could wait for each other for ever.
func (c *Collector) breakCycle(ctx context.Context, k kind, live *metav1.PartialObjectMetadata) error {
	if !slices.ContainsFunc(c.graph.dependents(live.UID), func(d dependent) bool { return d.foreground }) {
		return nil
	}
	refs := slices.Clone(live.OwnerReferences)
	changed := false
	for i := range refs {
		if blocks(refs[i]) {
			refs[i].BlockOwnerDeletion = ptr.To(false)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return c.setOwners(ctx, k, live, refs, "owner references unblocked")
}

// delete deletes exactly the object that was judged: if it changed since, it is
// judged again.
func (c *Collector) delete(ctx context.Context, k kind, live *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) error {
	err := c.resource(k, live.Namespace).Delete(ctx, live.Name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		c.gone(observe(k, live).identity)
		return nil
	case apierrors.IsConflict(err):
		return controllers.ErrStale
	case err != nil:
		return fmt.Errorf("deleting %s %s/%s: %w", k.Kind, live.Namespace, live.Name, err)
	}
	controllers.Did(ctx, "deleted, because its owners are gone", k.Kind, nil)
	return nil
}

// orphan frees the dependents of an object that is deleted with that wish, then
// lets the object go.
func (c *Collector) orphan(ctx context.Context, uid types.UID) error {
	v, ok := c.graph.view(uid)
	if !ok || !v.orphaning {
		return nil
	}
	live, k, err := c.get(ctx, v.identity)
	if apierrors.IsNotFound(err) || (err == nil && live.UID != uid) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, k.Kind, live)
	var errs []error
	for _, d := range c.graph.dependents(uid) {
		if err := c.disown(ctx, d.identity, uid); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return c.removeFinalizer(ctx, k, live, metav1.FinalizerOrphanDependents)
}

func (c *Collector) disown(ctx context.Context, id identity, owner types.UID) error {
	live, k, err := c.get(ctx, id)
	if apierrors.IsNotFound(err) || (err == nil && live.UID != id.uid) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking up dependent %s %s/%s: %w", id.kind, id.namespace, id.name, err)
	}
	left := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(r metav1.OwnerReference) bool { return r.UID == owner })
	if len(left) == len(live.OwnerReferences) {
		return nil
	}
	return c.setOwners(ctx, k, live, left, "orphaned")
}

func (c *Collector) setOwners(ctx context.Context, k kind, live *metav1.PartialObjectMetadata, refs []metav1.OwnerReference,
	what string,
) error {
	if refs == nil {
		refs = []metav1.OwnerReference{}
	}
	err := c.patch(ctx, k, live, map[string]any{"ownerReferences": refs})
	if err == nil {
		controllers.Did(ctx, what, k.Kind, live)
	}
	return err
}

func (c *Collector) removeFinalizer(ctx context.Context, k kind, live *metav1.PartialObjectMetadata, finalizer string) error {
	left := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
	if len(left) == len(live.Finalizers) {
		return nil
	}
	err := c.patch(ctx, k, live, map[string]any{"finalizers": left})
	if err == nil {
		controllers.Did(ctx, "finalizer "+finalizer+" removed", k.Kind, nil)
	}
	return err
}

// patch replaces lists in an object's metadata, if it is still as it was read. A
// JSON merge patch works for every type; resourceVersion makes it safe.
func (c *Collector) patch(ctx context.Context, k kind, live *metav1.PartialObjectMetadata, meta map[string]any) error {
	meta["uid"], meta["resourceVersion"] = live.UID, live.ResourceVersion
	body, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	patched, err := c.resource(k, live.Namespace).Patch(ctx, live.Name, types.MergePatchType, body, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return controllers.ErrStale
	case err != nil:
		return fmt.Errorf("patching %s %s/%s: %w", k.Kind, live.Namespace, live.Name, err)
	}
	if patched != nil {
		live.ResourceVersion = patched.ResourceVersion
	}
	return nil
}

func (c *Collector) get(ctx context.Context, id identity) (*metav1.PartialObjectMetadata, kind, error) {
	k, err := c.monitors.lookUp(id.gvk())
	if err != nil {
		return nil, k, err
	}
	namespace := id.namespace
	if !k.namespaced {
		namespace = ""
	} else if namespace == "" {
		return nil, k, apierrors.NewNotFound(k.resource.GroupResource(), id.name)
	}
	live, err := c.resource(k, namespace).Get(ctx, id.name, metav1.GetOptions{})
	return live, k, err
}

func (c *Collector) resource(k kind, namespace string) metadata.ResourceInterface {
	if !k.namespaced {
		return c.client.Resource(k.resource)
	}
	return c.client.Resource(k.resource).Namespace(namespace)
}
