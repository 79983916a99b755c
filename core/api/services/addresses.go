// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
)

// Addresses keeps claims of cluster IPs: an IPAddress object each, named by the
// address, so that the store lets only one claim win.
type Addresses interface {
	// Claim creates an object, or answers an API AlreadyExists.
	Claim(ctx context.Context, o *networkingv1.IPAddress) error
	// Release deletes the object of a name; that it is gone is no error.
	Release(ctx context.Context, name string) error
	// Taken may answer from a cache: it only saves attempts.
	Taken(name string) bool
}

// AddressPool is one range of cluster IPs.
type AddressPool struct {
	prefix      netip.Prefix
	family      core.IPFamily
	first, last netip.Addr
	size        uint64 // addresses from first to last
	static      uint64 // at the beginning, used for claims without a wish only when the rest is full
	addresses   Addresses
}

// NewAddressPool makes a pool of a range such as 10.96.0.0/12. Its first
// address (the network's) and, for IPv4, its last are not given out.
func NewAddressPool(cidr string, addresses Addresses) (*AddressPool, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return nil, fmt.Errorf("service range %q: expected an address and a length, such as 10.96.0.0/12: %w", cidr, err)
	}
	return newPool(prefix.Masked(), addresses)
}

func newPool(prefix netip.Prefix, addresses Addresses) (*AddressPool, error) {
	bits := prefix.Addr().BitLen() - prefix.Bits()
	if bits < 2 || prefix.Addr().Is6() && bits > 64 {
		return nil, fmt.Errorf("service range %s: it must leave at least 2 bits, and for IPv6 at most 64, for addresses", prefix)
	}
	p := &AddressPool{prefix: prefix, first: prefix.Addr().Next(), addresses: addresses, family: familyOfAddr(prefix.Addr())}
	p.size = 1<<bits - 1 // 2^64-1 where bits is 64
	if prefix.Addr().Is4() {
		p.size--
	}
	p.last = plus(p.first, p.size-1)
	p.static = staticShare(p.size, 16, 16, 256)
	return p, nil
}

// staticShare is how much of a range is left to wishes while the rest lasts:
// never less than least, never more than most, size/step between them.
func staticShare(size, step, least, most uint64) uint64 {
	if size <= least {
		return 0
	}
	return min(max(size/step, least), most)
}

// gives tells whether an address is one that the range gives out.
func (p *AddressPool) gives(addr netip.Addr) bool {
	return p.prefix.Contains(addr) && !addr.Less(p.first) && !p.last.Less(addr)
}

// next claims an address of one of the two bands: a random one and those after it. It is
// no address where the band is full.
func (p *AddressPool) next(ctx context.Context, svc *core.Service, static bool) (netip.Addr, error) {
	if static {
		return p.nextOf(ctx, svc, 0, p.static)
	}
	return p.nextOf(ctx, svc, p.static, p.size)
}

func (p *AddressPool) nextOf(ctx context.Context, svc *core.Service, from, to uint64) (netip.Addr, error) {
	if from >= to {
		return netip.Addr{}, nil
	}
	start := from + rand.Uint64N(to-from)
	for i := start; ; {
		addr := plus(p.first, i)
		if !p.addresses.Taken(addr.String()) {
			err := create(ctx, p.addresses, svc, addr)
			if err == nil {
				return addr, nil
			}
			if err != ipallocator.ErrAllocated { //nolint:errorlint // create answers it as it is
				return netip.Addr{}, err
			}
		}
		if i++; i == to {
			i = from
		}
		if i == start {
			return netip.Addr{}, nil
		}
	}
}

func create(ctx context.Context, addresses Addresses, svc *core.Service, addr netip.Addr) error {
	err := addresses.Claim(ctx, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: addr.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOfAddr(addr)),
				networkingv1.LabelManagedBy:       ipallocator.ControllerName,
			},
		},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: svc.Namespace, Name: svc.Name},
		},
	})
	if apierrors.IsAlreadyExists(err) {
		return ipallocator.ErrAllocated
	}
	return err
}

func release(ctx context.Context, addresses Addresses, ip string) error {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return fmt.Errorf("release cluster IP %q: %w", ip, err)
	}
	if err := addresses.Release(ctx, addr.String()); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release cluster IP %s: %w", addr, err)
	}
	return nil
}

func familyOfAddr(a netip.Addr) core.IPFamily {
	if a.Is6() {
		return core.IPv6Protocol
	}
	return core.IPv4Protocol
}

// plus adds n to an address; ranges are at most 64 bits wide.
func plus(a netip.Addr, n uint64) netip.Addr {
	b := a.AsSlice()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		sum := uint64(b[i]) + n&0xff
		b[i] = byte(sum)
		n = n>>8 + sum>>8
	}
	out, _ := netip.AddrFromSlice(b)
	return out
}
