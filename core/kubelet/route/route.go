// SPDX-License-Identifier: Apache-2.0

// Package route lets pods of machines on one link reach each other: a route for each
// other node's pod range by that node's address. Packets keep the addresses of their pods.
//
// It owns the routes that carry its protocol number and lie within the cluster's pod
// network, and touches no others. What a node says of itself is believed only within
// that network, and only for an address on a link of this machine: the kernel refuses
// gateways elsewhere.
package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	// protocol marks our routes (rtnetlink(7)); those below 128 that are free belong to nobody.
	protocol = 87
	// review is how often routes are compared with the kernel's though no node has
	// changed: a link that went down took its routes along.
	review = 30 * time.Second
)

// Config of the routes of one machine.
type Config struct {
	Client kubernetes.Interface
	// Node is this machine's own, to whose pods the bridge leads.
	Node string
	// Cluster is the network of all pods.
	Cluster netip.Prefix
	Log     *slog.Logger
}

// Keep keeps the routes until ctx ends. They stay behind it: pods talk on without us.
func Keep(ctx context.Context, c Config) error {
	factory := informers.NewSharedInformerFactory(c.Client, 0)
	nodes := factory.Core().V1().Nodes()
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake() }, DeleteFunc: func(any) { wake() },
		UpdateFunc: func(before, now any) {
			was, is := before.(*corev1.Node), now.(*corev1.Node)
			if was.Spec.PodCIDR != is.Spec.PodCIDR || address(was) != address(is) {
				wake()
			}
		},
	}); err != nil {
		return fmt.Errorf("watch the nodes for their pod ranges: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer stop()
	factory.Start(watching.Done())
	if !cache.WaitForCacheSync(ctx.Done(), nodes.Informer().HasSynced) {
		return nil
	}
	tick := time.NewTicker(review)
	defer tick.Stop()
	silent := map[Route]string{} // failures that were reported
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
		}
		all, err := nodes.Lister().List(labels.Everything())
		if err != nil {
			return err
		}
		c.report(ctx, silent, Apply(c.Cluster, Wanted(all, c.Node, c.Cluster)))
	}
}

// report logs a failure once, until it is another.
func (c Config) report(ctx context.Context, before map[Route]string, failed map[Route]error) {
	for r, err := range failed {
		if before[r] != err.Error() {
			c.Log.WarnContext(ctx, "pods of another node cannot be reached", "podCIDR", r.To, "nodeAddress", r.Via, "error", err)
			before[r] = err.Error()
		}
	}
	for r := range before {
		if failed[r] == nil {
			delete(before, r)
		}
	}
}

// Route leads to a node's pods.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// Wanted are the routes to the pods of all nodes but own. Of two nodes that claim one
// range, or ranges that overlap, the one that was there first has it.
func Wanted(nodes []*corev1.Node, own string, cluster netip.Prefix) []Route {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		if (a.Name == own) != (b.Name == own) { // nobody takes our own
			if a.Name == own {
				return -1
			}
			return 1
		}
		if o := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); o != 0 {
			return o
		}
		return slices.Compare([]byte(a.Name), []byte(b.Name))
	})
	var out []Route
	var taken []netip.Prefix
	for _, n := range nodes {
		to, err := netip.ParsePrefix(n.Spec.PodCIDR)
		if err != nil || !cluster.Contains(to.Addr()) || to.Bits() <= cluster.Bits() ||
			slices.ContainsFunc(taken, to.Overlaps) {
			continue
		}
		taken = append(taken, to)
		via := address(n)
		if n.Name != own && via.IsValid() && via.Is4() == to.Addr().Is4() && !cluster.Contains(via) {
			out = append(out, Route{To: to.Masked(), Via: via})
		}
	}
	return out
}

func address(n *corev1.Node) netip.Addr {
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && addr.IsGlobalUnicast() {
			return addr.Unmap()
		}
	}
	return netip.Addr{}
}

// Apply makes the kernel's routes those that are wanted, and says which it refused.
func Apply(cluster netip.Prefix, wanted []Route) map[Route]error {
	failed := map[Route]error{}
	has, err := ours(cluster)
	if err != nil {
		for _, r := range wanted {
			failed[r] = err
		}
		return failed
	}
	for _, r := range has {
		if !slices.Contains(wanted, r) {
			if err := netlink.RouteDel(r.netlink()); err != nil && !errors.Is(err, unix.ESRCH) {
				failed[r] = fmt.Errorf("remove the route: %w", err)
			}
		}
	}
	for _, r := range wanted {
		if slices.Contains(has, r) {
			continue
		}
		err := netlink.RouteReplace(r.netlink())
		if errors.Is(err, unix.ENETUNREACH) {
			err = fmt.Errorf("its node is on no link of this machine: nodes must share one, or use a pod network of their own (node.cniConfigDir): %w", err)
		}
		if err != nil {
			failed[r] = err
		}
	}
	return failed
}

// Remove takes all our routes of the cluster off this machine.
func Remove(cluster netip.Prefix) error {
	for r, err := range Apply(cluster, nil) {
		return fmt.Errorf("route to %s: %w", r.To, err)
	}
	return nil
}

func (r Route) netlink() *netlink.Route {
	return &netlink.Route{
		Dst: &net.IPNet{IP: r.To.Addr().AsSlice(), Mask: net.CIDRMask(r.To.Bits(), r.To.Addr().BitLen())}, Gw: r.Via.AsSlice(),
		Protocol: protocol,
	}
}

func ours(cluster netip.Prefix) ([]Route, error) {
	family := netlink.FAMILY_V4
	if cluster.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	found, err := netlink.RouteListFiltered(family, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list this machine's routes: %w", err)
	}
	var out []Route
	for _, f := range found {
		if f.Dst == nil {
			continue
		}
		to, ok1 := netip.AddrFromSlice(f.Dst.IP)
		via, ok2 := netip.AddrFromSlice(f.Gw)
		bits, _ := f.Dst.Mask.Size()
		if p := netip.PrefixFrom(to.Unmap(), bits); ok1 && ok2 && cluster.Contains(p.Addr()) {
			out = append(out, Route{To: p, Via: via.Unmap()})
		}
	}
	return out, nil
}
