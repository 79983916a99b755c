// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

const (
	// MaxPeers is how many different selectors of peers one policy may have. Each costs
	// a comparison with every pod that changes, so that without a bound one tenant's
	// policy would hold up all others'. Blocks of addresses are not counted.
	MaxPeers = 1000
	// MaxPolicies is how many different policies of one tier and direction a pod is let in or out by.
	MaxPolicies = 1000
)

// peers are the pods that a rule names: those that any of the selectors selects.
type peers struct {
	key       string
	selectors []selector
}

type selector struct {
	// namespace of the pods, or, where namespaces is not nil, the labels of theirs.
	namespace  string
	namespaces labels.Selector
	pods       labels.Selector
}

func (s selector) matches(p *Pod, namespace labels.Set) bool {
	if s.namespaces == nil {
		return s.namespace == p.Namespace && s.pods.Matches(p.Labels)
	}
	// A namespace that is not known yet has no labels, and might have any.
	return namespace != nil && s.namespaces.Matches(namespace) && s.pods.Matches(p.Labels)
}

// namedPort is a port as containers call it.
type namedPort struct{ protocol, name string }

// sets of one family each that a rule refers to.
type dynamicSet struct {
	peers *peers      // of pods' addresses, or
	named []namedPort // of their ports
	ipv6  bool
}

// compiled is a policy as chains, one for each direction that it isolates or decides on.
type compiled struct {
	namespace string // of a NetworkPolicy
	subject   selector
	tier      Tier
	priority  int32 // of a policy of the cluster, whose name is
	name      string
	isolates  [2]bool
	chains    [2]string // "" where nothing is allowed
	contents  [2]Chain
	dynamic   map[string]dynamicSet
	blocks    map[string][]addrRange
	problem   error
}

// compile never fails: what it cannot read allows nothing, and is told of.
func compile(np *networkingv1.NetworkPolicy) *compiled {
	c := &compiled{namespace: np.Namespace, dynamic: map[string]dynamicSet{}, blocks: map[string][]addrRange{}}
	var err error
	c.subject.namespace = np.Namespace
	if c.subject.pods, err = metav1.LabelSelectorAsSelector(&np.Spec.PodSelector); err != nil {
		c.subject.pods = labels.Everything() // closed rather than open
		c.problem = fmt.Errorf("spec.podSelector: %w; all pods of the namespace are isolated until it is right", err)
	}
	c.isolates = directions(np)
	rules := [2][]Rule{}
	count := 0
	add := func(d Direction, i int, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
		r, err := c.rule(&count, peers, ports)
		if err != nil {
			c.problem = errors.Join(c.problem, fmt.Errorf("spec.%s[%d]: %w", d, i, err))
		}
		if r != nil {
			rules[d] = append(rules[d], *r)
		}
	}
	if c.isolates[Ingress] {
		for i, r := range np.Spec.Ingress {
			add(Ingress, i, r.From, r.Ports)
		}
	}
	if c.isolates[Egress] {
		for i, r := range np.Spec.Egress {
			add(Egress, i, r.To, r.Ports)
		}
	}
	c.contain(rules)
	return c
}

// contain takes the rules, by direction.
func (c *compiled) contain(rules [2][]Rule) {
	for d, list := range rules {
		if len(list) > 0 {
			c.contents[d] = Chain{Direction: Direction(d), Rules: list}
			c.chains[d] = fmt.Sprintf("%s-rules-%s", Direction(d), digest(fmt.Sprintf("%+v", list)))
		}
	}
}

// directions that a policy isolates; the API server fills policyTypes in, and this is
// what it would.
func directions(np *networkingv1.NetworkPolicy) [2]bool {
	if len(np.Spec.PolicyTypes) == 0 {
		return [2]bool{true, len(np.Spec.Egress) > 0}
	}
	return [2]bool{
		slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyTypeIngress),
		slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress),
	}
}

// AsksForNamespaces reports whether a policy selects a pod with these labels, and has peers that labels of
// namespaces decide on, other than their names, which never change.
func AsksForNamespaces(np *networkingv1.NetworkPolicy, pod labels.Set) bool {
	if selector, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector); err == nil && !selector.Matches(pod) {
		return false
	}
	asks := func(p networkingv1.NetworkPolicyPeer) bool {
		s := p.NamespaceSelector
		if s == nil {
			return false
		}
		for key := range s.MatchLabels {
			if key != corev1.LabelMetadataName {
				return true
			}
		}
		return slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key != corev1.LabelMetadataName })
	}
	return slices.ContainsFunc(np.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
		return slices.ContainsFunc(r.From,
			asks)
	}) ||
		slices.ContainsFunc(np.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool { return slices.ContainsFunc(r.To, asks) })
}

// rule is nil when nothing is left that it could allow.
func (c *compiled) rule(count *int, from []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) (*Rule, error) {
	r := &Rule{AnyPeer: len(from) == 0, AnyPort: len(ports) == 0}
	var errs []error
	var selectors []selector
	var blocks []addrRange
	for i := range from {
		if b := from[i].IPBlock; b != nil {
			list, err := block(b)
			blocks = append(blocks, list...)
			errs = append(errs, err)
			continue
		}
		s, err := c.selector(&from[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("peer %d: %w", i, err))
			continue
		}
		selectors = append(selectors, s)
	}
	if err := c.usePeers(count, r, selectors); err != nil {
		return nil, fmt.Errorf("%w; what this rule allows is not in force", err)
	}
	c.useBlocks(r, union(blocks))
	errs = append(errs, c.ports(r, ports))
	if r.matchesNothing() {
		return nil, errors.Join(errs...)
	}
	return r, errors.Join(errs...)
}

func (r *Rule) matchesNothing() bool {
	nobody := !r.AnyPeer && r.Pods == [2]string{} && r.Blocks == [2]string{}
	return nobody || !r.AnyPort && len(r.Ports) == 0 && r.Named == [2]string{}
}

// usePeers has a rule refer to what selectors select; count is how many of them the policy has had before.
func (c *compiled) usePeers(count *int, r *Rule, selectors []selector) error {
	p := newPeers(selectors)
	if p == nil {
		return nil
	}
	*count += len(p.selectors)
	if *count > MaxPeers {
		return fmt.Errorf("the policy has more than %d different peers: use fewer by common labels, or several policies", MaxPeers)
	}
	r.Pods = c.use(func(ipv6 bool) dynamicSet { return dynamicSet{peers: p, ipv6: ipv6} }, "peers", p.key)
	return nil
}

// use names a set for each family.
func (c *compiled) use(set func(ipv6 bool) dynamicSet, kind, key string) [2]string {
	var names [2]string
	for f, version := range []string{"4", "6"} {
		names[f] = kind + version + "-" + digest(key)
		c.dynamic[names[f]] = set(f == 1)
	}
	return names
}

func (c *compiled) useBlocks(r *Rule, blocks []addrRange) {
	families := [2][]addrRange{}
	for _, b := range blocks {
		f := 0
		if b.from.Is6() {
			f = 1
		}
		families[f] = append(families[f], b)
	}
	for f, list := range families {
		if len(list) > 0 {
			r.Blocks[f] = "blocks" + [...]string{"4", "6"}[f] + "-" + digest(fmt.Sprint(list))
			c.blocks[r.Blocks[f]] = list
		}
	}
}

// block is what is left of a block without its exceptions.
func block(b *networkingv1.IPBlock) ([]addrRange, error) {
	all, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil, fmt.Errorf("ipBlock: %w; it allows nothing", err)
	}
	var holes []addrRange
	for _, text := range b.Except {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("ipBlock.except: %w; the block allows nothing", err)
		}
		holes = append(holes, rangeOf(p))
	}
	return rangeOf(all).without(holes), nil
}

func (c *compiled) selector(p *networkingv1.NetworkPolicyPeer) (selector, error) {
	s := selector{namespace: c.namespace, pods: labels.Everything()}
	var err error
	if p.NamespaceSelector != nil {
		s.namespace = ""
		if s.namespaces, err = metav1.LabelSelectorAsSelector(p.NamespaceSelector); err != nil {
			return s, fmt.Errorf("namespaceSelector: %w", err)
		}
	}
	if p.PodSelector != nil {
		if s.pods, err = metav1.LabelSelectorAsSelector(p.PodSelector); err != nil {
			return s, fmt.Errorf("podSelector: %w", err)
		}
	}
	return s, nil
}

// newPeers is nil where there are no selectors.
func newPeers(list []selector) *peers {
	if len(list) == 0 {
		return nil
	}
	byKey := map[string]selector{}
	keys := make([]string, 0, len(list))
	for _, s := range list {
		key := "in " + s.namespace
		if s.namespaces != nil {
			key = "labelled " + s.namespaces.String()
		}
		key += " / " + s.pods.String()
		if _, seen := byKey[key]; !seen {
			keys = append(keys, key)
		}
		byKey[key] = s
	}
	slices.Sort(keys)
	p := &peers{key: strings.Join(keys, "\n")}
	for _, k := range keys {
		p.selectors = append(p.selectors, byKey[k])
	}
	return p
}

func (c *compiled) ports(r *Rule, list []networkingv1.NetworkPolicyPort) error {
	var errs []error
	var ranges []PortRange
	var named []namedPort
	for i, p := range list {
		proto := Protocol(ptr.Deref(p.Protocol, corev1.ProtocolTCP))
		switch {
		case proto == "":
			errs = append(errs, fmt.Errorf("port %d: the protocol is %q, expected TCP, UDP or SCTP; it allows nothing", i, *p.Protocol))
		case p.Port == nil:
			ranges = append(ranges, PortRange{proto, 0, 65535})
		case p.Port.StrVal != "":
			named = append(named, namedPort{proto, p.Port.StrVal})
		default:
			from := uint16(p.Port.IntVal)
			ranges = append(ranges, PortRange{proto, from, uint16(max(p.Port.IntVal, ptr.Deref(p.EndPort, 0)))})
		}
	}
	c.usePorts(r, ranges, named)
	return errors.Join(errs...)
}

func (c *compiled) usePorts(r *Rule, ranges []PortRange, named []namedPort) {
	r.Ports = unionPorts(ranges)
	if len(named) == 0 {
		return
	}
	slices.SortFunc(named, func(a, b namedPort) int { return strings.Compare(a.protocol+a.name, b.protocol+b.name) })
	named = slices.Compact(named)
	r.Named = c.use(func(ipv6 bool) dynamicSet { return dynamicSet{named: named, ipv6: ipv6} }, "ports", fmt.Sprint(named))
}

// Protocol is a protocol as the packet filter calls it, "" for one that has no ports there.
func Protocol(p corev1.Protocol) string {
	switch p {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return strings.ToLower(string(p))
	}
	return ""
}

// digest keeps names short, and the same every time.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:10])
}
