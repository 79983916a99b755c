// SPDX-License-Identifier: Apache-2.0

// Package nodeipam gives every node its part of the cluster's pod network
// (spec.podCIDR), one part per IP family.
//
// What is taken is read from the nodes themselves, so nothing has to be remembered
// over a restart; one worker allocates, so that nothing is given out twice.
//
// A node for which no part is left has an event of its own, upstream's. That the network is full
// is a state of the cluster: one event says how many nodes wait, and is followed by another one
// every ten minutes at most, as long as that number changes.
package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Default sizes of a node's part.
const (
	defaultBits4 = 24
	defaultBits6 = 64
)

// Config of the controller.
type Config struct {
	// CIDRs of the pod network, one per IP family ("10.244.0.0/16"); a node gets a
	// part of each, in this order.
	CIDRs []string
	// NodeBits is the prefix length of a node's part, one for each CIDR; 0 or
	// missing = 24 for IPv4, 64 for IPv6.
	NodeBits []int
	// Excluded networks are never given out, such as a Service network inside one of
	// the CIDRs.
	Excluded []string
}

// Controller allocates.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	nodes    corelisters.NodeLister
	loop     *controllers.Loop[string]

	mu    sync.Mutex // the informer's goroutine frees, the worker takes
	pools []*pool

	// What was last reported: how many nodes wait, and when. The worker's.
	reported   int
	reportedAt time.Time
}

const (
	// report is the key of what is reported about the cluster; no node has this name.
	report = ""
	// reportAfter lets nodes come that are made together, and reportEvery bounds how often they are counted anew.
	reportAfter = 10 * time.Second
	reportEvery = 10 * time.Minute
	// named are the nodes that an event names.
	named = 5
)

// full is the object that events about the whole network are about: the lease of the process that divides it.
func full() *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: metav1.NamespaceSystem, Name: "kube-controller-manager",
	}
}

// New makes the controller.
func New(env controllers.Env, cfg Config) (*Controller, error) {
	pools, err := newPools(cfg)
	if err != nil {
		return nil, err
	}
	nodes := env.Informers.Core().V1().Nodes()
	c := &Controller{
		client: env.Client, recorder: env.Recorder("cidrAllocator"), nodes: nodes.Lister(), pools: pools,
	}
	c.loop = controllers.NewLoop(env, "node-ipam-controller", 1, c.reconcile)
	c.loop.Watch(nodes.Informer(), controllers.Changes(c.changed))
	return c, nil
}

func newPools(cfg Config) ([]*pool, error) {
	if len(cfg.CIDRs) == 0 || len(cfg.CIDRs) > 2 {
		return nil, fmt.Errorf("node-ipam-controller: %d pod CIDRs; want one, or one per IP family", len(cfg.CIDRs))
	}
	var pools []*pool
	for i, text := range cfg.CIDRs {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("node-ipam-controller: pod CIDR %q: %w", text, err)
		}
		bits := defaultBits4
		if network.Addr().Is6() {
			bits = defaultBits6
		}
		if i < len(cfg.NodeBits) && cfg.NodeBits[i] != 0 {
			bits = cfg.NodeBits[i]
		}
		p, err := newPool(network, bits)
		if err != nil {
			return nil, fmt.Errorf("node-ipam-controller: %w", err)
		}
		pools = append(pools, p)
	}
	if len(pools) == 2 && pools[0].network.Addr().Is4() == pools[1].network.Addr().Is4() {
		return nil, errors.New("node-ipam-controller: both pod CIDRs are of the same IP family")
	}
	for _, text := range cfg.Excluded {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("node-ipam-controller: excluded network %q: %w", text, err)
		}
		for _, p := range pools {
			p.exclude(network)
		}
	}
	return pools, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// changed keeps account of what nodes have. Workers start after this has seen
// every node that exists, so nothing that is in use is given out.
func (c *Controller) changed(old, current metav1.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if node, ok := current.(*corev1.Node); ok {
		cidrs := cidrsOf(node)
		for _, cidr := range cidrs {
			c.occupy(cidr, node.Name)
		}
		switch waited := c.waits(node.Name); {
		case len(cidrs) == 0 && !waited: // one that waits is called by a part that becomes free, not by its own changes
			c.loop.Add(node.Name)
		case len(cidrs) > 0 && waited:
			c.stopWaiting(node.Name) // somebody else gave it one: that which it may have been called for is free
			c.offer()
		}
		return
	}
	if node, ok := old.(*corev1.Node); ok {
		for _, p := range c.pools {
			p.release(node.Name)
		}
		c.stopWaiting(node.Name)
		c.offer()
	}
}

// waits reports whether a node waits for a part. Lock held.
func (c *Controller) waits(node string) bool {
	return slices.ContainsFunc(c.pools, func(p *pool) bool { return p.waiting[node] })
}

// stopWaiting records that a node waits no more. Lock held.
func (c *Controller) stopWaiting(node string) {
	for _, p := range c.pools {
		if p.waiting[node] {
			delete(p.waiting, node)
			c.loop.AddAfter(report, reportAfter)
		}
	}
}

// offer calls as many of the nodes that wait as there are parts for. To call all of them for each node that goes would
// take the square of their number. Lock held.
func (c *Controller) offer() {
	for _, p := range c.pools {
		left := p.free()
		for name := range p.waiting {
			if left == 0 {
				break
			}
			left--
			c.loop.Add(name)
		}
	}
}

func (c *Controller) occupy(cidr, node string) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return
	}
	for _, p := range c.pools {
		p.occupy(prefix.Masked(), node)
	}
}

func cidrsOf(node *corev1.Node) []string {
	if len(node.Spec.PodCIDRs) > 0 {
		return node.Spec.PodCIDRs
	}
	if node.Spec.PodCIDR != "" {
		return []string{node.Spec.PodCIDR}
	}
	return nil
}

func (c *Controller) reconcile(ctx context.Context, name string) error {
	if name == report {
		c.report(ctx)
		return nil
	}
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(cidrsOf(node)) > 0 {
		return nil
	}
	controllers.About(ctx, "Node", node)
	cidrs, first, err := c.take(name)
	if err != nil && !first {
		return nil
	}
	if err != nil {
		c.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}, corev1.EventTypeNormal,
			"CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable", name)
		c.loop.Log().DebugContext(ctx, "a node gets no pod network", "node", name, "error", err)
		c.loop.AddAfter(report, reportAfter)
		return nil // tried again when another node goes
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": cidrs[0], "podCIDRs": cidrs},
	})
	if err != nil {
		return err
	}
	// A node keeps what take gave it until it is gone: after a failure the next try
	// proposes the same.
	_, err = c.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("assigning %v: %w", cidrs, err)
	}
	controllers.Did(ctx, fmt.Sprintf("pod network %v assigned", cidrs), "Node", nil)
	return nil
}

// report says how many nodes wait, if that is news, and that none does any more.
func (c *Controller) report(ctx context.Context) {
	names, network := c.waiting()
	switch again := time.Until(c.reportedAt.Add(reportEvery)); {
	case len(names) == c.reported:
	case len(names) == 0:
		c.reported = 0
		c.recorder.Event(full(), corev1.EventTypeNormal, "PodNetworkAvailable", "Every node has its part of the pod network again")
		c.loop.Log().InfoContext(ctx, "every node has its part of the pod network again")
	case again > 0:
		c.loop.AddAfter(report, again)
	default:
		c.reported, c.reportedAt = len(names), time.Now()
		list := strings.Join(names[:min(named, len(names))], ", ")
		if more := len(names) - named; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		message := fmt.Sprintf("%s; nodes that wait for a part: %d (%s). Their pods get no addresses of it. Delete Node objects of machines "+
			"that are gone, or make the parts of new nodes smaller by a larger cluster.nodeCIDRMaskSize", network, len(names), list)
		c.recorder.Event(full(), corev1.EventTypeWarning, "PodNetworkFull", message)
		c.loop.Log().WarnContext(ctx, "the pod network is full", "network", network, "waiting", len(names), "nodes", list)
	}
}

// waiting are the nodes that wait, and the network that they wait for.
func (c *Controller) waiting() (names []string, network string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pools {
		if len(p.waiting) > 0 && network == "" {
			network = p.exhausted()
		}
		names = append(names, slices.Collect(maps.Keys(p.waiting))...)
	}
	slices.Sort(names)
	return names, network
}

// take gives the node a part of each network, the same one again if asked again. Where there is none the node waits for
// one from then on; first: it did not before.
func (c *Controller) take(node string) (cidrs []string, first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cidrs = make([]string, 0, len(c.pools))
	for _, p := range c.pools {
		prefix, ok := p.take(node)
		if !ok {
			first = !c.waits(node)
			c.stopWaiting(node)
			p.waiting[node] = true // it has a part of each of those before
			return nil, first, errors.New(p.exhausted())
		}
		cidrs = append(cidrs, prefix.String())
	}
	c.stopWaiting(node)
	return cidrs, false, nil
}
