// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// staleUDP are UDP flows that the kernel would go on sending to an endpoint that
// is gone, or to nobody although there is somebody by now. TCP notices by itself;
// a UDP client that never pauses keeps its entry for ever.
type staleUDP struct {
	// gone are endpoints that an address no longer leads to.
	gone map[udpKey]bool
	// woken are addresses that had no endpoint and have one now.
	woken map[netip.AddrPort]bool
}

type udpKey struct{ at, endpoint netip.AddrPort }

// findStale compares a Service's UDP flows before and after.
func findStale(before, after map[types.NamespacedName]*plan) *staleUDP {
	s := &staleUDP{gone: map[udpKey]bool{}, woken: map[netip.AddrPort]bool{}}
	for service, old := range before {
		if old == nil {
			continue
		}
		now := map[netip.AddrPort]map[netip.AddrPort]bool{}
		if p := after[service]; p != nil {
			for _, f := range p.udp {
				now[f.at] = map[netip.AddrPort]bool{}
				for _, e := range f.endpoints {
					now[f.at][e] = true
				}
			}
		}
		for _, f := range old.udp {
			for _, e := range f.endpoints {
				if !now[f.at][e] {
					s.gone[udpKey{f.at, e}] = true
				}
			}
		}
	}
	for service, p := range after {
		had := map[netip.AddrPort]bool{}
		if old := before[service]; old != nil {
			for _, f := range old.udp {
				had[f.at] = len(f.endpoints) > 0
			}
		}
		for _, f := range p.udp {
			if len(f.endpoints) > 0 && !had[f.at] {
				s.woken[f.at] = true
			}
		}
	}
	return s
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s *staleUDP) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok := addrPort(f.Forward.DstIP, f.Forward.DstPort)
	from, ok2 := addrPort(f.Reverse.SrcIP, f.Reverse.SrcPort)
	if !ok || !ok2 {
		return false
	}
	// A node port is an address of the node, whichever.
	anywhere := netip.AddrPortFrom(netip.Addr{}, to.Port())
	for _, at := range []netip.AddrPort{to, anywhere} {
		if s.gone[udpKey{at, from}] {
			return true
		}
		// Not translated: the flow began while nobody was there.
		if s.woken[at] && from == to {
			return true
		}
	}
	return false
}

func addrPort(ip []byte, port uint16) (netip.AddrPort, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port), ok
}

// forget removes stale flows from connection tracking.
func (s *staleUDP) forget(f family) error {
	if len(s.gone)+len(s.woken) == 0 {
		return nil
	}
	fam := netlink.InetFamily(unix.AF_INET)
	if f.ip6 {
		fam = unix.AF_INET6
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, fam, s); err != nil {
		return fmt.Errorf("forget UDP flows to endpoints that are gone: %w", err)
	}
	return nil
}
