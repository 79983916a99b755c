// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"pgregory.net/rapid"
)

// networks are ranges of which the store may know more than the cache.
type networks struct {
	mu                    sync.Mutex
	cached, stored, known []netip.Prefix
}

func (n *networks) Ready() []netip.Prefix { n.mu.Lock(); defer n.mu.Unlock(); return n.cached }
func (n *networks) Known() []netip.Prefix { n.mu.Lock(); defer n.mu.Unlock(); return n.known }

func (n *networks) Gives(_ context.Context, from netip.Prefix) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.stored, from), nil
}

func (n *networks) set(texts ...string) {
	var list []netip.Prefix
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cached, n.stored, n.known = list, list, list
}

func newAllocatorOf(t *testing.T, n *networks, cidrs ...string) (*Allocator, *memory) {
	a, m := newAllocator(t, cidrs...)
	a.networks = n
	return a, m
}

// give makes a Service, and answers its addresses or the error.
func give(ctx context.Context, a *Allocator, change func(*core.Service)) (string, *core.Service) {
	s := service(core.ServiceTypeClusterIP, 80)
	if change != nil {
		change(s)
	}
	claims, err := a.Create(ctx, s, false)
	if err != nil {
		return err.Error(), nil
	}
	claims.Commit(ctx)
	return strings.Join(s.Spec.ClusterIPs, ","), s
}

func asking(ip string) func(*core.Service) {
	return func(s *core.Service) { s.Spec.ClusterIP = ip }
}

// Addresses come from the ranges of the moment, the first one first; wishes from any.
func TestSeveralRanges(t *testing.T) {
	n := &networks{}
	n.set("10.96.0.0/30", "203.0.113.0/29", "fd00::/120")
	a, m := newAllocatorOf(t, n, "10.96.0.0/30")
	ctx := t.Context()
	var first []string
	for range 2 {
		ip, _ := give(ctx, a, nil)
		first = append(first, ip)
	}
	slices.Sort(first)
	if !slices.Equal(first, []string{"10.96.0.1", "10.96.0.2"}) {
		t.Errorf("the first two are %v", first)
	}
	if ip, _ := give(ctx, a, nil); !strings.HasPrefix(ip, "203.0.113.") {
		t.Errorf("beyond the first range: %s", ip)
	}
	n.set("10.96.0.0/30", "203.0.113.0/29", "198.51.100.0/24")
	if ip, _ := give(ctx, a, asking("198.51.100.77")); ip != "198.51.100.77" {
		t.Error(ip)
	}
	for ip, want := range map[string]string{
		"198.51.100.0":   "not in the valid range. The range of valid IPs is 10.96.0.0/30, 203.0.113.0/29, 198.51.100.0/24", // the network's own
		"198.51.100.255": "not in the valid range",
		"192.0.2.1":      "not in the valid range",
		"198.51.100.77":  "provided IP is already allocated",
		"fd00::7":        "IPv6 is not configured on this cluster",
	} {
		if got, _ := give(ctx, a, asking(ip)); !strings.Contains(got, want) {
			t.Errorf("%s: %s", ip, got)
		}
	}
	dry := service(core.ServiceTypeClusterIP, 80)
	dry.Spec.ClusterIP = "198.51.100.78"
	if _, err := a.Create(ctx, dry, true); err != nil || len(m.addresses) != 4 {
		t.Errorf("a dry run: %v, %d addresses", err, len(m.addresses))
	}
	n.set("10.96.0.0/30")
	if got, _ := give(ctx, a, nil); !strings.Contains(got, "failed to allocate a serviceIP") || !strings.Contains(got, "range is full") {
		t.Errorf("beyond a full range: %s", got)
	}
	n.set()
	if got, _ := give(ctx, a, nil); !strings.Contains(got, "range is full") {
		t.Errorf("without ranges: %s", got)
	}
}

// The store knows that a range is leaving, this server does not yet: nothing of it is given,
// and nothing stays claimed.
func TestARangeThatIsLeaving(t *testing.T) {
	n := &networks{}
	n.set("203.0.113.0/29", "10.96.0.0/24")
	n.stored = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}
	a, m := newAllocatorOf(t, n, "10.96.0.0/24")
	if ip, _ := give(t.Context(), a, nil); !strings.HasPrefix(ip, "10.96.0.") {
		t.Error(ip)
	}
	if got, _ := give(t.Context(), a, asking("203.0.113.3")); !strings.Contains(got, "not in the valid range") {
		t.Error(got)
	}
	if len(m.addresses) != 1 {
		t.Errorf("%d addresses are claimed", len(m.addresses))
	}
}

// A deleted Service gives its address back also where its range has gone or gives no more.
func TestAddressesOfRangesThatLeave(t *testing.T) {
	n := &networks{}
	n.set("10.96.0.0/24", "203.0.113.0/24")
	a, m := newAllocatorOf(t, n, "10.96.0.0/24")
	_, s := give(t.Context(), a, asking("203.0.113.3"))
	_, lost := give(t.Context(), a, asking("203.0.113.4"))
	n.set("10.96.0.0/24")
	n.known = append(n.known, netip.MustParsePrefix("203.0.113.0/24"))
	c, r := &cluster{memory: m}, NewRepair(a)
	c.svcs = []corev1.Service{}
	c.add("web", "203.0.113.3")
	c.add("restored", "203.0.113.5")
	c.svcs[0].Namespace, c.svcs[1].Namespace = "default", "default"
	for pass, want := range []string{"claimed [] [203.0.113.5]", "in order", "freed [] [203.0.113.4]", "in order"} {
		if got := c.pass(t, r); got != want {
			t.Errorf("pass %d: %s, want %s (of %s)", pass+1, got, want, lost.Spec.ClusterIP)
		}
	}
	a.Released(t.Context(), s)
	if m.addresses["203.0.113.3"] != nil {
		t.Error("the address of the deleted Service is still claimed")
	}
}

// Two servers, ranges that come, go and overlap, Services that come and go: no address has
// two Services, each is of a range that gave addresses, and claims and Services agree.
func TestServersShareRanges(t *testing.T) {
	pool := []string{"10.96.0.0/28", "10.96.0.0/29", "10.96.0.8/29", "203.0.113.0/29", "fd00::/124", "fd00::/125", "fd00:1::/124"}
	rapid.Check(t, func(rt *rapid.T) {
		n := &networks{}
		n.set(pool[0], pool[4])
		first, m := newAllocatorOf(t, n, pool[0], pool[4])
		second := *first
		servers := []*Allocator{first, &second}
		have := map[*core.Service]bool{}
		rt.Repeat(map[string]func(*rapid.T){
			"ranges": func(rt *rapid.T) {
				n.set(rapid.SliceOfNDistinct(rapid.SampledFrom(pool), 0, 4, rapid.ID[string]).Draw(rt, "ranges")...)
			},
			"make": func(rt *rapid.T) {
				var change func(*core.Service)
				if rapid.Bool().Draw(rt, "dual") {
					policy := core.IPFamilyPolicyRequireDualStack
					change = func(s *core.Service) { s.Spec.IPFamilyPolicy = &policy }
				} else if rapid.Bool().Draw(rt, "asks") {
					change = asking(rapid.SampledFrom([]string{"10.96.0.3", "203.0.113.2", "fd00::3"}).Draw(rt, "ip"))
				}
				_, s := give(t.Context(), rapid.SampledFrom(servers).Draw(rt, "server"), change)
				if s == nil {
					return
				}
				for _, ip := range s.Spec.ClusterIPs {
					if !slices.ContainsFunc(n.cached, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(ip)) }) {
						rt.Fatalf("%s is of none of %v", ip, n.cached)
					}
				}
				have[s] = true
			},
			"delete": func(rt *rapid.T) {
				for s := range have {
					rapid.SampledFrom(servers).Draw(rt, "server").Released(t.Context(), s)
					delete(have, s)
					return
				}
			},
			"": func(rt *rapid.T) {
				seen := map[string]bool{}
				for s := range have {
					for _, ip := range s.Spec.ClusterIPs {
						if seen[ip] {
							rt.Fatalf("%s has two Services", ip)
						}
						seen[ip] = true
						if o := m.addresses[ip]; o == nil || o.Labels[networkingv1.LabelIPAddressFamily] != string(familyOf(ip)) {
							rt.Fatalf("%s has the claim %+v", ip, o)
						}
					}
				}
				if len(seen) != len(m.addresses) {
					rt.Fatalf("%d addresses are claimed, and Services have %d", len(m.addresses), len(seen))
				}
			},
		})
	})
}
