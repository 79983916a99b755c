// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// HostAddress is this machine as others see it: the configured address, that of the
// default route, that of a network without one, or loopback on a machine without a network.
func HostAddress(c interface{ NodeAddress() string }) (netip.Addr, error) {
	if a := c.NodeAddress(); a != "" {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("node.address: expected an IP address, found %q", a)
		}
		return addr, nil
	}
	// No packet is sent: connecting a datagram socket only chooses a route.
	if conn, err := net.Dial("udp4", "203.0.113.1:9"); err == nil { //nolint:noctx // returns at once
		defer func() { _ = conn.Close() }()
		return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), nil
	}
	links, err := machineLinks()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("this machine has no default route, and its addresses cannot be read: %w; name one by node.address", err)
	}
	return addressOf(links), nil
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

// addressOf chooses for a machine without a default route: the first IPv4 address that
// others can reach. Bridges and veths of container engines count last, because their
// networks end at this machine.
func addressOf(links []link) netip.Addr {
	inside := func(name string) bool {
		return slices.ContainsFunc([]string{"wp", "docker", "br-", "cni", "veth", "virbr", "podman", "lxc", "flannel", "cali"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	last := netip.MustParseAddr("127.0.0.1")
	for _, l := range links {
		for _, a := range l.addrs {
			if !a.Is4() || !a.IsGlobalUnicast() {
				continue
			}
			if !inside(l.name) {
				return a
			}
			if last.IsLoopback() {
				last = a
			}
		}
	}
	return last
}
