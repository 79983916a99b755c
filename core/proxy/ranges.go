// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/knftables"
)

// setRanges has the networks of Services.
const setRanges = "service-ranges"

// followRanges learns of the networks that Services get addresses of besides the configured
// ones. Nothing waits for it: a proxy that may not, or cannot yet, see ServiceCIDRs forwards
// Services of them all the same.
func (p *Proxy) followRanges() error {
	_, err := p.cfg.Informers.Networking().V1().ServiceCIDRs().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { p.serviceCIDR(o, false) },
		UpdateFunc: func(_, o any) { p.serviceCIDR(o, false) },
		DeleteFunc: func(o any) { p.serviceCIDR(o, true) },
	})
	if err != nil {
		return fmt.Errorf("follow service CIDRs: %w", err)
	}
	return nil
}

func (p *Proxy) serviceCIDR(o any, deleted bool) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	r, ok := o.(*networkingv1.ServiceCIDR)
	if !ok {
		return
	}
	p.mu.Lock()
	if deleted {
		delete(p.ranges, r.Name)
	} else {
		p.ranges[r.Name] = readyPrefixes(r)
	}
	p.mu.Unlock()
	p.nudge()
}

// readyPrefixes are the networks of a range that is ready and stays. Others are nobody's to
// refuse: a range may overlap nodes, and is not ready then.
func readyPrefixes(r *networkingv1.ServiceCIDR) []netip.Prefix {
	if r.DeletionTimestamp != nil || !meta.IsStatusConditionTrue(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		return nil
	}
	var out []netip.Prefix
	for _, text := range r.Spec.CIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			out = append(out, prefix.Masked())
		}
	}
	return out
}

// networks are those of Services now, of both families.
func (p *Proxy) networks() []netip.Prefix {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.cfg.ServiceCIDRs)
	for _, list := range p.ranges {
		all = append(all, list...)
	}
	return all
}

// widest are the networks of a family that no other one contains, in order: a set takes
// no intervals that overlap.
func (f family) widest(all []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if !f.fits(p.Addr()) || slices.Contains(out, p) || slices.ContainsFunc(all, func(o netip.Prefix) bool {
			return o.Bits() < p.Bits() && o.Contains(p.Addr())
		}) {
			continue
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return out
}

// use has the table have these networks. One that is to be rewritten gets them then.
func (s *side) use(ctx context.Context, networks []netip.Prefix) error {
	if slices.Equal(s.table.services, networks) {
		return nil
	}
	s.table.services = networks
	if s.broken {
		return nil
	}
	tx := s.table.nft.NewTransaction()
	tx.Flush(&knftables.Set{Name: setRanges})
	s.table.addRanges(tx)
	if err := s.table.run(ctx, tx); err != nil {
		s.broken = true
		return err
	}
	return nil
}

func (t *table) addRanges(tx *knftables.Transaction) {
	for _, p := range t.services {
		tx.Add(&knftables.Element{Set: setRanges, Key: []string{p.String()}})
	}
}
