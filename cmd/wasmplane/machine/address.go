// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// HostAddresses are this machine as others see it, one of each IP family that the cluster's
// pods have, the cluster's own first: the configured one, else that of the default route,
// else that of a network without one. A second family that the machine lacks is left out.
// On a machine without a network the only one is loopback.
func HostAddresses(c *config.Configuration) ([]netip.Addr, error) {
	out, pods := c.Node.Addresses(), c.Cluster.PodNetworks()
	has := func(ip4 bool) bool {
		return slices.ContainsFunc(out, func(a netip.Addr) bool { return a.Is4() == ip4 })
	}
	families := []bool{true} // a component of its own may not know the networks
	if len(pods) > 0 {
		families = families[:0]
		for _, p := range pods {
			families = append(families, p.Addr().Is4())
		}
	}
	for _, ip4 := range families {
		// Of the one family of a cluster, or of another: whoever names an address has decided.
		if has(ip4) || len(out) > 0 && len(families) == 1 {
			continue
		}
		a, err := found(ip4)
		if err != nil {
			return nil, err
		}
		if a.IsValid() {
			out = append(out, a)
		}
	}
	if first := families[0]; !has(first) && (len(families) == 2 || len(out) == 0) {
		if !first {
			return nil, errors.New("the cluster's own family is IPv6 (the first network of cluster.podCIDR), and this machine has no IPv6 address that others can reach: give it one (ip -6 address add fd00:1::1/64 dev LINK), name one by node.address, or put the IPv4 network first")
		}
		out = append(out, netip.MustParseAddr("127.0.0.1"))
	}
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return slices.Index(families, a.Is4()) - slices.Index(families, b.Is4()) })
	return out, nil
}

// HostAddress is the one of HostAddresses that is of the cluster's own family.
func HostAddress(c *config.Configuration) (netip.Addr, error) {
	all, err := HostAddresses(c)
	if err != nil {
		return netip.Addr{}, err
	}
	return all[0], nil
}

// found is the machine's address of a family; not valid where it has none.
func found(ip4 bool) (netip.Addr, error) {
	// Of networks for documentation. No packet is sent: connecting a datagram socket only
	// chooses a route.
	network, somewhere := "udp4", "203.0.113.1:9"
	if !ip4 {
		network, somewhere = "udp6", "[2001:db8::1]:9"
	}
	if conn, err := net.Dial(network, somewhere); err == nil { //nolint:noctx // returns at once
		defer func() { _ = conn.Close() }()
		if a := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr(); a.IsGlobalUnicast() {
			return linuxhost.StableAddress(a), nil
		}
	}
	links, err := machineLinks()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("this machine has no default route, and its addresses cannot be read: %w; name one by node.address", err)
	}
	return addressOf(links, ip4), nil
}

// link is a network interface with its addresses.
type link struct {
	name  string
	addrs []netip.Addr
}

// machineLinks are the interfaces that are up, in the kernel's order.
func machineLinks() ([]link, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []link
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		l := link{name: i.Name}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				l.addrs = append(l.addrs, p.Addr().Unmap())
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// addressOf chooses for a machine without a default route: the first address of the family
// that others can reach; not valid where there is none. Bridges and veths of container engines count last, because their
// networks end at this machine.
func addressOf(links []link, ip4 bool) (last netip.Addr) {
	inside := func(name string) bool {
		return slices.ContainsFunc([]string{"wp", "docker", "br-", "cni", "veth", "virbr", "podman", "lxc", "flannel", "cali"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	for _, l := range links {
		for _, a := range l.addrs {
			if a.Is4() != ip4 || !a.IsGlobalUnicast() {
				continue
			}
			if !inside(l.name) {
				return linuxhost.StableAddress(a)
			}
			if !last.IsValid() {
				last = a
			}
		}
	}
	return last
}
