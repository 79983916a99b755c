// SPDX-License-Identifier: Apache-2.0

// Package servicecidr says which ranges Services get addresses of: it judges ServiceCIDRs,
// and holds their deletion up while Services have addresses that no other range contains.
//
// A range is not Ready, and gives no addresses, where it overlaps networks of pods, an
// address of a node or of an apiserver, a pool of load balancers, or a network that is
// never a Service's, such as link-local. Upstream takes any range. Here whoever may
// create a Service must not get the address of a node or of a cloud's metadata by it.
//
// It never takes a range away of which a Service has an address: before the last step it
// reads ranges and addresses from the server, after the range said that it is leaving, and
// servers look whether a range is leaving after they have claimed an address of it.
package servicecidr

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

// managedBy is the label of addresses that servers give to Services.
const managedBy = "ipallocator.k8s.io"

// Config says which networks are not for Services, besides nodes' addresses.
type Config struct {
	Pods          []string // networks, such as 10.244.0.0/16
	LoadBalancers []loadbalancer.Pool
}

// Controller judges and releases ServiceCIDRs. Ranges depend on each other, so that all
// are one key.
type Controller struct {
	client    kubernetes.Interface
	recorder  record.EventRecorder
	ranges    networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	nodes     corelisters.NodeLister
	slices    discoverylisters.EndpointSliceLister
	fixed     []reserved
	loop      *controllers.Loop[string]
}

// gather is how long changes of nodes are gathered before all are looked at.
const gather = time.Second

// New makes the controller.
func New(env controllers.Env, cfg Config) (*Controller, error) {
	networking, nodes := env.Informers.Networking().V1(), env.Informers.Core().V1().Nodes()
	endpoints := env.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{
		client: env.Client, recorder: env.Recorder("service-cidr-controller"),
		ranges: networking.ServiceCIDRs().Lister(), addresses: networking.IPAddresses().Lister(),
		nodes: nodes.Lister(), slices: endpoints.Lister(), fixed: always(),
	}
	for _, text := range cfg.Pods {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("the network of pods: %w", err)
		}
		c.fixed = append(c.fixed, network(p.Masked(), "pods' addresses"))
	}
	for _, pool := range cfg.LoadBalancers {
		for _, r := range pool.Ranges {
			c.fixed = append(c.fixed, reserved{r, fmt.Sprintf("%s-%s (the load balancer pool %s)", r.First, r.Last, pool.Name)})
		}
	}
	c.loop = controllers.NewLoop(env, "service-cidr-controller", 1, c.reconcile)
	all := func(metav1.Object) { c.loop.Add("") }
	c.loop.Watch(networking.ServiceCIDRs().Informer(), controllers.EachObject(all))
	c.loop.Watch(networking.IPAddresses().Informer(), controllers.Changes(func(_, current metav1.Object) {
		if current == nil && c.leaving() { // addresses that come make no range ready
			c.loop.Add("")
		}
	}))
	c.loop.Watch(nodes.Informer(), controllers.Changes(func(old, current metav1.Object) {
		if !slices.Equal(addressesOf(old), addressesOf(current)) {
			c.loop.AddAfter("", gather) // thousands may come at a time, and each look is at all of them
		}
	}))
	c.loop.Watch(endpoints.Informer(), controllers.EachObject(func(o metav1.Object) {
		if o.GetNamespace() == metav1.NamespaceDefault && o.GetName() == defaultName {
			c.loop.Add("")
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) leaving() bool {
	all, _ := c.ranges.List(labels.Everything()) // an index of the cache: it does not fail
	return slices.ContainsFunc(all, func(r *networkingv1.ServiceCIDR) bool { return r.DeletionTimestamp != nil })
}

// reconcile acts on one plan of all ranges.
func (c *Controller) reconcile(ctx context.Context, _ string) error {
	ranges, err := c.ranges.List(labels.Everything())
	if err != nil {
		return err
	}
	claims, err := c.addresses.List(labels.Everything())
	if err != nil {
		return err
	}
	from := snapshot{ranges: ranges, addresses: given(claims), reserved: c.reserved(), now: time.Now()}
	steps := plan(from)
	if slices.ContainsFunc(steps, func(s step) bool { return s.release }) {
		if from.ranges, from.addresses, err = c.live(ctx); err != nil {
			return err
		}
		steps = plan(from)
	}
	for _, s := range steps {
		if err := c.act(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// live reads ranges, and then addresses, from the server.
func (c *Controller) live(ctx context.Context) (ranges []*networkingv1.ServiceCIDR, addresses []netip.Addr, err error) {
	all, err := c.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the ranges of Services: %w", err)
	}
	claims, err := c.client.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the addresses of Services: %w", err)
	}
	for i := range all.Items {
		ranges = append(ranges, &all.Items[i])
	}
	list := make([]*networkingv1.IPAddress, 0, len(claims.Items))
	for i := range claims.Items {
		list = append(list, &claims.Items[i])
	}
	return ranges, given(list), nil
}

// act does what one range needs. Writes are of the version that the plan saw.
func (c *Controller) act(ctx context.Context, s step) error {
	controllers.About(ctx, "ServiceCIDR", s.of)
	if s.wait > 0 {
		c.loop.AddAfter("", s.wait)
	}
	next, api := s.of.DeepCopy(), c.client.NetworkingV1().ServiceCIDRs()
	var err error
	if s.protect || s.release {
		did := "protected"
		if s.release {
			did = "released"
			next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == finalizer })
		} else {
			next.Finalizers = append(next.Finalizers, finalizer)
		}
		next, err = api.Update(ctx, next, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the finalizer of ServiceCIDR %s: %w", s.of.Name, err)
		}
		controllers.Did(ctx, did, "ServiceCIDR", s.of)
	}
	if s.ready == nil || s.release {
		return nil
	}
	meta.SetStatusCondition(&next.Status.Conditions, *s.ready)
	if _, err = api.UpdateStatus(ctx, next, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the status of ServiceCIDR %s: %w", s.of.Name, err)
	}
	controllers.Did(ctx, "judged", "ServiceCIDR", s.of)
	if s.ready.Status != metav1.ConditionTrue && s.ready.Reason != networkingv1.ServiceCIDRReasonTerminating {
		c.recorder.Event(s.of, corev1.EventTypeWarning, s.ready.Reason, s.ready.Message)
	}
	return nil
}

// reserved are the networks that are not for Services now.
func (c *Controller) reserved() []reserved {
	out := slices.Clone(c.fixed)
	nodes, _ := c.nodes.List(labels.Everything()) // an index of the cache: it does not fail
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		for _, a := range addressesOf(n) {
			out = append(out, network(a, "node "+n.Name))
		}
	}
	if s, err := c.slices.EndpointSlices(metav1.NamespaceDefault).Get(defaultName); err == nil {
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					out = append(out, address(a, "an apiserver"))
				}
			}
		}
	}
	return out
}

// addressesOf are a node's addresses and the networks of its pods; none of what is no node.
func addressesOf(o metav1.Object) []netip.Prefix {
	n, ok := o.(*corev1.Node)
	if !ok || n == nil {
		return nil
	}
	var out []netip.Prefix
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil { // others are names
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// given are the addresses that servers gave to Services.
func given(claims []*networkingv1.IPAddress) []netip.Addr {
	var out []netip.Addr
	for _, c := range claims {
		if a, err := netip.ParseAddr(c.Name); err == nil && c.Labels[networkingv1.LabelManagedBy] == managedBy {
			out = append(out, a)
		}
	}
	return out
}
