// SPDX-License-Identifier: Apache-2.0

// Package servicelb gives Services of type LoadBalancer their addresses: those of pools, or,
// where there are none, the nodes' own, which Services share by their ports.
//
// What is taken is read from the Services' status, so nothing has to be remembered over a
// restart; one worker allocates, so that nothing is given out twice. What a Service has it
// keeps until it is gone, is of another type, or asks for something else.
package servicelb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/record"
	servicehelper "k8s.io/cloud-provider/service/helpers"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

// Condition of a Service: whether it has its addresses, and why not.
const Condition = "wasmplane.dev/AddressAssigned"

// Config of the controller.
type Config struct {
	// Off: Services of type LoadBalancer are somebody else's. What Services have from
	// us is taken back.
	Off bool
	// Pools of addresses, in the order in which they are used; none: the nodes' own.
	Pools []loadbalancer.Pool
	// ReservedPorts of the nodes' own addresses go to no Service, whatever the protocol.
	ReservedPorts []int32
}

// Controller allocates.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
	loop     *controllers.Loop[controllers.Key]

	off     bool
	mu      sync.Mutex // informers' goroutines adopt and release, the worker takes
	ledger  *ledger
	waiting map[controllers.Key]bool
}

// New makes the controller.
func New(env controllers.Env, cfg Config) (*Controller, error) {
	services, nodes := env.Informers.Core().V1().Services(), env.Informers.Core().V1().Nodes()
	endpoints := env.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{
		client: env.Client, recorder: env.Recorder("service-lb-controller"),
		services: services.Lister(), nodes: nodes.Lister(), slices: endpoints.Lister(),
		off: cfg.Off, ledger: newLedger(cfg), waiting: map[controllers.Key]bool{},
	}
	c.loop = controllers.NewLoop(env, "service-lb-controller", 1, c.reconcile)
	c.loop.Watch(services.Informer(), controllers.Changes(c.serviceChanged))
	c.loop.Watch(nodes.Informer(), controllers.Changes(c.nodeChanged))
	c.loop.Watch(endpoints.Informer(), controllers.EachObject(c.endpointsChanged))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// serviceChanged keeps account of what stored Services have. Workers start after this has seen
// every Service that exists, so nothing that is in use is given out. An event may be older
// than what this controller gave since: it never takes anything away from a Service that is there.
func (c *Controller) serviceChanged(old, current metav1.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := current.(*corev1.Service); ok {
		if old == nil {
			c.ledger.adopt(s)
		}
		if loadbalancer.Ours(s) || servicehelper.HasLBFinalizer(s) {
			c.loop.Add(controllers.Key{Namespace: s.Namespace, Name: s.Name})
		}
		return
	}
	if s, ok := old.(*corev1.Service); ok {
		c.released(ownerOf(s))
	}
}

// released gives back what a Service has, and lets those that wait try. Lock held.
func (c *Controller) released(o owner) {
	delete(c.waiting, o.Key)
	before := c.ledger.freed
	c.ledger.release(o)
	c.wake(before, o.Key)
}

// wake lets those that wait try again if something was given back since. Lock held.
func (c *Controller) wake(before int, but controllers.Key) {
	if c.ledger.freed == before {
		return
	}
	for key := range c.waiting {
		if key != but {
			c.loop.Add(key)
		}
	}
}

// nodeChanged looks at all Services again when a node comes, goes, or is another to them. Its
// heartbeats change nothing.
func (c *Controller) nodeChanged(old, current metav1.Object) {
	was, _ := old.(*corev1.Node)
	is, _ := current.(*corev1.Node)
	if was != nil && is != nil && factsOf(was) == factsOf(is) && slices.Equal(was.Status.Addresses, is.Status.Addresses) {
		return
	}
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return // a lister of a cache has no errors
	}
	for _, s := range all {
		if loadbalancer.Ours(s) {
			c.loop.Add(controllers.Key{Namespace: s.Namespace, Name: s.Name})
		}
	}
}

// facts of a node are what matters here besides its addresses.
type facts struct {
	ready, excluded, leaving bool
	port                     int32
}

func factsOf(n *corev1.Node) facts {
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	return facts{controllers.NodeReady(n), excluded, n.DeletionTimestamp != nil, n.Status.DaemonEndpoints.KubeletEndpoint.Port}
}

// endpointsChanged matters to Services whose traffic stays on the node.
func (c *Controller) endpointsChanged(o metav1.Object) {
	s, err := c.services.Services(o.GetNamespace()).Get(o.GetLabels()[discoveryv1.LabelServiceName])
	if err == nil && loadbalancer.Ours(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		c.loop.Add(controllers.Key{Namespace: s.Namespace, Name: s.Name})
	}
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	s, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "Service", s)
	if c.off && meta.FindStatusCondition(s.Status.Conditions, Condition) == nil {
		return nil
	}
	if c.off || !loadbalancer.Ours(s) || s.DeletionTimestamp != nil {
		return c.cleanUp(ctx, s)
	}
	return c.ensure(ctx, s)
}

// cleanUp takes away what a Service had from us, with the finalizer, in one write. A Service with
// another's class is left alone.
func (c *Controller) cleanUp(ctx context.Context, s *corev1.Service) error {
	if class := s.Spec.LoadBalancerClass; class != nil && *class != loadbalancer.Class {
		return nil
	}
	if servicehelper.HasLBFinalizer(s) {
		left := s.DeepCopy()
		left.Finalizers = slices.DeleteFunc(left.Finalizers, func(f string) bool { return f == servicehelper.LoadBalancerCleanupFinalizer })
		delete(left.Annotations, loadbalancer.NodeAnnotation)
		left.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		meta.RemoveStatusCondition(&left.Status.Conditions, Condition)
		_, err := c.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, left, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("taking its addresses and the finalizer away: %w", err)
		}
		controllers.Did(ctx, "addresses released", "Service", nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released(ownerOf(s))
	return nil
}

// ensure gives a Service its addresses.
func (c *Controller) ensure(ctx context.Context, s *corev1.Service) error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	var list []*discoveryv1.EndpointSlice
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.Name})
		if list, err = c.slices.EndpointSlices(s.Namespace).List(selector); err != nil {
			return err
		}
	}
	out, ok := c.decide(s, nodes, list)
	if !ok {
		return nil
	}
	return c.report(ctx, s, out)
}

func setNode(s *corev1.Service, node string) {
	if node == "" {
		delete(s.Annotations, loadbalancer.NodeAnnotation)
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[loadbalancer.NodeAnnotation] = node
}

// decide says what a Service is to have; ok is false where it is gone since it was read. Its
// deletion releases what it has, and must not come before what is taken here.
func (c *Controller) decide(s *corev1.Service, nodes []*corev1.Node, list []*discoveryv1.EndpointSlice) (out outcome, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, err := c.services.Services(s.Namespace).Get(s.Name); err != nil || now.UID != s.UID {
		return outcome{}, false
	}
	key, before := ownerOf(s).Key, c.ledger.freed
	out = c.ledger.decide(s, nodes, list)
	if out.problem != nil {
		c.waiting[key] = true
	} else {
		delete(c.waiting, key)
	}
	c.wake(before, key)
	return out, true
}

// report writes what a Service has, with the finalizer and the node that announces it, in one
// write of its status, which is all that the controller may write of Services.
func (c *Controller) report(ctx context.Context, s *corev1.Service, out outcome) error {
	want := s.DeepCopy()
	if !servicehelper.HasLBFinalizer(want) {
		want.Finalizers = append(want.Finalizers, servicehelper.LoadBalancerCleanupFinalizer)
	}
	setNode(want, out.node)
	condition := metav1.Condition{Type: Condition, Status: metav1.ConditionTrue, Reason: "Assigned", ObservedGeneration: s.Generation}
	if out.problem != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, out.problem.reason, out.problem.message
	}
	meta.SetStatusCondition(&want.Status.Conditions, condition)
	want.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	for _, a := range out.addresses {
		in := corev1.LoadBalancerIngress{IP: a.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)}
		want.Status.LoadBalancer.Ingress = append(want.Status.LoadBalancer.Ingress, in)
	}
	if apiequality.Semantic.DeepEqual(s, want) {
		return nil
	}
	_, err := c.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, want, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing the addresses into the status: %w", err)
	}
	c.announce(ctx, want, &s.Status, out)
	return nil
}

// announce records what changed for whoever looks at the Service.
func (c *Controller) announce(ctx context.Context, s *corev1.Service, before *corev1.ServiceStatus, out outcome) {
	if out.problem != nil {
		if was := meta.FindStatusCondition(before.Conditions, Condition); was == nil || was.Message != out.problem.message {
			c.recorder.Event(s, corev1.EventTypeWarning, "SyncLoadBalancerFailed", out.problem.message)
			c.loop.Log().WarnContext(ctx, "a Service of type LoadBalancer has no address", "namespace", s.Namespace,
				"name", s.Name, "error", errors.New(out.problem.message))
		}
		return
	}
	if apiequality.Semantic.DeepEqual(before.LoadBalancer, s.Status.LoadBalancer) {
		return
	}
	c.recorder.Eventf(s, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer: %s", join(out.addresses))
	controllers.Did(ctx, "load balancer addresses "+join(out.addresses), "Service", nil)
}
