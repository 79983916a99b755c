// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Tier is when a policy is asked. The first tier that decides has the last word.
type Tier int

// The tiers. NetworkPolicies decide on everything of the pods that they isolate, so that Baseline is for the others.
const (
	NetworkPolicies Tier = iota
	Admin                // before NetworkPolicies
	Baseline             // after them
)

func (t Tier) String() string { return [...]string{"NetworkPolicies", "Admin", "Baseline"}[t] }

// compileCluster never fails. What it cannot read is closed, as the API says: an Accept rule matches nothing, a Deny
// or Pass rule denies all.
func compileCluster(np *policyv1alpha2.ClusterNetworkPolicy) *compiled {
	c := &compiled{name: np.Name, priority: np.Spec.Priority, dynamic: map[string]dynamicSet{}, blocks: map[string][]addrRange{}}
	switch np.Spec.Tier {
	case policyv1alpha2.AdminTier:
		c.tier = Admin
	case policyv1alpha2.BaselineTier:
		c.tier = Baseline
	default:
		c.tier = Admin
		c.problem = fmt.Errorf("spec.tier is %q, expected Admin or Baseline; its Deny rules hold in the tier Admin, the others match nothing", np.Spec.Tier)
	}
	var err error
	if c.subject, err = subject(np.Spec.Subject); err != nil {
		c.subject = selector{namespaces: labels.Everything(), pods: labels.Everything()}
		c.problem = errors.Join(c.problem, fmt.Errorf("spec.subject: %w; its Deny rules hold for all pods until it is right, the others match nothing", err))
	}
	onlyDeny := c.problem != nil
	rules := [2][]Rule{}
	count := 0
	add := func(d Direction, i int, r clusterRule) {
		made, err := c.clusterRule(&count, r)
		if err != nil {
			c.problem = errors.Join(c.problem, fmt.Errorf("spec.%s[%d]%s: %w", d, i, called(r.name), err))
		}
		if made != nil && (!onlyDeny || r.action == policyv1alpha2.ClusterNetworkPolicyRuleActionDeny) {
			rules[d] = append(rules[d], *made)
		}
	}
	for i, r := range np.Spec.Ingress {
		peers := make([]policyv1alpha2.ClusterNetworkPolicyEgressPeer, 0, len(r.From))
		for _, p := range r.From {
			peers = append(peers, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
		}
		add(Ingress, i, clusterRule{r.Name, r.Action, peers, r.Protocols})
	}
	for i, r := range np.Spec.Egress {
		add(Egress, i, clusterRule{r.Name, r.Action, r.To, r.Protocols})
	}
	c.contain(rules)
	return c
}

func called(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", name)
}

func subject(s policyv1alpha2.ClusterNetworkPolicySubject) (selector, error) {
	switch {
	case s.Namespaces != nil:
		return namespacedPods(s.Namespaces, &metav1.LabelSelector{})
	case s.Pods != nil:
		return namespacedPods(&s.Pods.NamespaceSelector, &s.Pods.PodSelector)
	}
	return selector{}, errors.New("it has none of the fields that are known here: set namespaces or pods")
}

func namespacedPods(namespaces, pods *metav1.LabelSelector) (s selector, err error) {
	if s.namespaces, err = metav1.LabelSelectorAsSelector(namespaces); err != nil {
		return s, fmt.Errorf("the selector of namespaces: %w", err)
	}
	if s.pods, err = metav1.LabelSelectorAsSelector(pods); err != nil {
		return s, fmt.Errorf("the selector of pods: %w", err)
	}
	return s, nil
}

// clusterRule is a rule of either direction: peers of ingress are some of those that egress may have.
type clusterRule struct {
	name      string
	action    policyv1alpha2.ClusterNetworkPolicyRuleAction
	peers     []policyv1alpha2.ClusterNetworkPolicyEgressPeer
	protocols []policyv1alpha2.ClusterNetworkPolicyProtocol
}

// clusterRule is nil when nothing is left that it could match.
func (c *compiled) clusterRule(count *int, from clusterRule) (*Rule, error) {
	r := &Rule{AnyPort: len(from.protocols) == 0}
	var errs []error
	switch from.action {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		r.Action = Deny
	case policyv1alpha2.ClusterNetworkPolicyRuleActionPass:
		if c.tier == Admin { // no tier comes after Baseline
			r.Action = Pass
		}
	default:
		errs = append(errs, fmt.Errorf("the action is %q, expected Accept, Deny or Pass", from.action))
	}
	var selectors []selector
	var blocks []addrRange
	for i := range from.peers {
		s, b, err := clusterPeer(&from.peers[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("peer %d: %w", i, err))
			continue
		}
		selectors, blocks = append(selectors, s...), append(blocks, b...)
	}
	errs = append(errs, c.usePeers(count, r, selectors))
	c.useBlocks(r, union(blocks))
	ranges, named, err := clusterPorts(from.protocols)
	c.usePorts(r, ranges, named)
	if err := errors.Join(append(errs, err)...); err != nil {
		if from.action == policyv1alpha2.ClusterNetworkPolicyRuleActionAccept {
			return nil, fmt.Errorf("%w; the rule matches nothing", err)
		}
		return &Rule{AnyPeer: true, AnyPort: true, Action: Deny}, fmt.Errorf("%w; the rule denies all", err)
	}
	if r.matchesNothing() {
		return nil, nil
	}
	return r, nil
}

func clusterPeer(p *policyv1alpha2.ClusterNetworkPolicyEgressPeer) ([]selector, []addrRange, error) {
	switch {
	case p.Namespaces != nil:
		s, err := namespacedPods(p.Namespaces, &metav1.LabelSelector{})
		return []selector{s}, nil, err
	case p.Pods != nil:
		s, err := namespacedPods(&p.Pods.NamespaceSelector, &p.Pods.PodSelector)
		return []selector{s}, nil, err
	case p.Nodes != nil:
		s, err := metav1.LabelSelectorAsSelector(p.Nodes)
		if err != nil {
			return nil, nil, fmt.Errorf("nodes: %w", err)
		}
		return []selector{{namespace: nodesNamespace, pods: s}}, nil, nil
	case len(p.Networks) > 0:
		var blocks []addrRange
		for _, text := range p.Networks {
			prefix, err := netip.ParsePrefix(string(text))
			if err != nil {
				return nil, nil, fmt.Errorf("networks: %w", err)
			}
			blocks = append(blocks, rangeOf(prefix))
		}
		return nil, blocks, nil
	case len(p.DomainNames) > 0:
		return nil, nil, errors.New("domainNames are not supported: name networks, or pods that are a proxy")
	}
	return nil, nil, errors.New("it has none of the fields that are known here: namespaces, pods, nodes, networks")
}

func clusterPorts(list []policyv1alpha2.ClusterNetworkPolicyProtocol) (ranges []PortRange, named []namedPort, err error) {
	for i, p := range list {
		var proto corev1.Protocol
		var port *policyv1alpha2.Port
		switch {
		case p.TCP != nil:
			proto, port = corev1.ProtocolTCP, p.TCP.DestinationPort
		case p.UDP != nil:
			proto, port = corev1.ProtocolUDP, p.UDP.DestinationPort
		case p.SCTP != nil:
			proto, port = corev1.ProtocolSCTP, p.SCTP.DestinationPort
		case p.DestinationNamedPort != "":
			for _, proto := range []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP} {
				named = append(named, namedPort{Protocol(proto), p.DestinationNamedPort})
			}
			continue
		default:
			err = errors.Join(err, fmt.Errorf("protocol %d has none of the fields that are known here: tcp, udp, sctp, destinationNamedPort", i))
			continue
		}
		r := PortRange{Protocol(proto), 0, 65535}
		switch {
		case port == nil:
		case port.Range != nil:
			r.From, r.To = uint16(port.Range.Start), uint16(port.Range.End)
		case port.Number != 0:
			r.From, r.To = uint16(port.Number), uint16(port.Number)
		default:
			err = errors.Join(err, fmt.Errorf("protocol %d: destinationPort has neither number nor range", i))
			continue
		}
		ranges = append(ranges, r)
	}
	return ranges, named, err
}

// nodesNamespace is where the plan has nodes: no pod is there, and no selector of namespaces finds it.
const nodesNamespace = ""

// clusterPolicies are where the plan has policies of no namespace.
const clusterPolicies = ""

// AsksForNodes reports whether a policy has nodes as peers.
func AsksForNodes(np *policyv1alpha2.ClusterNetworkPolicy) bool {
	return slices.ContainsFunc(np.Spec.Egress, func(r policyv1alpha2.ClusterNetworkPolicyEgressRule) bool {
		return slices.ContainsFunc(r.To, func(p policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool { return p.Nodes != nil })
	})
}

// byPrecedence sorts policies of a tier. The API leaves open which of two of one priority comes first, and
// the order of NetworkPolicies does not matter; here it is always the same.
func byPrecedence(list []*compiled, d Direction) {
	slices.SortFunc(list, func(a, b *compiled) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.name, b.name), cmp.Compare(a.chains[d], b.chains[d]))
	})
}

// SetClusterPolicy takes a policy of the cluster as it is now.
func (p *Plan) SetClusterPolicy(np *policyv1alpha2.ClusterNetworkPolicy) {
	p.setPolicy(types.NamespacedName{Namespace: clusterPolicies, Name: np.Name}, compileCluster(np))
}

// RemoveClusterPolicy forgets a policy of the cluster.
func (p *Plan) RemoveClusterPolicy(name string) {
	p.RemovePolicy(types.NamespacedName{Namespace: clusterPolicies, Name: name})
}

// SetNode takes a node's labels and addresses as they are now.
func (p *Plan) SetNode(name string, l labels.Set, ips []netip.Addr) {
	p.SetPod(Pod{NamespacedName: types.NamespacedName{Namespace: nodesNamespace, Name: name}, Labels: l, IPs: ips})
}

// RemoveNode forgets a node.
func (p *Plan) RemoveNode(name string) {
	p.RemovePod(types.NamespacedName{Namespace: nodesNamespace, Name: name})
}
