// SPDX-License-Identifier: Apache-2.0

// Package loadbalancer has the conventions for Services of type LoadBalancer that control
// plane and nodes share: which Services are ours, which addresses exist, and which node
// answers for an address.
//
// The controller (core/controllers/servicelb) gives addresses and writes them into the status.
// The service proxy of every node forwards what arrives at them. An address of a pool is on no
// machine: one node, which the controller names in an annotation, answers for it on the link
// (core/loadbalancer/neighbor).
package loadbalancer

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	// Class is the spec.loadBalancerClass of Services that ask for us by name. Those
	// that name no class are ours too.
	Class = "wasmplane.dev/load-balancer"
	// AddressesAnnotation asks for certain addresses, separated by commas, one of each IP
	// family: spec.loadBalancerIP has room for one.
	AddressesAnnotation = "loadbalancer.wasmplane.dev/addresses"
	// NodeAnnotation names the node that answers for the addresses of a pool.
	NodeAnnotation = "loadbalancer.wasmplane.dev/announced-by"
)

// Ours says whether a Service is to have an address from us.
func Ours(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class)
}

// Wanted are the addresses that a Service asks for. What is no address is an error.
func Wanted(s *corev1.Service) ([]netip.Addr, error) {
	var list []string
	if text := s.Annotations[AddressesAnnotation]; text != "" {
		list = strings.Split(text, ",")
	} else if s.Spec.LoadBalancerIP != "" {
		list = []string{s.Spec.LoadBalancerIP}
	}
	var out []netip.Addr
	for _, text := range list {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%q is no address such as 192.0.2.10", strings.TrimSpace(text))
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}

// Range is the addresses from First to Last.
type Range struct{ First, Last netip.Addr }

// Pool is addresses that Services get.
type Pool struct {
	Name   string
	Ranges []Range
	// Namespaces whose Services get them; none: all.
	Namespaces []string
}

// ParseRange reads an address, a network (192.0.2.64/28) or a range (192.0.2.10-192.0.2.20).
func ParseRange(text string) (Range, error) {
	first, last, isRange := strings.Cut(text, "-")
	if isRange {
		a, err1 := netip.ParseAddr(strings.TrimSpace(first))
		b, err2 := netip.ParseAddr(strings.TrimSpace(last))
		if err := errors.Join(err1, err2); err != nil {
			return Range{}, err
		}
		if a.Is4() != b.Is4() || b.Less(a) || a.Zone()+b.Zone() != "" {
			return Range{}, fmt.Errorf("%s is not before %s", a, b)
		}
		return usable(Range{a, b})
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return usable(Range{a, a})
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return Range{}, fmt.Errorf("%q is no address, network or range", text)
	}
	return usable(RangeOf(p))
}

// usable refuses addresses that no link routes to a node.
func usable(r Range) (Range, error) {
	for _, a := range []netip.Addr{r.First, r.Last} {
		if a.Is4In6() || a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
			return Range{}, fmt.Errorf("%s is no address at which a Service can be reached", a)
		}
	}
	return r, nil
}

// RangeOf is all addresses of a network.
func RangeOf(p netip.Prefix) Range {
	first := p.Masked().Addr()
	b := first.AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return Range{first, last}
}

// Contains says whether a is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// Overlaps says whether a network has an address of the range.
func (r Range) Overlaps(p netip.Prefix) bool {
	return r.Contains(p.Masked().Addr()) || p.Contains(r.First)
}

// Free is the first address of a family in the range that is not taken. It looks at no more
// addresses than are taken, and one.
func (r Range) Free(v6 bool, taken func(netip.Addr) bool) (netip.Addr, bool) {
	if r.First.Is6() != v6 {
		return netip.Addr{}, false
	}
	for a := r.First; a.IsValid() && !r.Last.Less(a); a = a.Next() {
		if !taken(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// For says whether Services of a namespace get addresses of the pool.
func (p *Pool) For(namespace string) bool {
	return len(p.Namespaces) == 0 || slices.Contains(p.Namespaces, namespace)
}

// Contains says whether a is in the pool.
func (p *Pool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.Contains(a) })
}

// Elect chooses the node that answers for an address: the one that does now, as long as it
// can, or else one that the address and the nodes' names decide, so that addresses are spread
// and a choice that is made again is the same. No candidate: "".
func Elect(address netip.Addr, candidates []string, current string) string {
	best, weight := "", uint64(0)
	for _, node := range candidates {
		if node == current {
			return current
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(address.String() + "/" + node))
		if w := h.Sum64(); best == "" || w > weight || w == weight && node < best {
			best, weight = node, w
		}
	}
	return best
}
