// SPDX-License-Identifier: Apache-2.0

package route

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/wasmplane/wasmplane/core/netdump"
)

const (
	// Port is where nodes receive VXLAN, by UDP (RFC 7348).
	Port = 4789
	// What VXLAN puts before a packet: the outer IP header, UDP, its own, and Ethernet.
	overhead4 = 20 + 8 + 8 + 14
	overhead6 = 40 + 8 + 8 + 14
	// usualMTU is Ethernet's.
	usualMTU = 1500
	// leastMTU is what every IPv4 host takes (RFC 1122), leastMTU6 what IPv6 needs (RFC 8200).
	leastMTU, leastMTU6 = 576, 1280
)

// networkID tells the tunnels of clusters on one machine apart. All nodes know the
// cluster's first pod network, which stays when it gets a second one; its name they need not have.
func networkID(cluster netip.Prefix) int {
	sum := sha256.Sum256([]byte(cluster.Masked().String()))
	return 1<<23 | int(binary.BigEndian.Uint32(sum[:])&(1<<23-1)) // 24 bits, and not the small numbers that others like
}

// hardware is the address in the tunnel of the node at an address: of local meaning, for
// one host (IEEE 802, clause 8).
func hardware(a netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256([]byte(a.String()))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// MTU is what a pod's packet may have to arrive unbroken at a node that address reaches:
// what the machine's link carries, less what the tunnel adds. wanted, if not 0, is
// the operator's, who may know of a narrower place on the way. cluster are the pods' networks.
func MTU(b Backend, a netip.Addr, wanted int, cluster []netip.Prefix) (int, error) {
	name, mtu := underlay(a)
	least := leastMTU
	if slices.ContainsFunc(cluster, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		least = leastMTU6
	}
	if b != Routes {
		if mtu -= overhead4; a.Is6() {
			mtu -= overhead6 - overhead4
		}
	}
	switch {
	case wanted > mtu && name != "":
		return 0, fmt.Errorf("node.podNetwork.mtu: the link %s leaves %d bytes for a pod's packet, found %d", name, mtu, wanted)
	case wanted > 0:
		return wanted, nil
	case mtu < least:
		return 0, fmt.Errorf("the link %s leaves %d bytes for a pod's packet, and at least %d are needed: raise its MTU", name, mtu, least)
	}
	return mtu, nil
}

// underlay is the link by which packets leave that come from an address of this machine,
// and its MTU; no name and Ethernet's MTU where none is found.
func underlay(a netip.Addr) (name string, mtu int) {
	links, err := netdump.Links()
	if err != nil {
		return "", usualMTU
	}
	for _, l := range links {
		addrs, err := netdump.Addresses(l, netlink.FAMILY_ALL)
		if err != nil || l.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		if slices.ContainsFunc(addrs, func(has netlink.Addr) bool { return has.IP.Equal(a.AsSlice()) }) {
			return l.Attrs().Name, l.Attrs().MTU
		}
	}
	return "", usualMTU
}

// open makes the machine's end of the tunnel, with an entry for each node behind it.
func (c Config) open(ctx context.Context, own, others []Route, g *guard) (device int, err error) {
	if err := g.admit(ctx, networkID(c.Cluster[0]), own[0].End, others); err != nil {
		return 0, err
	}
	link, err := c.device(own[0].End)
	if err != nil {
		return 0, err
	}
	if err := c.address(link, own); err != nil {
		return 0, err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return 0, fmt.Errorf("set %s up: %w", c.Names.Tunnel(), err)
	}
	index := link.Attrs().Index
	var tunnelled []Route
	for _, r := range others {
		if r.Tunnel {
			tunnelled = append(tunnelled, r)
		}
	}
	return index, connect(index, tunnelled)
}

// inside is the address in the tunnel of the node of a range, which is no pod's. For IPv4 it
// is the range's own. For IPv6 that is every router's (RFC 4291, section 2.6.1), so that it is the
// bridge's.
func inside(to netip.Prefix) netip.Addr {
	if to.Addr().Is6() {
		return to.Masked().Addr().Next()
	}
	return to.Masked().Addr()
}

// address gives the device the addresses by which this machine itself sends through it, and is
// answered. For IPv6 the bridge's is chosen.
func (c Config) address(link netlink.Link, own []Route) error {
	addrs, err := netdump.Addresses(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", c.Names.Tunnel(), err)
	}
	wanted := func(ip net.IP) bool {
		return slices.ContainsFunc(own, func(r Route) bool { return r.To.Addr().Is4() && ip.Equal(inside(r.To).AsSlice()) })
	}
	for _, a := range addrs {
		if !wanted(a.IP) && !a.IP.IsLinkLocalUnicast() {
			if err := netlink.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("take an old address off %s: %w", c.Names.Tunnel(), err)
			}
		}
	}
	for _, r := range own {
		if !r.To.Addr().Is4() {
			continue
		}
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: &net.IPNet{
			IP:   inside(r.To).AsSlice(),
			Mask: net.CIDRMask(32, 32),
		}}); err != nil {
			return fmt.Errorf("give %s its address: %w", c.Names.Tunnel(), err)
		}
	}
	return nil
}

// device finds the tunnel's device, or makes it. One that cannot be what is wanted is made anew.
func (c Config) device(own netip.Addr) (netlink.Link, error) {
	name := c.Names.Tunnel()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, c.MTU, hardware(own)
	want := &netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: networkID(c.Cluster[0]), SrcAddr: own.AsSlice(), Port: Port, Learning: false, UDPCSum: true,
	}
	has, err := netlink.LinkByName(name)
	switch {
	case err == nil:
		is, ok := has.(*netlink.Vxlan)
		if !ok {
			return nil, fmt.Errorf("the link %s is a %s, not a VXLAN; remove it or give the cluster another name", name, has.Type())
		}
		if is.VxlanId == want.VxlanId && is.Port == want.Port && !is.Learning && is.SrcAddr.Equal(want.SrcAddr) &&
			is.HardwareAddr.String() == want.HardwareAddr.String() {
			if is.MTU != c.MTU {
				if err := netlink.LinkSetMTU(is, c.MTU); err != nil {
					return nil, fmt.Errorf("set the MTU of %s: %w", name, err)
				}
			}
			return is, nil
		}
		if err := netlink.LinkDel(is); err != nil {
			return nil, fmt.Errorf("remove the old %s: %w", name, err)
		}
	case !errors.As(err, &netlink.LinkNotFoundError{}):
		return nil, fmt.Errorf("look at link %s: %w", name, err)
	}
	if err := netlink.LinkAdd(want); errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("the kernel has no VXLAN (modprobe vxlan): nodes must share a link then, or have a pod network of their own (node.cniConfigDir): %w", err)
	} else if err != nil {
		return nil, fmt.Errorf("make the tunnel %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find the tunnel %s: %w", name, err)
	}
	return link, nil
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// connect makes the device know the nodes at the other ends, and forget all others: by
// which hardware address each is inside (a neighbour), and where packets to that go
// outside (an entry of the forwarding database).
func connect(device int, others []Route) error {
	neighbours, forwarding := map[string]*netlink.Neigh{}, map[string]*netlink.Neigh{}
	for _, r := range others {
		n := &netlink.Neigh{
			LinkIndex: device, Family: familyOf(r.To.Addr()), State: netlink.NUD_PERMANENT,
			IP: inside(r.To).AsSlice(), HardwareAddr: hardware(r.Via),
		}
		neighbours[key(n)] = n
		f := &netlink.Neigh{
			LinkIndex: device, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT,
			IP: r.Via.AsSlice(), HardwareAddr: hardware(r.Via),
		}
		forwarding[key(f)] = f
	}
	errs := []error{reconcile(device, unix.AF_BRIDGE, forwarding)}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		of := map[string]*netlink.Neigh{}
		for k, n := range neighbours {
			if n.Family == family {
				of[k] = n
			}
		}
		errs = append(errs, reconcile(device, family, of))
	}
	return errors.Join(errs...)
}

func key(n *netlink.Neigh) string { return n.IP.String() + " " + n.HardwareAddr.String() }

func reconcile(device, family int, want map[string]*netlink.Neigh) error {
	has, err := netdump.Neighbors(device, family)
	if err != nil {
		return fmt.Errorf("list what the tunnel knows: %w", err)
	}
	var errs []error
	there := map[string]bool{}
	for i := range has {
		n := &has[i]
		if k := key(n); want[k] != nil {
			there[k] = n.State&netlink.NUD_PERMANENT != 0
			continue
		}
		// What the kernel keeps for itself (multicast) is of state NOARP.
		if family != unix.AF_BRIDGE && n.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		n.Family = family
		if family == unix.AF_BRIDGE {
			n.Flags = netlink.NTF_SELF
		}
		if err := netlink.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("let the tunnel forget %s: %w", n, err))
		}
	}
	for k, n := range want {
		if !there[k] {
			if err := netlink.NeighSet(n); err != nil {
				errs = append(errs, fmt.Errorf("let the tunnel know %s: %w", n, err))
			}
		}
	}
	return errors.Join(errs...)
}

// guard lets only nodes into the tunnel: the kernel asks a packet of VXLAN for its
// network's number alone. Who can send with a node's address gets in all the same, and a
// pod can: what it sends to other nodes leaves with the address of its own, and with raw
// sockets it writes any. So nothing that comes from the pods' bridge goes into the tunnel,
// here or at another node. And no pod or Service takes the tunnel's packets by asking for
// its port: what is not tracked is not translated.
type guard struct {
	table, bridge string
	now           string // what is in place
}

func (g *guard) admit(ctx context.Context, network int, own netip.Addr, nodes []Route) error {
	ipX := "ip"
	if own.Is6() {
		ipX = "ip6"
	}
	allowed := []string{own.String()}
	for _, r := range nodes {
		if r.End.Is4() == own.Is4() {
			allowed = append(allowed, r.End.String())
		}
	}
	slices.Sort(allowed)
	// The number is in the 24 bits that follow UDP's header and four bytes of VXLAN's.
	tunnel := knftables.Concat("udp dport", Port, "@th,96,24", network)
	pods := knftables.Concat("iifname", strconv.Quote(g.bridge), tunnel, "drop")
	rule := knftables.Concat(tunnel, ipX, "saddr != {", strings.Join(slices.Compact(allowed), ", "), "} drop")
	nft, err := knftables.New(knftables.InetFamily, g.table)
	if err != nil {
		return fmt.Errorf("use nftables (apt-get install nftables): %w", err)
	}
	// Others flush the whole ruleset: a firewall that starts again.
	if chains, err := nft.List(ctx, "chains"); rule == g.now && err == nil && len(chains) == 4 {
		return nil
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("who may send into the tunnel between nodes")})
	for name, hook := range map[string]knftables.BaseChainHook{"input": knftables.InputHook, "forward": knftables.ForwardHook} {
		tx.Add(&knftables.Chain{
			Name: name, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook),
			Priority: knftables.PtrTo(knftables.FilterPriority),
		})
		tx.Flush(&knftables.Chain{Name: name})
		tx.Add(&knftables.Rule{Chain: name, Rule: pods})
	}
	tx.Add(&knftables.Rule{Chain: "input", Rule: rule})
	for name, hook := range map[string]knftables.BaseChainHook{"prerouting": knftables.PreroutingHook, "output": knftables.OutputHook} {
		tx.Add(&knftables.Chain{
			Name: name, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook), Priority: knftables.PtrTo(knftables.RawPriority),
		})
		tx.Flush(&knftables.Chain{Name: name})
		tx.Add(&knftables.Rule{Chain: name, Rule: knftables.Concat(tunnel, "notrack")})
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write nftables table %s: %w", g.table, err)
	}
	g.now = rule
	return nil
}
