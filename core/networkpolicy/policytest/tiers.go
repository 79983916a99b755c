// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
)

type (
	action = policyv1alpha2.ClusterNetworkPolicyRuleAction
	peer   = policyv1alpha2.ClusterNetworkPolicyEgressPeer
	port   = policyv1alpha2.ClusterNetworkPolicyProtocol
)

// tier is the action of the first rule that matches, in the order of priorities and then, where the API says that any
// order will do, of names. Without one it is Pass.
func (w World) tier(t policyv1alpha2.Tier, k Packet, p *networkpolicy.Pod, other netip.Addr, d networkingv1.PolicyType) action {
	list := slices.SortedFunc(maps.Values(w.Cluster), func(a, b *policyv1alpha2.ClusterNetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), cmp.Compare(a.Name, b.Name))
	})
	for _, np := range list {
		if np.Spec.Tier != t || !w.hasSubject(&np.Spec.Subject, p) {
			continue
		}
		if a, decided := w.firstRule(np, k, other, d); decided {
			return a
		}
	}
	return policyv1alpha2.ClusterNetworkPolicyRuleActionPass
}

func (w World) firstRule(np *policyv1alpha2.ClusterNetworkPolicy, k Packet, other netip.Addr, d networkingv1.PolicyType) (action, bool) {
	if d == networkingv1.PolicyTypeEgress {
		for _, r := range np.Spec.Egress {
			if a, decided := w.act(r.Action, r.To, r.Protocols, k, other); decided {
				return a, true
			}
		}
		return "", false
	}
	for _, r := range np.Spec.Ingress {
		var from []peer
		for _, p := range r.From {
			from = append(from, peer{Namespaces: p.Namespaces, Pods: p.Pods})
		}
		if a, decided := w.act(r.Action, from, r.Protocols, k, other); decided {
			return a, true
		}
	}
	return "", false
}

// act fails closed where a peer is none that is known: then Accept matches nothing, and all else denies all.
func (w World) act(a action, peers []peer, ports []port, k Packet, other netip.Addr) (action, bool) {
	unknown := slices.ContainsFunc(peers, func(p peer) bool {
		return p.Namespaces == nil && p.Pods == nil && p.Nodes == nil && p.Networks == nil
	})
	if unknown {
		return policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, a != policyv1alpha2.ClusterNetworkPolicyRuleActionAccept
	}
	return a, slices.ContainsFunc(peers, func(p peer) bool { return w.isPeer(p, other) }) &&
		(len(ports) == 0 || slices.ContainsFunc(ports, func(p port) bool { return w.isPort(p, k) }))
}

func (w World) hasSubject(s *policyv1alpha2.ClusterNetworkPolicySubject, p *networkpolicy.Pod) bool {
	if s.Pods != nil {
		return w.inNamespaces(&s.Pods.NamespaceSelector, p) && selects(&s.Pods.PodSelector, p.Labels)
	}
	return w.inNamespaces(s.Namespaces, p)
}

func (w World) inNamespaces(s *metav1.LabelSelector, p *networkpolicy.Pod) bool {
	l, known := w.Namespaces[p.Namespace]
	return known && selects(s, l)
}

func (w World) isPeer(one peer, other netip.Addr) bool {
	if one.Networks != nil {
		return slices.ContainsFunc(one.Networks, func(c policyv1alpha2.CIDR) bool { return netip.MustParsePrefix(string(c)).Contains(other) })
	}
	if one.Nodes != nil {
		for _, n := range w.Nodes {
			if slices.Contains(n.IPs, other) && selects(one.Nodes, n.Labels) {
				return true
			}
		}
		return false
	}
	for _, p := range w.Pods {
		if slices.Contains(p.IPs, other) &&
			w.hasSubject(&policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: one.Namespaces, Pods: one.Pods}, &p) {
			return true
		}
	}
	return false
}

func (w World) isPort(one port, k Packet) bool {
	in := func(p *policyv1alpha2.Port) bool {
		switch {
		case p == nil:
			return true
		case p.Range != nil:
			return p.Range.Start <= int32(k.Port) && int32(k.Port) <= p.Range.End
		}
		return p.Number == int32(k.Port)
	}
	switch {
	case one.TCP != nil:
		return k.Proto == "tcp" && in(one.TCP.DestinationPort)
	case one.UDP != nil:
		return k.Proto == "udp" && in(one.UDP.DestinationPort)
	case one.SCTP != nil:
		return k.Proto == "sctp" && in(one.SCTP.DestinationPort)
	}
	for _, p := range w.Pods {
		if slices.Contains(p.IPs, k.To) {
			i := slices.IndexFunc(p.Ports, func(c networkpolicy.Port) bool { return c.Name == one.DestinationNamedPort && c.Protocol == k.Proto })
			if i >= 0 && p.Ports[i].Number == k.Port {
				return true
			}
		}
	}
	return false
}
