// SPDX-License-Identifier: Apache-2.0

// Package resourcequota keeps the status of ResourceQuotas true: what is limited,
// and how much of it is used. Admission only ever adds to what is used; this
// controller counts what there is, and so gives back what was deleted or was
// never made.
//
// It watches the resources that some quota limits and no others: pods, Services
// and claims through the shared informers, everything else, custom resources too,
// by its metadata. A cluster without quotas costs it nothing.
package resourcequota

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/quota"
)

const (
	// resync counts every quota again, for what no event tells: a pod whose time
	// to end is over.
	resync = 5 * time.Minute
	// settle: what was charged a moment ago may not be in the store yet, or not in
	// our cache. Giving it back would let admission hand the same room out twice.
	settle = time.Second
	// recount after something new was seen: its charge may have been given back
	// wrongly before it appeared.
	recount = 5 * time.Second
)

// Controller counts.
type Controller struct {
	client kubernetes.Interface
	quotas listers.ResourceQuotaLister
	loop   *controllers.Loop[controllers.Key]
	watch  *monitors

	mu      sync.Mutex
	charged map[controllers.Key]charge
}

// charge is when somebody else last changed what a quota says is used.
type charge struct {
	at      time.Time
	version string // of our own last write
}

// New makes the controller. meta watches the resources that have no shared informer.
func New(env controllers.Env, workers int, meta metadata.Interface) (*Controller, error) {
	quotas := env.Informers.Core().V1().ResourceQuotas()
	c := &Controller{client: env.Client, quotas: quotas.Lister(), charged: map[controllers.Key]charge{}}
	c.loop = controllers.NewLoop(env, "resourcequota-controller", workers, c.reconcile)
	c.watch = newMonitors(env, meta, c)
	c.loop.Watch(quotas.Informer(), controllers.Changes(c.changed))
	c.loop.Beside(c.watch.run)
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// changed follows the quotas themselves.
func (c *Controller) changed(old, current metav1.Object) {
	q, ok := current.(*corev1.ResourceQuota)
	if !ok {
		if old != nil {
			c.mu.Lock()
			delete(c.charged, cache.MetaObjectToName(old))
			c.mu.Unlock()
		}
		return
	}
	key := cache.MetaObjectToName(q)
	was, _ := old.(*corev1.ResourceQuota)
	if was != nil && !quotav1.Equals(was.Status.Used, q.Status.Used) {
		c.mu.Lock()
		if known := c.charged[key]; known.version != q.ResourceVersion {
			c.charged[key] = charge{at: time.Now(), version: known.version}
		}
		c.mu.Unlock()
	}
	if was == nil || !equality.Semantic.DeepEqual(was.Spec, q.Spec) || !equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) {
		c.loop.Add(key)
	}
}

// touched queues the quotas of a namespace that limit a resource.
func (c *Controller) touched(m *quota.Measure, namespace string, after time.Duration) {
	list, err := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return // the lister's own index is never wrong about a namespace
	}
	for _, q := range list {
		if len(m.Names(quotav1.ResourceNames(q.Spec.Hard))) > 0 {
			c.loop.AddAfter(cache.MetaObjectToName(q), after)
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	q, err := c.quotas.ResourceQuotas(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	counted, err := c.count(q)
	if err != nil {
		return err
	}
	used := quotav1.Add(corev1.ResourceList{}, q.Status.Used)
	for name, n := range counted {
		used[name] = n
	}
	next := q.DeepCopy()
	next.Status.Hard = quotav1.Add(corev1.ResourceList{}, q.Spec.Hard)
	next.Status.Used = quotav1.Mask(used, quotav1.ResourceNames(q.Spec.Hard))
	defer c.loop.AddAfter(key, resync)
	if q.Status.Hard != nil && q.Status.Used != nil && equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) &&
		quotav1.Equals(next.Status.Used, q.Status.Used) {
		return nil
	}
	if wait := c.hold(key, q, next); wait > 0 {
		c.loop.AddAfter(key, wait)
		return nil
	}
	controllers.About(ctx, "ResourceQuota", q)
	written, err := c.client.CoreV1().ResourceQuotas(key.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing what the namespace uses: %w", err)
	}
	c.mu.Lock()
	c.charged[key] = charge{at: c.charged[key].at, version: written.ResourceVersion}
	c.mu.Unlock()
	return nil
}

// hold says how long to wait before less is used than the quota says: as long as
// a charge may still be on its way into the cache.
func (c *Controller) hold(key controllers.Key, q, next *corev1.ResourceQuota) time.Duration {
	lowered := false
	for name, n := range next.Status.Used {
		if was, ok := q.Status.Used[name]; ok && n.Cmp(was) < 0 {
			lowered = true
		}
	}
	if !lowered {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return settle - time.Since(c.charged[key].at)
}

// count is what the quota's namespace uses of what it limits. Resources that the
// server does not serve are left out.
func (c *Controller) count(q *corev1.ResourceQuota) (corev1.ResourceList, error) {
	names := quotav1.ResourceNames(q.Spec.Hard)
	now := time.Now()
	out := corev1.ResourceList{}
	for _, m := range quota.Tracked(names) {
		objects, known, err := c.watch.objects(m, q.Namespace)
		if err != nil {
			return nil, err
		}
		if !known {
			continue
		}
		sum, err := m.Sum(q, names, objects, now)
		if err != nil {
			return nil, fmt.Errorf("counting %s: %w", m.Resource, err)
		}
		for name, n := range sum {
			out[name] = n
		}
	}
	return out, nil
}

// needed are the resources that some quota limits.
func (c *Controller) needed() []*quota.Measure {
	all, err := c.quotas.List(labels.Everything())
	if err != nil {
		return nil
	}
	names := corev1.ResourceList{}
	for _, q := range all {
		names = quotav1.Add(names, q.Spec.Hard)
	}
	return quota.Tracked(quotav1.ResourceNames(names))
}

func objects(list []any) []runtime.Object {
	out := make([]runtime.Object, 0, len(list))
	for _, o := range list {
		if r, ok := o.(runtime.Object); ok {
			out = append(out, r)
		}
	}
	return out
}
