// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// addrRange is all addresses from one to another, both included, of one family.
type addrRange struct{ from, to netip.Addr }

func rangeOf(p netip.Prefix) addrRange {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 1 << (7 - bit%8)
	}
	to, _ := netip.AddrFromSlice(last) // of the length that it came in
	return addrRange{p.Addr(), to}
}

// union sorts ranges and joins those that touch.
func union(list []addrRange) []addrRange {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b addrRange) int { return a.from.Compare(b.from) })
	var out []addrRange
	for _, r := range list {
		if n := len(out); n > 0 && out[n-1].from.BitLen() == r.from.BitLen() {
			last := &out[n-1]
			if next := last.to.Next(); !next.IsValid() || r.from.Compare(next) <= 0 {
				if r.to.Compare(last.to) > 0 {
					last.to = r.to
				}
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// without is r less what holes cover.
func (r addrRange) without(holes []addrRange) []addrRange {
	var out []addrRange
	for _, h := range union(holes) {
		if h.from.BitLen() != r.from.BitLen() || h.to.Less(r.from) || r.to.Less(h.from) {
			continue
		}
		if r.from.Less(h.from) {
			out = append(out, addrRange{r.from, h.from.Prev()})
		}
		if !h.to.Less(r.to) {
			return out
		}
		r.from = h.to.Next()
	}
	return append(out, r)
}

func (r addrRange) String() string {
	if r.from == r.to {
		return r.from.String()
	}
	return r.from.String() + "-" + r.to.String()
}

// unionPorts sorts ranges and joins those that touch, because nftables refuses
// ranges that overlap.
func unionPorts(list []PortRange) []PortRange {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b PortRange) int {
		return cmp.Or(strings.Compare(a.Protocol, b.Protocol), int(a.From)-int(b.From))
	})
	var out []PortRange
	for _, r := range list {
		if n := len(out); n > 0 && out[n-1].Protocol == r.Protocol && int(r.From) <= int(out[n-1].To)+1 {
			out[n-1].To = max(out[n-1].To, r.To)
			continue
		}
		out = append(out, r)
	}
	return out
}
