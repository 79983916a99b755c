// SPDX-License-Identifier: Apache-2.0

// Package policytest says what becomes of packets by reading NetworkPolicies and
// ClusterNetworkPolicies as a user does, packet by packet, and makes up clusters to try it on: what plans and enforces
// policies is compared with it.
package policytest

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
)

// World is all objects of a cluster, as a user sees them.
type World struct {
	Namespaces map[string]labels.Set
	Pods       map[types.NamespacedName]networkpolicy.Pod
	Policies   map[types.NamespacedName]*networkingv1.NetworkPolicy
	Cluster    map[string]*policyv1alpha2.ClusterNetworkPolicy
	Nodes      map[string]Node
}

// Node is what of a node policies can see.
type Node struct {
	Labels labels.Set
	IPs    []netip.Addr
}

// NewWorld is a cluster with nothing in it.
func NewWorld() World {
	return World{
		map[string]labels.Set{},
		map[types.NamespacedName]networkpolicy.Pod{},
		map[types.NamespacedName]*networkingv1.NetworkPolicy{},
		map[string]*policyv1alpha2.ClusterNetworkPolicy{},
		map[string]Node{},
	}
}

// Packet is the first of a connection.
type Packet struct {
	From, To netip.Addr
	Proto    string
	Port     uint16
}

// Allowed is what the API's documentation says, read line by line, for a packet that
// this node forwards, or that is for the node itself.
func (w World) Allowed(k Packet) bool {
	if k.From == k.To {
		return true
	}
	return w.direction(k, k.To, k.From, networkingv1.PolicyTypeIngress) && w.direction(k, k.From, k.To, networkingv1.PolicyTypeEgress)
}

// direction: subject is the end whose policies are asked.
func (w World) direction(k Packet, subject, peer netip.Addr, d networkingv1.PolicyType) bool {
	for _, p := range w.Pods {
		if p.Here && slices.Contains(p.IPs, subject) && !w.podAllows(k, &p, peer, d) {
			return false
		}
	}
	return true
}

// podAllows asks the tiers in their order.
func (w World) podAllows(k Packet, p *networkpolicy.Pod, peer netip.Addr, d networkingv1.PolicyType) bool {
	switch w.tier(policyv1alpha2.AdminTier, k, p, peer, d) {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		return true
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		return false
	case policyv1alpha2.ClusterNetworkPolicyRuleActionPass: // to the NetworkPolicies
	}
	isolated, allowed := false, k.ToThisNode()
	for _, np := range w.Policies {
		if np.Namespace != p.Namespace || !selects(&np.Spec.PodSelector, p.Labels) || !slices.Contains(np.Spec.PolicyTypes, d) {
			continue
		}
		isolated = true
		allowed = allowed || w.policyAllows(np, k, peer, d)
	}
	if isolated {
		return allowed
	}
	return w.tier(policyv1alpha2.BaselineTier, k, p, peer, d) != policyv1alpha2.ClusterNetworkPolicyRuleActionDeny
}

func (w World) policyAllows(np *networkingv1.NetworkPolicy, k Packet, peer netip.Addr, d networkingv1.PolicyType) bool {
	if d == networkingv1.PolicyTypeIngress {
		return slices.ContainsFunc(np.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
			return w.peerMatches(np.Namespace, r.From, peer) && w.portMatches(r.Ports, k)
		})
	}
	return slices.ContainsFunc(np.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
		return w.peerMatches(np.Namespace, r.To, peer) && w.portMatches(r.Ports, k)
	})
}

func (w World) peerMatches(own string, list []networkingv1.NetworkPolicyPeer, peer netip.Addr) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(one networkingv1.NetworkPolicyPeer) bool {
		if b := one.IPBlock; b != nil {
			holed := slices.ContainsFunc(b.Except, func(e string) bool { return netip.MustParsePrefix(e).Contains(peer) })
			return netip.MustParsePrefix(b.CIDR).Contains(peer) && !holed
		}
		for key, p := range w.Pods {
			if !slices.Contains(p.IPs, peer) {
				continue
			}
			namespace := key.Namespace == own
			if one.NamespaceSelector != nil {
				l, known := w.Namespaces[key.Namespace]
				namespace = known && selects(one.NamespaceSelector, l)
			}
			if namespace && (one.PodSelector == nil || selects(one.PodSelector, p.Labels)) {
				return true
			}
		}
		return false
	})
}

func (w World) portMatches(list []networkingv1.NetworkPolicyPort, k Packet) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(one networkingv1.NetworkPolicyPort) bool {
		if strings.ToLower(string(ptr.Deref(one.Protocol, corev1.ProtocolTCP))) != k.Proto {
			return false
		}
		switch {
		case one.Port == nil:
			return true
		case one.Port.StrVal == "":
			return int32(k.Port) >= one.Port.IntVal && int32(k.Port) <= ptr.Deref(one.EndPort, one.Port.IntVal)
		}
		for _, p := range w.Pods {
			if slices.Contains(p.IPs, k.To) {
				i := slices.IndexFunc(p.Ports, func(c networkpolicy.Port) bool { return c.Name == one.Port.StrVal && c.Protocol == k.Proto })
				if i >= 0 && p.Ports[i].Number == k.Port {
					return true
				}
			}
		}
		return false
	})
}

func selects(s *metav1.LabelSelector, l labels.Set) bool {
	sel, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && sel.Matches(l)
}

// ToThisNode reports whether the packet is for the node whose pods are Here.
func (k Packet) ToThisNode() bool { return k.To.String() == ThisNode4 || k.To.String() == ThisNode6 }
