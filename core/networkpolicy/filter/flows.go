// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flows are the connections of addresses. Answers pass whatever policies say, and the kernel remembers for days
// which connections there were: a pod that gets the address of an earlier one must not go on with those.
type flows map[netip.Addr]bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s flows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	for _, ip := range [][]byte{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP} {
		if a, ok := netip.AddrFromSlice(ip); ok && s[a.Unmap()] {
			return true
		}
	}
	return false
}

// end has the kernel forget them.
func (s flows) end() error {
	var errs []error
	for family, is6 := range map[netlink.InetFamily]bool{unix.AF_INET: false, unix.AF_INET6: true} {
		for ip := range s {
			if ip.Is6() == is6 {
				_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, s)
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

// endFlows ends what was begun by or with whoever had the addresses before a pod that policies isolate. Where the
// kernel cannot, its rules hold for all but the answers on such connections.
func (f *Filter) endFlows(ctx context.Context, addresses []netip.Addr) {
	former := flows{}
	for _, ip := range addresses {
		former[ip] = true
	}
	f.ending.Lock()
	defer f.ending.Unlock()
	if err := former.end(); err != nil {
		f.cfg.Log.WarnContext(ctx, "connections of pods that had the addresses of a new one could not be ended (nf_conntrack_netlink)", "error", err)
	}
}
