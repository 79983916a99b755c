// SPDX-License-Identifier: Apache-2.0

// Package endpoints keeps the Endpoints object of every Service with a selector.
// EndpointSlices are what proxies go by; this is for the clients that still read
// the older API.
package endpoints

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	endpointsliceutil "k8s.io/endpointslice/util"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	managedByKey = "endpoints.kubernetes.io/managed-by"
	managedBy    = "endpoint-controller"
)

// Controller keeps Endpoints.
type Controller struct {
	client    kubernetes.Interface
	recorder  record.EventRecorder
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
	triggers  *endpointsliceutil.TriggerTimeTracker
	written   *controllers.Written
	loop      *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	core := env.Informers.Core().V1()
	c := &Controller{
		client: env.Client, recorder: env.Recorder(managedBy),
		services: core.Services().Lister(), pods: core.Pods().Lister(), endpoints: core.Endpoints().Lister(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(), written: controllers.NewWritten(),
	}
	c.loop = controllers.NewLoop(env, managedBy, workers, c.reconcile)
	c.loop.Watch(core.Services().Informer(), controllers.KeyHandler(c.loop))
	c.loop.Watch(core.Pods().Informer(), controllers.Changes(c.podChanged))
	c.loop.Watch(core.Endpoints().Informer(), controllers.Changes(func(old, current metav1.Object) {
		if current == nil {
			c.written.Forget(old.GetUID())
			current = old
		}
		c.loop.Add(cache.MetaObjectToName(current))
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

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

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	current, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	exists := err == nil
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(key.Namespace, key.Name)
		return c.removeLeftOver(ctx, key, current, exists)
	}
	if err != nil {
		return err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.Selector == nil {
		return nil // somebody else's
	}
	if exists && !c.written.Seen(current) {
		return controllers.ErrStale
	}
	controllers.About(ctx, "Service", service)
	pods, err := c.pods.Pods(key.Namespace).List(labels.SelectorFromSet(service.Spec.Selector))
	if err != nil {
		return err
	}
	triggered := c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods)
	next := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace}}
	if exists {
		next = current.DeepCopy()
	}
	fill(next, service, pods, triggered)
	if exists && sameBut(current, next) {
		return nil
	}
	return c.write(ctx, next, exists)
}

// removeLeftOver removes Endpoints of a Service that is gone. Ones that somebody
// made by hand, or that leader elections of old use, are not ours.
func (c *Controller) removeLeftOver(ctx context.Context, key controllers.Key, current *corev1.Endpoints, exists bool) error {
	if !exists || current.Labels[managedByKey] != managedBy {
		return nil
	}
	err := c.client.CoreV1().Endpoints(key.Namespace).Delete(ctx, key.Name, controllers.DeleteExactly(current))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// fill brings an Endpoints object up to date, in place.
func fill(e *corev1.Endpoints, service *corev1.Service, pods []*corev1.Pod, triggered time.Time) {
	e.Subsets = subsets(service, pods)
	e.Labels = maps.Clone(service.Labels)
	if e.Labels == nil {
		e.Labels = map[string]string{}
	}
	delete(e.Labels, corev1.IsHeadlessService)
	if service.Spec.ClusterIP == corev1.ClusterIPNone || service.Spec.ClusterIP == "" {
		e.Labels[corev1.IsHeadlessService] = ""
	}
	e.Labels[managedByKey] = managedBy
	if e.Annotations == nil {
		e.Annotations = map[string]string{}
	}
	delete(e.Annotations, corev1.EndpointsLastChangeTriggerTime)
	if !triggered.IsZero() {
		e.Annotations[corev1.EndpointsLastChangeTriggerTime] = triggered.UTC().Format(time.RFC3339Nano)
	}
	delete(e.Annotations, corev1.EndpointsOverCapacity)
	if truncate(e) {
		e.Annotations[corev1.EndpointsOverCapacity] = "truncated"
	}
}

// sameBut compares all but the time of the last change, which is only written with
// a change, and the order of what has none.
func sameBut(a, b *corev1.Endpoints) bool {
	return equality.Semantic.DeepEqual(canonical(a.Subsets), canonical(b.Subsets)) && maps.Equal(a.Labels, b.Labels) &&
		a.Annotations[corev1.EndpointsOverCapacity] == b.Annotations[corev1.EndpointsOverCapacity]
}

func (c *Controller) write(ctx context.Context, e *corev1.Endpoints, exists bool) error {
	api := c.client.CoreV1().Endpoints(e.Namespace)
	if !exists {
		created, err := api.Create(ctx, e, metav1.CreateOptions{})
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return nil
		case apierrors.IsAlreadyExists(err):
			return controllers.ErrStale
		case err != nil:
			c.recorder.Eventf(e, corev1.EventTypeWarning, "FailedToCreateEndpoint", "Failed to create endpoint for service %v/%v: %v", e.Namespace,
				e.Name, err)
			return fmt.Errorf("creating endpoints: %w", err)
		}
		c.written.Record(created)
		return nil
	}
	updated, err := api.Update(ctx, e, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return controllers.ErrStale
	}
	if err != nil {
		if !apierrors.IsConflict(err) {
			c.recorder.Eventf(e, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %v/%v: %v", e.Namespace, e.Name, err)
		}
		return fmt.Errorf("updating endpoints: %w", err)
	}
	c.written.Record(updated)
	return nil
}
