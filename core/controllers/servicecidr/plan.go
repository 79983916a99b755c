// SPDX-License-Identifier: Apache-2.0

package servicecidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

const (
	// finalizer is upstream's.
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	// defaultName is the range that servers make of their configuration, which was judged
	// when it was read.
	defaultName = "kubernetes"
	// grace is upstream's: for so long after a deletion began servers may still give addresses.
	grace = 10 * time.Second
)

// Reasons of the condition Ready, besides upstream's Terminating.
const (
	reasonReady    = "NetworkReady"
	reasonOverlaps = "OverlapsCluster"
	reasonUnusable = "Unusable"
)

// reserved are addresses that Services must not have, and whose they are.
type reserved struct {
	loadbalancer.Range
	what string
}

func network(p netip.Prefix, whose string) reserved {
	return reserved{loadbalancer.RangeOf(p), fmt.Sprintf("%s (%s)", p, whose)}
}

func address(a netip.Addr, whose string) reserved {
	return reserved{loadbalancer.Range{First: a, Last: a}, fmt.Sprintf("%s (%s)", a, whose)}
}

// snapshot is what a plan is made of.
type snapshot struct {
	ranges    []*networkingv1.ServiceCIDR
	addresses []netip.Addr // that Services have
	reserved  []reserved
	now       time.Time
}

// step is what one range needs. Its zero value: nothing.
type step struct {
	of *networkingv1.ServiceCIDR
	// protect puts the finalizer on, release takes it off.
	protect, release bool
	// ready is the condition that it is to have, nil: the one that it has.
	ready *metav1.Condition
	// wait is when to look again; 0: on changes.
	wait time.Duration
}

// plan says what each range needs, in the order in which they leave: a range goes when
// every address in it is of a range that stays behind it.
func plan(s snapshot) []step {
	ordered := slices.SortedFunc(slices.Values(s.ranges), func(a, b *networkingv1.ServiceCIDR) int {
		return cmp.Or(deletedAt(a).Compare(deletedAt(b)), cmp.Compare(a.Name, b.Name))
	})
	left := slices.Clone(ordered)
	var steps []step
	for _, r := range ordered {
		if r.DeletionTimestamp == nil {
			steps = append(steps, step{of: r, protect: !slices.Contains(r.Finalizers, finalizer), ready: changed(r, judge(r, s.reserved))})
			continue
		}
		if !slices.Contains(r.Finalizers, finalizer) {
			continue // others hold it up
		}
		others := slices.DeleteFunc(slices.Clone(left), func(o *networkingv1.ServiceCIDR) bool { return o == r })
		if !spare(r, others, s.addresses) {
			steps = append(steps, step{of: r, ready: changed(r, metav1.Condition{
				Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
				Message: "Services have addresses that no other ServiceCIDR contains: delete these Services, or create a ServiceCIDR that contains the addresses",
			})})
			continue
		}
		// A range that has to wait for servers that may not know yet holds up no other one: it will go.
		left = others
		if wait := r.DeletionTimestamp.Add(grace).Sub(s.now); wait > 0 {
			steps = append(steps, step{of: r, wait: wait})
			continue
		}
		steps = append(steps, step{of: r, release: true})
	}
	return steps
}

func deletedAt(r *networkingv1.ServiceCIDR) time.Time {
	if r.DeletionTimestamp == nil {
		return time.Time{}
	}
	return r.DeletionTimestamp.Time
}

// spare tells whether a range can go: it is within others, or each address in it is of another.
func spare(r *networkingv1.ServiceCIDR, others []*networkingv1.ServiceCIDR, addresses []netip.Addr) bool {
	var rest []netip.Prefix
	for _, o := range others {
		rest = append(rest, prefixes(o)...)
	}
	in := func(a netip.Addr, list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	open := slices.DeleteFunc(prefixes(r), func(p netip.Prefix) bool {
		return slices.ContainsFunc(rest, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
	})
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return in(a, open) && !in(a, rest) })
}

// judge is the condition of a range that stays.
func judge(r *networkingv1.ServiceCIDR, reserved []reserved) metav1.Condition {
	ready := metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonReady, Message: "Services get addresses of this range"}
	if r.Name == defaultName {
		return ready
	}
	for _, p := range prefixes(r) {
		if bits := p.Addr().BitLen() - p.Bits(); bits < 2 || p.Addr().Is6() && bits > 64 {
			return metav1.Condition{
				Status: metav1.ConditionFalse, Reason: reasonUnusable,
				Message: fmt.Sprintf("%s: a range is from /1 to /30 for IPv4 and from /64 to /126 for IPv6", p),
			}
		}
		for _, o := range reserved {
			if o.Overlaps(p) {
				return metav1.Condition{
					Status: metav1.ConditionFalse, Reason: reasonOverlaps,
					Message: fmt.Sprintf("%s overlaps %s: Services with addresses there would take over what is meant for others; "+
						"delete this ServiceCIDR and create one of a network that nobody uses", p, o.what),
				}
			}
		}
	}
	return ready
}

// changed is the condition Ready, nil where the range has it.
func changed(r *networkingv1.ServiceCIDR, to metav1.Condition) *metav1.Condition {
	to.Type = networkingv1.ServiceCIDRConditionReady
	has := meta.FindStatusCondition(r.Status.Conditions, to.Type)
	if has != nil && has.Status == to.Status && has.Reason == to.Reason && has.Message == to.Message {
		return nil
	}
	// The default one is ready by who made it, in its own words.
	if has != nil && r.Name == defaultName && has.Status == metav1.ConditionTrue && to.Status == metav1.ConditionTrue {
		return nil
	}
	return &to
}

func prefixes(r *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, cidr := range r.Spec.CIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil { // the API takes no others
			out = append(out, p.Masked())
		}
	}
	return out
}

// always are networks that no machine routes to Services.
func always() []reserved {
	var out []reserved
	for text, what := range map[string]string{
		"0.0.0.0/8": "this network", "127.0.0.0/8": "loopback", "169.254.0.0/16": "link-local, where clouds have their metadata",
		"224.0.0.0/4": "multicast", "240.0.0.0/4": "reserved and broadcast",
		"::/128": "unspecified", "::1/128": "loopback", "::ffff:0:0/96": "IPv4 written as IPv6",
		"fe80::/10": "link-local", "ff00::/8": "multicast", "fd00:ec2::254/128": "a cloud's metadata",
	} {
		out = append(out, network(netip.MustParsePrefix(text), what))
	}
	slices.SortFunc(out, func(a, b reserved) int { return cmp.Compare(a.what, b.what) })
	return out
}
