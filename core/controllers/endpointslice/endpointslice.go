// SPDX-License-Identifier: Apache-2.0

// Package endpointslice keeps the EndpointSlices of every Service with a selector:
// which pods are behind it, on which ports, ready or not.
//
// How endpoints are packed into slices is the published library's doing
// (k8s.io/endpointslice), which upstream's controller uses too; this package feeds
// it from caches and holds it back while they lack a slice that it wrote itself.
package endpointslice

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	library "k8s.io/endpointslice"
	"k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	// managedBy is upstream's name, so that slices of a cluster that comes from
	// there are carried on and not made twice.
	managedBy = "endpointslice-controller.k8s.io"
	// perSlice is how many endpoints go into one slice.
	perSlice = 100
	// ownWrites is the delay after a change of a slice, in which further ones of the
	// same reconcile are gathered.
	ownWrites = time.Second
)

// Controller keeps EndpointSlices.
type Controller struct {
	services   corelisters.ServiceLister
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	slices     discoverylisters.EndpointSliceLister
	recorder   record.EventRecorder
	tracker    *endpointsliceutil.EndpointSliceTracker
	triggers   *endpointsliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	reconciler *library.Reconciler
	writes     *writes
	loop       *controllers.Loop[controllers.Key]

	mu    sync.Mutex
	moved bool      // a node came, went, or is ready or in another zone now, since zones were read
	read  time.Time // when zones were read last
}

// zones is the key of the zones of all nodes.
var zones = controllers.Key{}

// zonesEvery is how often the zones of all nodes are read at most: many nodes change at a time, and it takes a look at each.
const zonesEvery = time.Second

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	metrics.RegisterMetrics() // what the library counts
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{
		services: core.Services().Lister(),
		pods:     core.Pods().Lister(),
		nodes:    core.Nodes().Lister(),
		slices:   slices.Lister(),
		recorder: env.Recorder("endpoint-slice-controller"),
		tracker:  endpointsliceutil.NewEndpointSliceTracker(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(),
		topology: topologycache.NewTopologyCache(),
		writes:   &writes{by: map[controllers.Key]int{}},
	}
	c.reconciler = library.NewReconciler(counted{env.Client, c.writes}, c.nodes, perSlice, c.tracker, c.topology, c.recorder, managedBy,
		library.WithPreferSameTrafficDistributionEnabled(true))
	c.loop = controllers.NewLoop(env, "endpointslice-controller", workers, c.reconcile)
	c.loop.Watch(core.Services().Informer(), controllers.KeyHandler(c.loop))
	c.loop.Watch(core.Pods().Informer(), controllers.Changes(c.podChanged))
	c.loop.Watch(core.Nodes().Informer(), controllers.Changes(c.nodeChanged))
	c.loop.Watch(slices.Informer(), controllers.Changes(c.sliceChanged))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	c.writes.end(ctx)
	return c.loop.Run(ctx)
}

func (c *Controller) podChanged(old, current metav1.Object) {
	services, err := controllers.ServicesOfPod(c.services, old, current)
	if err != nil {
		c.loop.Log().Warn("the services of a pod could not be found", "error", err)
		return
	}
	for _, key := range services {
		c.loop.Add(key)
	}
}

// nodeChanged follows the zones of ready nodes, by which hints are given.
func (c *Controller) nodeChanged(old, current metav1.Object) {
	before, _ := old.(*corev1.Node)
	after, _ := current.(*corev1.Node)
	if before != nil && after != nil && controllers.NodeReady(before) == controllers.NodeReady(after) &&
		before.Labels[corev1.LabelTopologyZone] == after.Labels[corev1.LabelTopologyZone] {
		return
	}
	c.mu.Lock()
	c.moved = true
	c.mu.Unlock()
	c.loop.AddAfter(zones, zonesEvery)
}

// readZones has hints given by the zones that nodes are in now, as soon as they may be read again.
func (c *Controller) readZones() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.moved {
		return nil
	}
	if wait := zonesEvery - now.Sub(c.read); wait > 0 {
		c.loop.AddAfter(zones, wait) // the turn that the change asked for may have been this one
		return nil
	}
	c.moved, c.read = false, now
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	c.topology.SetNodes(klog.Background(), nodes)
	for _, key := range c.topology.GetOverloadedServices() {
		if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
			c.loop.Add(controllers.Key{Namespace: namespace, Name: name})
		}
	}
	return nil
}

// sliceChanged notices slices that somebody else changed or removed.
func (c *Controller) sliceChanged(old, current metav1.Object) {
	before, _ := old.(*discoveryv1.EndpointSlice)
	after, _ := current.(*discoveryv1.EndpointSlice)
	switch {
	case after == nil:
		if c.reconciler.ManagedByController(before) && c.tracker.Has(before) && !c.tracker.HandleDeletion(before) {
			c.queueService(before)
		}
	case before != nil && before.Labels[discoveryv1.LabelServiceName] != after.Labels[discoveryv1.LabelServiceName]:
		c.queueService(before)
		c.queueService(after)
	case before != nil && c.reconciler.ManagedByChanged(before, after),
		c.reconciler.ManagedByController(after) && c.tracker.ShouldSync(after):
		c.queueService(after)
	}
}

func (c *Controller) queueService(slice *discoveryv1.EndpointSlice) {
	if name := slice.Labels[discoveryv1.LabelServiceName]; name != "" {
		c.loop.AddAfter(controllers.Key{Namespace: slice.Namespace, Name: name}, ownWrites)
	}
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	if err := c.readZones(); err != nil || key == zones {
		return err
	}
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(key.Namespace, key.Name)
		c.reconciler.DeleteService(key.Namespace, key.Name)
		c.tracker.DeleteService(key.Namespace, key.Name)
		return nil // the slices go with their owner
	}
	if err != nil {
		return err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.Selector == nil {
		return nil // without a selector somebody else keeps the slices
	}
	controllers.About(ctx, "Service", service)
	pods, err := c.pods.Pods(key.Namespace).List(labels.SelectorFromSet(service.Spec.Selector))
	if err != nil {
		return err
	}
	slices, err := c.slices.EndpointSlices(key.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: key.Name, discoveryv1.LabelManagedBy: managedBy,
	}))
	if err != nil {
		return err
	}
	slices = controllers.Filter(slices, func(s *discoveryv1.EndpointSlice) bool { return s.DeletionTimestamp == nil })
	if c.tracker.StaleSlices(service, slices) {
		return controllers.ErrStale
	}
	triggered := c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods)
	err = c.reconciler.Reconcile(klog.FromContext(ctx), service, pods, slices, triggered)
	if n := c.writes.take(key); n > 0 {
		controllers.Did(ctx, "endpoint slices written", "Service", nil)
	}
	if err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		c.recorder.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", service.Namespace, service.Name, err)
	}
	return err
}

// writes counts what the library wrote for each service, which it doesn't tell.
type writes struct {
	mu sync.Mutex
	by map[controllers.Key]int

	// run is the context of the controller's run, for a library that passes none on.
	run context.Context //nolint:containedctx // see counted
}

// end has writes end with a run.
func (w *writes) end(run context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run = run
}

func (w *writes) until() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run
}

func (w *writes) add(slice *discoveryv1.EndpointSlice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[controllers.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}]++
}

func (w *writes) take(key controllers.Key) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.by[key]
	delete(w.by, key)
	return n
}
