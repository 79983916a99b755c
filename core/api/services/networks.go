// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
)

// Networks says which ranges cluster IPs come from at the moment: ServiceCIDRs come and
// go while a server runs. Ranges may overlap; an address belongs to the Service that its
// claim names, whatever range it was taken from.
type Networks interface {
	// Ready are the ranges that give addresses, in the order in which they are tried. It
	// may answer from a cache.
	Ready() []netip.Prefix
	// Known are these, and those of which Services may have addresses although they give
	// no more.
	Known() []netip.Prefix
	// Gives asks the store whether a range gives addresses. It is asked after an address
	// was claimed: who takes a range away looks for claims after the range says that it
	// is leaving, so that one of the two sees the other.
	Gives(ctx context.Context, from netip.Prefix) (bool, error)
}

// fixed is Networks of ranges that never change.
type fixed []netip.Prefix

func (f fixed) Ready() []netip.Prefix { return f }
func (f fixed) Known() []netip.Prefix { return f }

func (f fixed) Gives(context.Context, netip.Prefix) (bool, error) { return true, nil }

// ready are the pools of a family that give addresses. Ranges too small or too large are none.
func (a *Allocator) ready(f core.IPFamily) []*AddressPool {
	var out []*AddressPool
	for _, prefix := range a.networks.Ready() {
		if p, err := newPool(prefix, a.addresses); err == nil && p.family == f {
			out = append(out, p)
		}
	}
	return out
}

// isKnown tells whether an address is of any range.
func (a *Allocator) isKnown(addr netip.Addr) bool {
	for _, prefix := range a.networks.Known() {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// anyAddress claims one of a family: of the ranges' upper bands, and where all of these
// are full, of their lower ones.
func (a *Allocator) anyAddress(ctx context.Context, svc *core.Service, f core.IPFamily, dryRun bool) (string, error) {
	pools := a.ready(f)
	if dryRun && len(pools) > 0 {
		return pools[0].prefix.Addr().String(), nil
	}
	for _, static := range []bool{false, true} {
		for _, p := range pools {
			addr, err := p.next(ctx, svc, static)
			if err != nil {
				return "", err
			}
			if !addr.IsValid() {
				continue
			}
			stays, err := a.confirm(ctx, p, addr)
			if stays || err != nil {
				return addr.String(), err
			}
		}
	}
	return "", ipallocator.ErrFull
}

// wanted claims the address that a Service asks for.
func (a *Allocator) wanted(ctx context.Context, svc *core.Service, f core.IPFamily, ip string, dryRun bool) error {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return err
	}
	var valid []string
	for _, p := range a.ready(f) {
		valid = append(valid, p.prefix.String())
		if !p.gives(addr) {
			continue
		}
		if dryRun {
			return nil
		}
		if err := create(ctx, a.addresses, svc, addr); err != nil {
			return err
		}
		if stays, err := a.confirm(ctx, p, addr); stays || err != nil {
			return err
		}
	}
	return &ipallocator.ErrNotInRange{IP: net.IP(addr.AsSlice()), ValidRange: strings.Join(valid, ", ")}
}

// confirm gives a claimed address back whose range has gone meanwhile.
func (a *Allocator) confirm(ctx context.Context, p *AddressPool, addr netip.Addr) (bool, error) {
	stays, err := a.networks.Gives(ctx, p.prefix)
	if stays && err == nil {
		return true, nil
	}
	if err := release(context.WithoutCancel(ctx), a.addresses, addr.String()); err != nil {
		a.failed(err)
	}
	if err != nil {
		return false, fmt.Errorf("whether the range %s still gives addresses: %w", p.prefix, err)
	}
	return false, nil
}
