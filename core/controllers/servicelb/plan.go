// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

// maxNodeAddresses bounds the status of a Service that has the nodes' own addresses.
const maxNodeAddresses = 64

// outcome is what a Service is to have.
type outcome struct {
	addresses []netip.Addr
	node      string // that answers for an address of a pool
	problem   *problem
}

// decide gives a Service what is its. What others have, and what it has itself, is in the
// ledger; everything else is in the arguments, so that deciding again leads to the same.
func (l *ledger) decide(s *corev1.Service, nodes []*corev1.Node, slicesOf []*discoveryv1.EndpointSlice) outcome {
	usable := candidates(s, nodes, slicesOf)
	if len(l.pools) == 0 {
		return l.shareNodes(s, nodes, usable)
	}
	theirs := map[netip.Addr]bool{}
	for _, n := range nodes {
		for _, a := range addressesOf(n) {
			theirs[a.address] = true
		}
	}
	addresses, problem := l.take(s, func(a netip.Addr) bool { return theirs[a] })
	if problem != nil {
		return outcome{problem: problem}
	}
	names := make([]string, 0, len(usable))
	for _, n := range usable {
		names = append(names, n.Name)
	}
	return outcome{addresses: addresses, node: loadbalancer.Elect(addresses[0], names, s.Annotations[loadbalancer.NodeAnnotation])}
}

// shareNodes gives a Service the addresses of the nodes that can serve it.
func (l *ledger) shareNodes(s *corev1.Service, all, usable []*corev1.Node) outcome {
	var own []int32
	for _, n := range all {
		own = append(own, n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	}
	if problem := l.takePorts(s, own); problem != nil {
		return outcome{problem: problem}
	}
	wanted, err := loadbalancer.Wanted(s)
	if err != nil {
		return outcome{problem: refuse("NoSuchAddress", "the address that is asked for: %v", err)}
	}
	var out []netip.Addr
	for _, v6 := range families(s) {
		asked := ofFamily(wanted, v6)
		for _, n := range usable {
			for _, a := range reachable(n, v6) {
				if (len(asked) == 0 || slices.Contains(asked, a)) && !slices.Contains(out, a) && len(out) < maxNodeAddresses {
					out = append(out, a)
				}
			}
		}
	}
	switch {
	case len(out) > 0:
		return outcome{addresses: out}
	case len(wanted) > 0:
		return outcome{problem: refuse("NoSuchAddress", "%s is asked for, and is the address of no node that can serve it", join(wanted))}
	case len(usable) > 0:
		return outcome{problem: refuse("NoNode", "no ready node has an address of the Service's IP families")}
	case s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		return outcome{problem: refuse("NoNode", "no ready node has an endpoint, and externalTrafficPolicy is Local")}
	}
	return outcome{problem: refuse("NoNode", "no node is ready")}
}

// candidates are the nodes to which traffic for a Service may come, by name: ready, not
// excluded, and with an endpoint where the traffic is to stay on the node.
func candidates(s *corev1.Service, nodes []*corev1.Node, list []*discoveryv1.EndpointSlice) []*corev1.Node {
	local := map[string]bool{}
	for _, slice := range list {
		for _, e := range slice.Endpoints {
			if e.NodeName != nil && ptr.Deref(e.Conditions.Ready, true) {
				local[*e.NodeName] = true
			}
		}
	}
	var out []*corev1.Node
	for _, n := range nodes {
		_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
		if excluded || n.DeletionTimestamp != nil || !controllers.NodeReady(n) {
			continue
		}
		if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && !local[n.Name] {
			continue
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return out
}

type nodeAddress struct {
	kind    corev1.NodeAddressType
	address netip.Addr
}

func addressesOf(n *corev1.Node) []nodeAddress {
	var out []nodeAddress
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) {
			out = append(out, nodeAddress{a.Type, ip.Unmap()})
		}
	}
	return out
}

// reachable is a node's external address of a family, or else its internal one.
func reachable(n *corev1.Node, v6 bool) []netip.Addr {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, a := range addressesOf(n) {
			if a.kind == kind && a.address.Is6() == v6 {
				return []netip.Addr{a.address}
			}
		}
	}
	return nil
}

func join(list []netip.Addr) string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
