// SPDX-License-Identifier: Apache-2.0

// Package servicenetwork reads from ServiceCIDRs which ranges give Services their
// addresses: those that are ready and stay. Until somebody has judged the default one, it is
// the configured ranges.
//
// It answers from the cache, and asks the store where a claim must not be wrong.
package servicenetwork

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/watchcache"
)

// defaultServiceCIDR is the one that is made of the configuration.
const defaultServiceCIDR = "kubernetes"

// Source is where ServiceCIDRs are read from.
type Source interface {
	// Cached are those in the cache, by name.
	Cached() []*watchcache.Item
	// Stored is the one at a key in the store; nil: there is none.
	Stored(ctx context.Context, key string) (*watchcache.Item, error)
}

// Networks implements services.Networks. It is safe for concurrent use.
type Networks struct {
	source     Source
	configured []netip.Prefix

	mu   sync.Mutex
	read map[string]network // by key
}

// network is what a ServiceCIDR says at a revision.
type network struct {
	key, name string
	revision  int64
	prefixes  []netip.Prefix
	// gives: it is ready and stays. unjudged: nobody has said yet whether it is ready.
	gives, unjudged bool
}

// New makes the Networks of a source. CIDRs that are none are left out.
func New(source Source, configured []string) *Networks {
	n := &Networks{source: source, read: map[string]network{}}
	for _, cidr := range configured {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			n.configured = append(n.configured, p.Masked())
		}
	}
	return n
}

// Ready implements services.Networks: the default range first, the others by name.
func (n *Networks) Ready() []netip.Prefix {
	return n.prefixes(func(s network) bool { return s.gives })
}

// Known implements services.Networks.
func (n *Networks) Known() []netip.Prefix {
	return n.prefixes(func(network) bool { return true })
}

func (n *Networks) prefixes(of func(network) bool) (out []netip.Prefix) {
	all := n.cached()
	at := slices.IndexFunc(all, func(s network) bool { return s.name == defaultServiceCIDR })
	switch {
	case at < 0, all[at].unjudged:
		// A server that begins a cluster takes the address of its own Service before anybody
		// could have said that the range is ready.
		out = append(out, n.configured...)
	case of(all[at]):
		out = append(out, all[at].prefixes...)
	}
	for i, s := range all {
		if i != at && of(s) {
			out = append(out, s.prefixes...)
		}
	}
	return out
}

// Gives implements services.Networks. Addresses of the configured ranges need no question:
// the API's own Service has one of them, so that they go only where another range has it.
func (n *Networks) Gives(ctx context.Context, from netip.Prefix) (bool, error) {
	if slices.Contains(n.configured, from) {
		return true, nil
	}
	for _, s := range n.cached() {
		if !s.gives || !slices.Contains(s.prefixes, from) {
			continue
		}
		item, err := n.source.Stored(ctx, s.key)
		if err != nil {
			return false, err
		}
		if item == nil {
			continue
		}
		if now, ok := networkOf(item); ok && now.gives && slices.Contains(now.prefixes, from) {
			return true, nil
		}
	}
	return false, nil
}

// cached are those in the cache, by name. What was read of one is kept until it changes.
func (n *Networks) cached() []network {
	items := n.source.Cached()
	n.mu.Lock()
	defer n.mu.Unlock()
	read, out := make(map[string]network, len(items)), make([]network, 0, len(items))
	for _, item := range items {
		s, ok := n.read[item.Key]
		if !ok || s.revision != item.Revision {
			if s, ok = networkOf(item); !ok {
				continue
			}
		}
		read[item.Key] = s
		out = append(out, s)
	}
	n.read = read
	return out
}

func networkOf(item *watchcache.Item) (network, bool) {
	versioned, err := item.Object.Versioned()
	if err != nil {
		return network{}, false
	}
	o, ok := versioned.(*networkingv1.ServiceCIDR)
	if !ok {
		return network{}, false
	}
	ready := meta.FindStatusCondition(o.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	s := network{
		key: item.Key, name: o.Name, revision: item.Revision,
		gives:    ready != nil && ready.Status == metav1.ConditionTrue && o.DeletionTimestamp == nil,
		unjudged: ready == nil && o.DeletionTimestamp == nil,
	}
	for _, cidr := range o.Spec.CIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			s.prefixes = append(s.prefixes, p.Masked())
		}
	}
	return s, true
}
