// SPDX-License-Identifier: Apache-2.0

// Package route lets pods of different machines reach each other: a route for each other
// node's pod range, by that node's address where it is on a link of this machine, and
// through a VXLAN (RFC 7348) where routers are in between. Packets keep the addresses of
// their pods.
//
// It owns the routes that carry its protocol number and lie within the cluster's pod
// network, the tunnel's device and its nftables table, and touches nothing else. What a
// node says of itself is believed only for its own pod range: the hardware addresses in
// the tunnel follow from the nodes' addresses, so nobody has to announce any.
package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/netdump"
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
	// Cluster are the networks of all pods, one of each IP family at most.
	Cluster []netip.Prefix
	// Names of what is taken on the machine.
	Names linuxhost.Names
	// Backend decides which packets go through the tunnel.
	Backend Backend
	// MTU of the tunnel's device, which MTU finds.
	MTU int
	Log *slog.Logger
}

// Backend is how packets reach the pods of other nodes.
type Backend string

const (
	// Auto is Routes to nodes on a link of this machine, and VXLAN to the others.
	Auto Backend = "auto"
	// Routes need a link that all nodes share.
	Routes Backend = "routes"
	// VXLAN needs nothing of the network but UDP at Port.
	VXLAN Backend = "vxlan"
)

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
			if !slices.Equal(ranges(was), ranges(is)) || !slices.Equal(addresses(was), addresses(is)) {
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
	guarded := &guard{table: c.Names.Table("tunnel"), bridge: c.Names.Bridge()}
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
		c.report(ctx, silent, c.apply(ctx, all, guarded))
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

// apply brings tunnel and routes in line with the nodes.
func (c Config) apply(ctx context.Context, nodes []*corev1.Node, g *guard) map[Route]error {
	own, others := Wanted(nodes, c.Node, c.Cluster)
	if len(own) == 0 {
		return nil // our node has no range or no address yet: what an earlier process made stays
	}
	for i := range others {
		r := &others[i]
		r.Tunnel = c.Backend == VXLAN || c.Backend != Routes && (r.Via.Is4() != r.To.Addr().Is4() || !near(r.Via))
		if r.Tunnel {
			r.Via = r.End
		}
	}
	// A peer may see us on no link of its own though it is on one of ours: the tunnel's
	// end is there for all that may use it.
	if c.Backend == Routes || len(others) == 0 {
		failed := Apply(c.Cluster, 0, others)
		if err := linuxhost.RemoveTunnel(c.Names); err != nil {
			c.Log.WarnContext(ctx, "the tunnel to other nodes stays", "error", err)
		}
		return failed
	}
	unreachable := map[Route]error{}
	for _, r := range others {
		if r.Tunnel && r.End.Is4() != own[0].End.Is4() {
			unreachable[r] = fmt.Errorf("the tunnel goes from %s to addresses of that family only: give all nodes one of it (node.address)", own[0].End)
		}
	}
	without := func() []Route {
		return slices.DeleteFunc(slices.Clone(others), func(r Route) bool { return unreachable[r] != nil })
	}
	device, err := c.open(ctx, own, without(), g)
	if err != nil {
		for _, r := range others {
			if r.Tunnel {
				unreachable[r] = err
			}
		}
	}
	failed := Apply(c.Cluster, device, without())
	maps.Copy(failed, unreachable)
	return failed
}

// near tells whether an address is on a link of this machine, on which hardware is found
// by asking: over a point-to-point link go only those packets that its other end takes.
func near(a netip.Addr) bool {
	found, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(found) == 0 || len(found[0].Gw) > 0 || found[0].Via != nil {
		return false
	}
	link, err := netlink.LinkByIndex(found[0].LinkIndex)
	return err == nil && link.Attrs().Flags&net.FlagBroadcast != 0 && link.Attrs().Flags&net.FlagPointToPoint == 0
}

// Route leads to a node's pods of one IP family, To, by the node's address, Via, which is of
// that family where the node has one.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
	// End is the node's first address: its end of the tunnel, if that is needed.
	End netip.Addr
	// Tunnel: Via is the other end of the tunnel, and no gateway.
	Tunnel bool
}

// Wanted are the own node's ranges with its addresses, and the routes to the pods of all
// other nodes. Of two nodes that claim one range, or ranges that overlap, the one that was
// there first has it. One that says its address is ours, or a pod's, gets no route.
func Wanted(nodes []*corev1.Node, name string, cluster []netip.Prefix) (own, others []Route) {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		if (a.Name == name) != (b.Name == name) { // nobody takes our own
			if a.Name == name {
				return -1
			}
			return 1
		}
		if o := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); o != 0 {
			return o
		}
		return slices.Compare([]byte(a.Name), []byte(b.Name))
	})
	var taken []netip.Prefix
	var ours []netip.Addr
	for _, n := range nodes {
		has := addresses(n)
		if n.Name == name {
			ours = has
		}
		for _, to := range ranges(n) {
			if !slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Contains(to.Addr()) && to.Bits() > c.Bits() }) ||
				slices.ContainsFunc(taken, to.Overlaps) {
				continue
			}
			taken = append(taken, to)
			if len(has) == 0 {
				continue
			}
			r := Route{To: to.Masked(), Via: has[0], End: has[0]}
			for _, a := range has {
				if a.Is4() == to.Addr().Is4() {
					r.Via = a
					break
				}
			}
			switch {
			case n.Name == name:
				own = append(own, r)
			case !slices.ContainsFunc([]netip.Addr{r.Via, r.End}, func(a netip.Addr) bool {
				return slices.Contains(ours, a) || slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Contains(a) })
			}):
				others = append(others, r)
			}
		}
	}
	return own, others
}

// ranges are a node's pod ranges, the first of each IP family.
func ranges(n *corev1.Node) []netip.Prefix {
	list := n.Spec.PodCIDRs
	if len(list) == 0 {
		list = []string{n.Spec.PodCIDR}
	}
	var out []netip.Prefix
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err == nil && !slices.ContainsFunc(out, func(has netip.Prefix) bool { return has.Addr().Is4() == p.Addr().Is4() }) {
			out = append(out, p)
		}
	}
	return out
}

// addresses are those of a node that others reach it by.
func addresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && addr.IsGlobalUnicast() {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

// entry is a route as the kernel has it. Those through the tunnel have its device, and as
// gateway the other end's address there.
type entry struct {
	to      netip.Prefix
	gateway netip.Addr
	device  int
}

func (r Route) entry(device int) entry {
	if r.Tunnel {
		return entry{r.To, inside(r.To), device}
	}
	return entry{r.To, r.Via, 0}
}

// Apply makes the kernel's routes those that are wanted, and says which it refused.
// device is the tunnel's, 0 where there is none.
func Apply(cluster []netip.Prefix, device int, wanted []Route) map[Route]error {
	failed := map[Route]error{}
	has, err := ours(cluster, device)
	if err != nil {
		for _, r := range wanted {
			failed[r] = err
		}
		return failed
	}
	stay := map[entry]bool{}
	for _, r := range wanted {
		e := r.entry(device)
		if stay[e] = true; slices.Contains(has, e) {
			continue
		}
		// In the place of one that led elsewhere, so that no packet is without a route.
		err := netlink.RouteReplace(e.netlink())
		if errors.Is(err, unix.ENETUNREACH) {
			err = fmt.Errorf("its node is on no link of this machine: let packets go through a tunnel (node.podNetwork.backend: auto), or use a pod network of your own (node.cniConfigDir): %w", err)
		}
		if err != nil {
			failed[r] = err
		}
	}
	for _, e := range has {
		if stay[e] {
			continue
		}
		if err := netlink.RouteDel(e.netlink()); err != nil && !errors.Is(err, unix.ESRCH) {
			failed[Route{To: e.to, Via: e.gateway, Tunnel: e.device != 0}] = fmt.Errorf("remove the route: %w", err)
		}
	}
	return failed
}

// Remove takes all our routes of the cluster's networks off this machine.
func Remove(cluster ...netip.Prefix) error {
	for r, err := range Apply(cluster, 0, nil) {
		return fmt.Errorf("route to %s: %w", r.To, err)
	}
	return nil
}

func (e entry) netlink() *netlink.Route {
	r := &netlink.Route{
		Dst: &net.IPNet{IP: e.to.Addr().AsSlice(), Mask: net.CIDRMask(e.to.Bits(), e.to.Addr().BitLen())}, Gw: e.gateway.AsSlice(),
		Protocol: protocol,
	}
	if e.device != 0 {
		r.LinkIndex = e.device
		r.Flags = int(netlink.FLAG_ONLINK)
	}
	return r
}

func ours(cluster []netip.Prefix, device int) (out []entry, err error) {
	for _, network := range cluster {
		of, err := oursOf(network, device)
		if err != nil {
			return nil, err
		}
		out = append(out, of...)
	}
	return out, nil
}

func oursOf(cluster netip.Prefix, device int) ([]entry, error) {
	found, err := netdump.Routes(familyOf(cluster.Addr()), &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list this machine's routes: %w", err)
	}
	var out []entry
	for _, f := range found {
		if f.Dst == nil {
			continue
		}
		to, ok1 := netip.AddrFromSlice(f.Dst.IP)
		via, ok2 := netip.AddrFromSlice(f.Gw)
		bits, _ := f.Dst.Mask.Size()
		if p := netip.PrefixFrom(to.Unmap(), bits); ok1 && ok2 && cluster.Contains(p.Addr()) {
			e := entry{to: p, gateway: via.Unmap()}
			if device != 0 && f.LinkIndex == device {
				e.device = device
			}
			out = append(out, e)
		}
	}
	return out, nil
}
