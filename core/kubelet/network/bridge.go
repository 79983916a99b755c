// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
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
	for _, p := range c.PodCIDRs {
		if err := netlink.AddrReplace(br, &netlink.Addr{IPNet: gateway(p)}); err != nil {
			return fmt.Errorf("give bridge %s its address in %s: %w", name, p, err)
		}
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return nil
}

// gateway is the first address of a range, as host-local leaves it to the bridge.
func gateway(p netip.Prefix) *net.IPNet {
	addr := p.Masked().Addr().Next()
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(p.Bits(), addr.BitLen())}
}
