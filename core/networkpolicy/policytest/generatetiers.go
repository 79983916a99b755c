// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
)

var (
	someNamespacedPod = rapid.Custom(func(t *rapid.T) *policyv1alpha2.NamespacedPod {
		return &policyv1alpha2.NamespacedPod{NamespaceSelector: *looseSelector.Draw(t, "namespaces"), PodSelector: *looseSelector.Draw(t, "pods")}
	})
	// looseSelector matches more often than not.
	looseSelector = rapid.Custom(func(t *rapid.T) *metav1.LabelSelector {
		if rapid.Bool().Draw(t, "everything") {
			return &metav1.LabelSelector{}
		}
		return someSelector.Draw(t, "selector")
	})
	someAction = rapid.SampledFrom([]action{
		policyv1alpha2.ClusterNetworkPolicyRuleActionAccept,
		policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
		policyv1alpha2.ClusterNetworkPolicyRuleActionPass,
	})
	someClusterPeer = rapid.Custom(func(t *rapid.T) peer {
		switch rapid.IntRange(0, 9).Draw(t, "peer kind") {
		case 0, 1, 2:
			return peer{Namespaces: looseSelector.Draw(t, "namespaces")}
		case 3, 4, 5:
			return peer{Pods: someNamespacedPod.Draw(t, "pods")}
		case 6:
			return peer{Nodes: looseSelector.Draw(t, "nodes")}
		case 7, 8:
			return peer{Networks: rapid.SliceOfN(rapid.SampledFrom([]policyv1alpha2.CIDR{
				"10.0.0.0/30", "0.0.0.0/0", "10.0.0.4/30", "fd00::/125", "::/0", "10.0.0.3/32", "10.0.1.0/24",
			}), 1, 2).Draw(t, "networks")}
		}
		return peer{DomainNames: []policyv1alpha2.DomainName{"example.org"}}
	})
	someDestination = rapid.Custom(func(t *rapid.T) *policyv1alpha2.Port {
		from := rapid.Int32Range(79, 82).Draw(t, "port")
		switch rapid.IntRange(0, 2).Draw(t, "port kind") {
		case 0:
			return nil
		case 1:
			return &policyv1alpha2.Port{Number: from}
		}
		return &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: from, End: rapid.Int32Range(from+1, 83).Draw(t, "end")}}
	})
	someClusterPort = rapid.Custom(func(t *rapid.T) port {
		switch rapid.IntRange(0, 3).Draw(t, "protocol") {
		case 0:
			return port{TCP: &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: someDestination.Draw(t, "destination")}}
		case 1:
			return port{UDP: &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: someDestination.Draw(t, "destination")}}
		case 2:
			return port{SCTP: &policyv1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: someDestination.Draw(t, "destination")}}
		}
		return port{DestinationNamedPort: rapid.SampledFrom([]string{"web", "dns"}).Draw(t, "port name")}
	})
	someClusterPolicy = rapid.Custom(func(t *rapid.T) *policyv1alpha2.ClusterNetworkPolicy {
		np := &policyv1alpha2.ClusterNetworkPolicy{}
		np.Name = rapid.SampledFrom([]string{"c1", "c2", "c3", "c4"}).Draw(t, "cluster policy")
		np.Spec.Tier = rapid.SampledFrom([]policyv1alpha2.Tier{policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier}).Draw(t, "tier")
		np.Spec.Priority = rapid.Int32Range(0, 2).Draw(t, "priority")
		if rapid.Bool().Draw(t, "by pods") {
			np.Spec.Subject.Pods = someNamespacedPod.Draw(t, "subject")
		} else {
			np.Spec.Subject.Namespaces = looseSelector.Draw(t, "subject")
		}
		for range rapid.IntRange(0, 3).Draw(t, "ingress rules") {
			r := policyv1alpha2.ClusterNetworkPolicyIngressRule{
				Action:    someAction.Draw(t, "action"),
				Protocols: rapid.SliceOfN(someClusterPort, 0, 2).Draw(t, "protocols"),
			}
			for _, p := range rapid.SliceOfN(someClusterPeer, 1, 2).Draw(t, "from") {
				if p.Namespaces != nil || p.Pods != nil {
					r.From = append(r.From, policyv1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
				}
			}
			if len(r.From) > 0 {
				np.Spec.Ingress = append(np.Spec.Ingress, r)
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "egress rules") {
			np.Spec.Egress = append(np.Spec.Egress, policyv1alpha2.ClusterNetworkPolicyEgressRule{
				Action: someAction.Draw(t, "action"), To: rapid.SliceOfN(someClusterPeer, 1, 2).Draw(t, "to"),
				Protocols: rapid.SliceOfN(someClusterPort, 0, 2).Draw(t, "protocols"),
			})
		}
		return np
	})
)

const (
	// ThisNode4 is the address of the node whose pods are Here.
	ThisNode4 = "10.0.1.1"
	// ThisNode6 is its IPv6 address.
	ThisNode6 = "fd00:1::1"
)

// someNode is the node whose pods are Here, or the one that has the last of the addresses.
func someNode(t *rapid.T, name string) Node {
	n := Node{Labels: someLabels.Draw(t, "labels"), IPs: []netip.Addr{netip.MustParseAddr(ThisNode4), netip.MustParseAddr(ThisNode6)}}
	if name == "other" {
		n.IPs = []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.0.0.", Ends)), netip.MustParseAddr(fmt.Sprint("fd00::", Ends))}
	}
	return n
}

// stepTiers changes a policy of the cluster or a node.
func (w World) stepTiers(t *rapid.T, p *networkpolicy.Plan) {
	switch rapid.IntRange(0, 5).Draw(t, "cluster step") {
	case 0, 1, 2:
		np := someClusterPolicy.Draw(t, "cluster policy")
		w.Cluster[np.Name] = np
		p.SetClusterPolicy(np)
	case 3:
		name := someClusterPolicy.Draw(t, "cluster policy").Name
		delete(w.Cluster, name)
		p.RemoveClusterPolicy(name)
	case 4:
		name := rapid.SampledFrom([]string{"this", "other"}).Draw(t, "node")
		w.Nodes[name] = someNode(t, name)
		p.SetNode(name, w.Nodes[name].Labels, w.Nodes[name].IPs)
	case 5:
		name := rapid.SampledFrom([]string{"this", "other"}).Draw(t, "node")
		delete(w.Nodes, name)
		p.RemoveNode(name)
	}
}
