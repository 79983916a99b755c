// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/netdump"
)

// ensureBridge makes the pods' bridge with its gateway addresses before there is a
// pod: the node's DNS listens there. The bridge plugin finds it as it would have
// made it itself. A link of that name that is no bridge is somebody else's.
func ensureBridge(c Config) error {
	name := c.Names.Bridge()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, c.MTU
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("make bridge %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", name, err)
	}
	br, ok := link.(*netlink.Bridge)
	if !ok {
		return fmt.Errorf("the link %s is a %s, not a bridge; remove it or give the cluster another name", name, link.Type())
	}
	if c.MTU > 0 && br.MTU != c.MTU { // one of before
		if err := netlink.LinkSetMTU(br, c.MTU); err != nil {
			return fmt.Errorf("set the MTU of bridge %s: %w", name, err)
		}
	}
	// A fixed address of its own: a bridge otherwise takes the lowest of its ports'
	// and changes as pods come and go.
	if err := netlink.LinkSetHardwareAddr(br, br.HardwareAddr); err != nil {
		return fmt.Errorf("fix the hardware address of bridge %s: %w", name, err)
	}
	// Who is on the bridge are pods: no router, and nobody whose redirects the node follows.
	// Absent without IPv6.
	for _, conf := range []string{"accept_ra", "accept_redirects"} {
		if err := write(map[string]string{"net/ipv6/conf/" + name + "/" + conf: "0"}); err != nil {
			return err
		}
	}
	if err := dropAddresses(br, c.PodCIDRs); err != nil {
		return err
	}
	for _, p := range c.PodCIDRs {
		// Nobody else can have the address, and on a bridge without pods the kernel could not
		// find out: it would not let the DNS listen there.
		if err := netlink.AddrReplace(br, &netlink.Addr{IPNet: gateway(p), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("give bridge %s its address in %s: %w", name, p, err)
		}
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return nil
}

// dropAddresses takes those off the bridge that are not of the node's ranges now: a node that
// was deleted and made anew has others.
func dropAddresses(br *netlink.Bridge, ranges []netip.Prefix) error {
	has, err := netdump.Addresses(br, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the addresses of bridge %s: %w", br.Name, err)
	}
	for _, a := range has {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.IP.IsLinkLocalUnicast() || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) }) {
			continue
		}
		if err := netlink.AddrDel(br, &a); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return fmt.Errorf("take the old address %s off bridge %s: %w", a.IPNet, br.Name, err)
		}
	}
	return nil
}

// gateway is the first address of a range, as host-local leaves it to the bridge.
func gateway(p netip.Prefix) *net.IPNet {
	addr := p.Masked().Addr().Next()
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(p.Bits(), addr.BitLen())}
}
