// SPDX-License-Identifier: Apache-2.0

// Package dnsendpoints takes the DNS of nodes that are gone or silent out of the cluster's
// DNS Service. Each node that answers names announces itself by an EndpointSlice; nobody
// but the node would withdraw it, and a dead one cannot, so that a part of all queries
// would go to an address where nobody answers.
//
// A machine that joined as a worker may write no EndpointSlice: who could would draw all
// queries of the cluster to itself. It marks its Node, and the controller makes the slice,
// with the address that follows from the node's pod range.
//
// The controller owns the condition ready of these slices, and their end. While no node's
// DNS would be left it changes nothing: an answer that may come is better than none.
package dnsendpoints

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/dns/announce"
)

// ManagedBy is the value of the label endpointslice.kubernetes.io/managed-by by which
// the slices of nodes' DNS are told from others.
const ManagedBy = "wasmplane-dns"

// Controller keeps the slices of all nodes' DNS.
type Controller struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	slices discoverylisters.EndpointSliceLister
	loop   *controllers.Loop[string]
}

// gather is how long changes of nodes are gathered before all are looked at: thousands may come at a time.
const gather = 200 * time.Millisecond

// everything is the only key: what becomes of one slice depends on the others.
const everything = "slices of the cluster's DNS"

// New makes the controller.
func New(env controllers.Env) (*Controller, error) {
	informer := discoveryinformers.NewFilteredEndpointSliceInformer(env.Reader, metav1.NamespaceSystem, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelManagedBy + "=" + ManagedBy })
	nodes := env.Informers.Core().V1().Nodes()
	c := &Controller{client: env.Client, nodes: nodes.Lister(), slices: discoverylisters.NewEndpointSliceLister(informer.GetIndexer())}
	c.loop = controllers.NewLoop(env, "dns-endpoints-controller", 1, c.reconcile)
	c.loop.Own(informer)
	c.loop.Watch(informer, controllers.EachObject(func(metav1.Object) { c.loop.Add(everything) }))
	c.loop.Watch(nodes.Informer(), controllers.Changes(func(before, now metav1.Object) {
		was, _ := before.(*corev1.Node)
		is, _ := now.(*corev1.Node)
		if was == nil || is == nil || controllers.NodeReady(was) != controllers.NodeReady(is) || !slices.Equal(addresses(was), addresses(is)) {
			c.loop.AddAfter(everything, gather)
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, _ string) error {
	announced, err := c.slices.List(labels.Everything())
	if err != nil {
		return err
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	p := decide(announced, nodes)
	for _, s := range p.create {
		made, err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("put the DNS of node %s behind its Service: %w", nodeOf(s), err)
		}
		if err == nil {
			controllers.Did(ctx, "created", "EndpointSlice", made)
		}
	}
	for _, s := range p.update {
		changed, err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("change the readiness of endpoint slice %s/%s: %w", s.Namespace, s.Name, err)
		}
		if err == nil {
			controllers.Did(ctx, "changed the readiness of", "EndpointSlice", changed)
		}
	}
	for _, s := range p.orphans {
		if err := c.remove(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes the slice of a node that is gone. The API is asked for the node,
// because a slice may be seen here before its node is.
func (c *Controller) remove(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	_, err := c.client.CoreV1().Nodes().Get(ctx, nodeOf(s), metav1.GetOptions{})
	if err == nil {
		return controllers.ErrNotYet
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("look for node %s: %w", nodeOf(s), err)
	}
	err = c.client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete endpoint slice %s/%s of a node that is gone: %w", s.Namespace, s.Name, err)
	}
	controllers.Did(ctx, "deleted", "EndpointSlice", s)
	return nil
}

// plan is what should be done about the slices.
type plan struct {
	update  []*discoveryv1.EndpointSlice // copies with the readiness and the address that they should have
	orphans []*discoveryv1.EndpointSlice // of nodes that are not known
	create  []*discoveryv1.EndpointSlice // of marked nodes that have none
}

// decide compares slices with the nodes that they are of. It is pure.
func decide(announced []*discoveryv1.EndpointSlice, nodes []*corev1.Node) plan {
	alive := map[string]bool{}
	for _, n := range nodes {
		alive[n.Name] = controllers.NodeReady(n)
	}
	someAlive := slices.ContainsFunc(announced, func(s *discoveryv1.EndpointSlice) bool { return alive[nodeOf(s)] })
	var p plan
	for _, n := range nodes {
		for _, at := range addresses(n) {
			want := announce.Slice(n.Name, at, alive[n.Name])
			i := slices.IndexFunc(announced, func(s *discoveryv1.EndpointSlice) bool {
				return nodeOf(s) == n.Name && s.AddressType == want.AddressType
			})
			if i < 0 {
				p.create = append(p.create, want)
			} else if there := announced[i]; there.Name == want.Name && there.Endpoints[0].Addresses[0] != at.String() { // a new node of an old name
				moved := there.DeepCopy()
				moved.Endpoints = want.Endpoints
				p.update = append(p.update, moved)
				announced = slices.Delete(slices.Clone(announced), i, i+1)
			}
		}
	}
	for _, s := range announced {
		ready, known := alive[nodeOf(s)]
		switch {
		case !known && someAlive:
			p.orphans = append(p.orphans, s)
		case ready || !someAlive: // the last ones stay
			p.update = append(p.update, with(s, true)...)
		default:
			p.update = append(p.update, with(s, false)...)
		}
	}
	return p
}

// with is the slice with a readiness, and with the hint that older versions did not write; none where it has both already.
func with(s *discoveryv1.EndpointSlice, ready bool) []*discoveryv1.EndpointSlice {
	if !slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		return ptr.Deref(e.Conditions.Ready, true) != ready || e.Hints == nil && e.NodeName != nil
	}) {
		return nil
	}
	changed := s.DeepCopy()
	for i := range changed.Endpoints {
		e := &changed.Endpoints[i]
		e.Conditions.Ready = &ready
		if e.Hints == nil && e.NodeName != nil {
			e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: *e.NodeName}}}
		}
	}
	return []*discoveryv1.EndpointSlice{changed}
}

func nodeOf(s *discoveryv1.EndpointSlice) string {
	for _, e := range s.Endpoints {
		if e.NodeName != nil {
			return *e.NodeName
		}
	}
	return ""
}

// addresses are where the DNS of a marked node answers; none of others.
func addresses(n *corev1.Node) []netip.Addr {
	if _, marked := n.Annotations[announce.ServesAnnotation]; !marked {
		return nil
	}
	list := n.Spec.PodCIDRs
	if len(list) == 0 {
		list = []string{n.Spec.PodCIDR}
	}
	var own []netip.Prefix
	for _, text := range list {
		if p, err := netip.ParsePrefix(text); err == nil {
			own = append(own, p)
		}
	}
	return announce.Addresses(own)
}

// answers says whether a node's kubelet reports that it is well, as far as the cluster knows.
