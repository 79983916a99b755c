// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/netdump"
)

// StableAddress is a, or, where a is an IPv6 address that goes away by itself (RFC 8981), or
// is about to, another one of the same network on the same link that stays. The kernel
// prefers the former for what it begins; a node is known by the latter.
func StableAddress(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return a
	}
	has, err := netdump.Addresses(nil, netlink.FAMILY_V6)
	if err != nil {
		return a // as the kernel chose
	}
	return stable(a, has)
}

func stable(a netip.Addr, has []netlink.Addr) netip.Addr {
	const passing = unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE
	for _, own := range has {
		if !own.IP.Equal(a.AsSlice()) || own.Flags&passing == 0 {
			continue
		}
		for _, other := range has {
			ip, ok := netip.AddrFromSlice(other.IP)
			if ok && other.LinkIndex == own.LinkIndex && other.Flags&passing == 0 && own.Contains(other.IP) && ip.IsGlobalUnicast() {
				return ip
			}
		}
	}
	return a
}
