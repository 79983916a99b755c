// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
)

var (
	namespaces = []string{"x", "y", "z"}
	someLabels = rapid.Custom(func(t *rapid.T) labels.Set {
		l := labels.Set{}
		for _, k := range []string{"app", "tier"} {
			if v := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, k); v != "" {
				l[k] = v
			}
		}
		return l
	})
	someSelector = rapid.Custom(func(t *rapid.T) *metav1.LabelSelector {
		s := &metav1.LabelSelector{MatchLabels: someLabels.Draw(t, "matchLabels")}
		if rapid.IntRange(0, 3).Draw(t, "expression") == 0 {
			op := rapid.SampledFrom([]metav1.LabelSelectorOperator{metav1.LabelSelectorOpExists, metav1.LabelSelectorOpNotIn}).Draw(t, "operator")
			e := metav1.LabelSelectorRequirement{Key: "tier", Operator: op}
			if op == metav1.LabelSelectorOpNotIn {
				e.Values = []string{"a"}
			}
			s.MatchExpressions = append(s.MatchExpressions, e)
		}
		return s
	})
	someProtocol = rapid.SampledFrom([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP})
	somePort     = rapid.Custom(func(t *rapid.T) networkingv1.NetworkPolicyPort {
		p := networkingv1.NetworkPolicyPort{}
		if rapid.Bool().Draw(t, "protocol given") {
			p.Protocol = ptr.To(someProtocol.Draw(t, "protocol"))
		}
		switch rapid.IntRange(0, 3).Draw(t, "port kind") {
		case 0:
		case 1:
			p.Port = ptr.To(intstr.FromString(rapid.SampledFrom([]string{"web", "dns"}).Draw(t, "port name")))
		case 2:
			p.Port = ptr.To(intstr.FromInt32(rapid.Int32Range(79, 83).Draw(t, "port")))
		case 3:
			from := rapid.Int32Range(79, 83).Draw(t, "port")
			p.Port, p.EndPort = ptr.To(intstr.FromInt32(from)), ptr.To(rapid.Int32Range(from, 83).Draw(t, "endPort"))
		}
		return p
	})
	someBlock = rapid.Custom(func(t *rapid.T) *networkingv1.IPBlock {
		blocks := map[string][]string{
			"10.0.0.0/29": {"10.0.0.0/31", "10.0.0.4/32", "10.0.0.6/31"}, "0.0.0.0/0": {"10.0.0.0/30", "10.0.0.2/32", "0.0.0.0/1", "128.0.0.0/1"},
			"10.0.0.4/30": {"10.0.0.6/31"}, "fd00::/125": {"fd00::4/126", "fd00::1/128"}, "::/0": {"fd00::/126"}, "10.0.0.3/32": {},
		}
		cidr := rapid.SampledFrom(slices.Sorted(maps.Keys(blocks))).Draw(t, "cidr")
		b := &networkingv1.IPBlock{CIDR: cidr}
		for _, e := range blocks[cidr] {
			if rapid.Bool().Draw(t, "except") {
				b.Except = append(b.Except, e)
			}
		}
		return b
	})
	somePeer = rapid.Custom(func(t *rapid.T) networkingv1.NetworkPolicyPeer {
		switch rapid.IntRange(0, 3).Draw(t, "peer kind") {
		case 0:
			return networkingv1.NetworkPolicyPeer{IPBlock: someBlock.Draw(t, "block")}
		case 1:
			return networkingv1.NetworkPolicyPeer{PodSelector: someSelector.Draw(t, "pods")}
		case 2:
			return networkingv1.NetworkPolicyPeer{NamespaceSelector: someSelector.Draw(t, "namespaces")}
		}
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: someSelector.Draw(t, "namespaces"), PodSelector: someSelector.Draw(t, "pods")}
	})
	somePolicy = rapid.Custom(func(t *rapid.T) *networkingv1.NetworkPolicy {
		np := &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{PodSelector: *someSelector.Draw(t, "selects")}}
		np.Name, np.Namespace = rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "policy"), rapid.SampledFrom(namespaces).Draw(t,
			"namespace")
		np.Spec.PolicyTypes = rapid.SampledFrom([][]networkingv1.PolicyType{
			{networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress}, {networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		}).Draw(t, "types")
		for range rapid.IntRange(0, 2).Draw(t, "ingress rules") {
			np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
				From: rapid.SliceOfN(somePeer, 0, 3).Draw(t, "from"), Ports: rapid.SliceOfN(somePort, 0, 3).Draw(t, "ports"),
			})
		}
		for range rapid.IntRange(0, 2).Draw(t, "egress rules") {
			np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
				To: rapid.SliceOfN(somePeer, 0, 3).Draw(t, "to"), Ports: rapid.SliceOfN(somePort, 0, 3).Draw(t, "ports"),
			})
		}
		return np
	})
)

// somePod has addresses that belong to its name, none, or one of them.
func somePod(t *rapid.T) networkpolicy.Pod { return podOf(t, rapid.IntRange(1, Pods).Draw(t, "pod")) }

// Begin gives the world namespaces, and all pods with all their addresses.
func (w World) Begin(t *rapid.T, p *networkpolicy.Plan) {
	for _, n := range namespaces {
		w.Namespaces[n] = someLabels.Draw(t, "labels")
		p.SetNamespace(n, w.Namespaces[n])
	}
	for n := 1; n <= Pods; n++ {
		pod := podOf(t, n)
		pod.IPs = []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.0.0.", n)), netip.MustParseAddr(fmt.Sprint("fd00::", n))}
		w.Pods[pod.NamespacedName] = pod
		p.SetPod(pod)
	}
}

func podOf(t *rapid.T, n int) networkpolicy.Pod {
	p := networkpolicy.Pod{
		NamespacedName: types.NamespacedName{Namespace: namespaces[n%len(namespaces)], Name: fmt.Sprint("pod", n)},
		Labels:         someLabels.Draw(t, "labels"), Here: n <= PodsHere,
	}
	v4, v6 := netip.MustParseAddr(fmt.Sprint("10.0.0.", n)), netip.MustParseAddr(fmt.Sprint("fd00::", n))
	p.IPs = rapid.SampledFrom([][]netip.Addr{{v4, v6}, {v4}, {v6}, nil}).Draw(t, "addresses")
	for _, name := range []string{"web", "web", "dns"} {
		if rapid.Bool().Draw(t, "has "+name) {
			p.Ports = append(p.Ports, networkpolicy.Port{
				Protocol: strings.ToLower(string(someProtocol.Draw(t, "protocol"))), Name: name,
				Number: uint16(rapid.IntRange(79, 81).Draw(t, "number")),
			})
		}
	}
	return p
}

// Step changes one object in the world and in the plan.
func (w World) Step(t *rapid.T, p *networkpolicy.Plan) {
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0, 1:
		np := somePolicy.Draw(t, "policy")
		w.Policies[types.NamespacedName{Namespace: np.Namespace, Name: np.Name}] = np
		p.SetPolicy(np)
	case 2, 3:
		pod := somePod(t)
		w.Pods[pod.NamespacedName] = pod
		p.SetPod(pod)
	case 4:
		n, l := rapid.SampledFrom(namespaces).Draw(t, "namespace"), someLabels.Draw(t, "labels")
		w.Namespaces[n] = l
		p.SetNamespace(n, l)
	case 5:
		key := somePod(t).NamespacedName
		delete(w.Pods, key)
		p.RemovePod(key)
	case 6:
		np := somePolicy.Draw(t, "policy")
		key := types.NamespacedName{Namespace: np.Namespace, Name: np.Name}
		delete(w.Policies, key)
		p.RemovePolicy(key)
	default:
		w.stepTiers(t, p)
	}
}

const (
	// PodsHere is how many pods the node has: they are at 10.0.0.N and fd00::N from 1 on.
	PodsHere = 4
	// Pods is how many there are in all: the others are of other nodes.
	Pods = 6
	// Ends is the last N of an address that packets go to or come from.
	Ends = 7
)

// Packets between all addresses that could matter.
func Packets() []Packet {
	var list []Packet
	for _, f := range []string{"10.0.0.", "fd00::"} {
		for from := 1; from <= Ends; from++ {
			for to := 1; to <= Ends; to++ {
				for _, proto := range []string{"tcp", "udp", "sctp"} {
					for _, port := range []uint16{79, 80, 81, 83} {
						list = append(list, Between(fmt.Sprint(f, from), fmt.Sprint(f, to), proto, port))
					}
				}
			}
		}
	}
	for n := 1; n <= PodsHere; n++ {
		for _, port := range []uint16{79, 80, 81, 83} {
			list = append(list, Between(fmt.Sprint("10.0.0.", n), ThisNode4, "udp", port), Between(fmt.Sprint("fd00::", n), ThisNode6, "udp", port))
		}
	}
	return list
}

// Between is a packet from one address to another.
func Between(from, to, proto string, port uint16) Packet {
	return Packet{From: netip.MustParseAddr(from), To: netip.MustParseAddr(to), Proto: proto, Port: port}
}
