// SPDX-License-Identifier: Apache-2.0

// Package networkpolicy decides which packets of one node's pods NetworkPolicies
// allow: pods, namespaces and policies go in, and out come sets, chains and verdicts as
// a packet filter has them, and what changes in them with each change of an object.
//
// It is pure. A change costs what it concerns: a pod that comes is compared with the
// selectors that are in use and with the policies of its namespace, a policy with the
// pods of this node in its namespace, a namespace's labels with its own pods. Only
// policies that select a pod of this node take part.
//
// Where something cannot be had as asked (a selector that does not parse, more peers
// than are allowed), it is closed rather than open, and Problems says so.
//
// core/networkpolicy/filter brings the result into the kernel.
package networkpolicy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is what of a pod counts: its place, labels, addresses, and the names of its ports.
type Pod struct {
	types.NamespacedName
	Labels labels.Set
	// IPs are none for pods that are not on the pod network.
	IPs   []netip.Addr
	Ports []Port
	// Here: the pod is of this node, so that policies which select it are enforced.
	Here bool
}

// Port is a container's port that has a name.
type Port struct {
	Protocol string // tcp, udp, sctp
	Name     string
	Number   uint16
}

func (p *Pod) equal(o *Pod) bool {
	return p.Here == o.Here && maps.Equal(p.Labels, o.Labels) && slices.Equal(p.IPs, o.IPs) && slices.Equal(p.Ports, o.Ports)
}

// port is the number of a named port: the first, as for Services.
func (p *Pod) port(n namedPort) (uint16, bool) {
	for _, port := range p.Ports {
		if port.Name == n.name && port.Protocol == n.protocol {
			return port.Number, true
		}
	}
	return 0, false
}

// pod is a Pod with what was made of it.
type pod struct {
	Pod
	selectedBy map[types.NamespacedName]*policy
	chains     [2]string // of a pod of this node; "" where nothing isolates it
}

type policy struct {
	*compiled
	pods map[types.NamespacedName]*pod // of this node, that it selects
}

// set is one that follows the pods.
type set struct {
	dynamicSet
	members map[types.NamespacedName][]Element
}

// Plan is the state of one node. It is not safe for concurrent use.
type Plan struct {
	namespaces map[string]labels.Set
	pods       map[string]map[types.NamespacedName]*pod    // by namespace
	policies   map[string]map[types.NamespacedName]*policy // by namespace
	sets       map[string]*set
	table      *table
	stale      map[*pod]bool                // whose chains have to be made anew
	at         map[netip.Addr]map[*pod]bool // this node's pods, by the addresses that they are said to have
	crowded    map[types.NamespacedName]bool
	problems   map[types.NamespacedName]error
}

// New is a node of which nothing is known.
func New() *Plan {
	return &Plan{
		map[string]labels.Set{},
		map[string]map[types.NamespacedName]*pod{},
		map[string]map[types.NamespacedName]*policy{},
		map[string]*set{},
		newTable(),
		map[*pod]bool{},
		map[netip.Addr]map[*pod]bool{},
		map[types.NamespacedName]bool{},
		map[types.NamespacedName]error{},
	}
}

// SelfSet is the set of pairs of an address and itself: a pod always reaches itself.
func SelfSet(ipv6 bool) string {
	if ipv6 {
		return "self6"
	}
	return "self4"
}

// SetNamespace takes a namespace's labels; nil for one that is gone.
func (p *Plan) SetNamespace(name string, l labels.Set) {
	old, known := p.namespaces[name]
	if known == (l != nil) && maps.Equal(old, l) {
		return
	}
	if l == nil {
		delete(p.namespaces, name)
	} else {
		p.namespaces[name] = l
	}
	for setName, s := range p.sets {
		if s.peers == nil {
			continue
		}
		for _, pod := range p.pods[name] {
			p.member(s, pod, p.wanted(setName, s, pod))
		}
	}
}

// SetPod takes a pod as it is now.
func (p *Plan) SetPod(now Pod) {
	old := p.pods[now.Namespace][now.NamespacedName]
	if old != nil && old.equal(&now) {
		return
	}
	if old != nil {
		p.unplug(old)
		p.place(old, false)
		old.Pod = now
	} else {
		old = &pod{Pod: now, selectedBy: map[types.NamespacedName]*policy{}}
		put(p.pods, now.NamespacedName, old)
	}
	p.place(old, true)
	for name, s := range p.sets {
		p.member(s, old, p.wanted(name, s, old))
	}
	for key, np := range p.policies[now.Namespace] {
		p.choose(key, np, old, old.Here && np.compiled.pods.Matches(old.Labels))
	}
	p.stale[old] = true
}

// RemovePod forgets a pod.
func (p *Plan) RemovePod(key types.NamespacedName) {
	pod := p.pods[key.Namespace][key]
	if pod == nil {
		return
	}
	p.unplug(pod)
	p.place(pod, false)
	for _, s := range p.sets {
		p.member(s, pod, nil)
	}
	for key, np := range pod.selectedBy {
		p.choose(key, np, pod, false)
	}
	delete(p.stale, pod)
	delete(p.crowded, key)
	take(p.pods, key)
}

// SetPolicy takes a policy as it is now.
func (p *Plan) SetPolicy(np *networkingv1.NetworkPolicy) {
	key := types.NamespacedName{Namespace: np.Namespace, Name: np.Name}
	now := &policy{compile(np), map[types.NamespacedName]*pod{}}
	old := p.policies[key.Namespace][key]
	put(p.policies, key, now)
	for _, pod := range p.pods[key.Namespace] {
		if pod.Here && now.compiled.pods.Matches(pod.Labels) {
			p.choose(key, now, pod, true)
		}
	}
	// The old one after that, so that sets which both use stay.
	if old != nil {
		p.retire(key, old)
	}
}

// RemovePolicy forgets a policy.
func (p *Plan) RemovePolicy(key types.NamespacedName) {
	if old := p.policies[key.Namespace][key]; old != nil {
		take(p.policies, key)
		p.retire(key, old)
	}
}

func (p *Plan) retire(key types.NamespacedName, old *policy) {
	for _, pod := range old.pods {
		p.choose(key, old, pod, false)
	}
}

// choose notes whether a policy selects a pod of this node. Its sets and chains are
// there while it selects one.
func (p *Plan) choose(key types.NamespacedName, np *policy, on *pod, selects bool) {
	_, did := np.pods[on.NamespacedName]
	switch {
	case selects && !did:
		np.pods[on.NamespacedName] = on
		on.selectedBy[key] = np
		if len(np.pods) == 1 {
			p.activate(np)
			if np.problem != nil {
				p.problems[key] = np.problem
			}
		}
	case !selects && did:
		delete(np.pods, on.NamespacedName)
		if on.selectedBy[key] == np { // and not by what has taken its place
			delete(on.selectedBy, key)
		}
		if len(np.pods) == 0 {
			p.deactivate(np)
			if now := p.policies[key.Namespace][key]; now == nil || now == np || now.problem == nil || len(now.pods) == 0 {
				delete(p.problems, key)
			}
		}
	default:
		return
	}
	p.stale[on] = true
}

func (p *Plan) activate(np *policy) {
	for name, d := range np.dynamic {
		kind := Addresses
		if d.peers == nil {
			kind = Ports
		}
		if !p.table.useSet(name, Set{kind, d.ipv6}) {
			continue
		}
		s := &set{d, map[types.NamespacedName][]Element{}}
		p.sets[name] = s
		for _, namespace := range p.candidates(s) {
			for _, pod := range p.pods[namespace] {
				p.member(s, pod, p.wanted(name, s, pod))
			}
		}
	}
	for name, list := range np.blocks {
		if p.table.useSet(name, Set{Ranges, list[0].from.Is6()}) {
			for _, r := range list {
				p.table.addElement(Element{name, r.String()})
			}
		}
	}
	for d, name := range np.chains {
		if name != "" {
			p.table.useChain(name, np.contents[d])
		}
	}
}

func (p *Plan) deactivate(np *policy) {
	for name := range np.dynamic {
		if !p.table.dropSet(name) {
			continue
		}
		for _, elements := range p.sets[name].members {
			for _, e := range elements {
				p.table.removeElement(e)
			}
		}
		delete(p.sets, name)
	}
	for name, list := range np.blocks {
		if p.table.dropSet(name) {
			for _, r := range list {
				p.table.removeElement(Element{name, r.String()})
			}
		}
	}
	for _, name := range np.chains {
		if name != "" {
			p.table.dropChain(name)
		}
	}
}

// candidates are the namespaces whose pods may be in a set.
func (p *Plan) candidates(s *set) []string {
	var names []string
	if s.peers != nil {
		for _, sel := range s.peers.selectors {
			if sel.namespaces != nil {
				return slices.Collect(maps.Keys(p.pods))
			}
			names = append(names, sel.namespace)
		}
		return names
	}
	return slices.Collect(maps.Keys(p.pods))
}

// wanted are the elements that a pod has in a set.
func (p *Plan) wanted(name string, s *set, on *pod) []Element {
	var out []Element
	if s.peers != nil {
		selected := func(sel selector) bool { return sel.matches(&on.Pod, p.namespaces[on.Namespace]) }
		if len(on.IPs) == 0 || !slices.ContainsFunc(s.peers.selectors, selected) {
			return nil
		}
		for _, ip := range on.IPs {
			if ip.Is6() == s.ipv6 {
				out = append(out, Element{name, ip.String()})
			}
		}
		return out
	}
	for _, n := range s.named {
		number, ok := on.port(n)
		for _, ip := range on.IPs {
			if ok && ip.Is6() == s.ipv6 {
				out = append(out, Element{name, ip.String() + " . " + n.protocol + " . " + strconv.Itoa(int(number))})
			}
		}
	}
	return out
}

// member puts a pod's elements in the place of those that it had.
func (p *Plan) member(s *set, on *pod, elements []Element) {
	old := s.members[on.NamespacedName]
	if slices.Equal(old, elements) {
		return
	}
	for _, e := range elements {
		p.table.addElement(e)
	}
	for _, e := range old {
		p.table.removeElement(e)
	}
	if len(elements) == 0 {
		delete(s.members, on.NamespacedName)
	} else {
		s.members[on.NamespacedName] = elements
	}
}

// unplug takes away what a pod's addresses lead to.
func (p *Plan) unplug(on *pod) {
	for d, name := range on.chains {
		if name == "" {
			continue
		}
		for _, ip := range on.IPs {
			p.release(on, Verdict{Direction(d), ip}, name)
			p.table.removeElement(selfElement(ip))
		}
		p.table.dropChain(name)
		on.chains[d] = ""
	}
}

// place takes note of where a pod of this node is said to be.
func (p *Plan) place(on *pod, there bool) {
	for _, ip := range on.IPs {
		switch {
		case !on.Here:
		case !there:
			if delete(p.at[ip], on); len(p.at[ip]) == 0 {
				delete(p.at, ip)
			}
		case p.at[ip] == nil:
			p.at[ip] = map[*pod]bool{on: true}
		default:
			p.at[ip][on] = true
		}
	}
}

// release takes away where an address leads, if it leads to this pod's chain. Another pod that is said to
// be there gets its own again: what is known of pods may be late, and pods share chains.
func (p *Plan) release(on *pod, v Verdict, chain string) {
	if p.table.verdicts.now[v] != chain {
		return
	}
	p.table.verdicts.remove(v)
	for other := range p.at[v.Address] {
		if other != on {
			p.stale[other] = true
		}
	}
}

func selfElement(ip netip.Addr) Element {
	return Element{SelfSet(ip.Is6()), ip.String() + " . " + ip.String()}
}

// plug makes a pod's chains, and has its addresses lead there.
func (p *Plan) plug(on *pod) {
	old := on.chains
	crowded := false
	for d := range on.chains {
		name, chain, more := on.chain(Direction(d))
		crowded = crowded || more
		on.chains[d] = name
		if name == "" {
			continue
		}
		p.table.useChain(name, chain)
		for _, ip := range on.IPs {
			p.table.verdicts.set(Verdict{Direction(d), ip}, name)
			p.table.addElement(selfElement(ip))
		}
	}
	for d, name := range old {
		if name == "" {
			continue
		}
		p.table.dropChain(name)
		for _, ip := range on.IPs {
			p.table.removeElement(selfElement(ip))
			if on.chains[d] == "" {
				p.release(on, Verdict{Direction(d), ip}, name)
			}
		}
	}
	if crowded {
		p.crowded[on.NamespacedName] = true
	} else {
		delete(p.crowded, on.NamespacedName)
	}
}

// chain of one direction: the policies that select the pod, then the end. Pods that
// the same policies select share it. more: there are too many of them.
func (on *pod) chain(d Direction) (name string, c Chain, more bool) {
	isolated := false
	var jumps []string
	for _, np := range on.selectedBy {
		if np.isolates[d] {
			isolated = true
			if np.chains[d] != "" {
				jumps = append(jumps, np.chains[d])
			}
		}
	}
	if !isolated || len(on.IPs) == 0 {
		return "", c, false
	}
	slices.Sort(jumps)
	jumps = slices.Compact(jumps)
	if more = len(jumps) > MaxPolicies; more {
		jumps = jumps[:MaxPolicies]
	}
	return d.String() + "-pod-" + digest(strings.Join(jumps, " ")), Chain{Direction: d, Jumps: jumps}, more
}

// Flush answers what has changed since the last time.
func (p *Plan) Flush() *Change {
	for len(p.stale) > 0 { // to plug one may make another stale
		for on := range p.stale {
			delete(p.stale, on)
			p.plug(on)
		}
	}
	return p.table.flush()
}

// Whole is all there is, as a change from nothing; a Flush before it has no more to say.
func (p *Plan) Whole() *Change {
	p.Flush()
	return p.table.whole()
}

// Holder is the pod of this node that has an address.
func (p *Plan) Holder(ip netip.Addr) (types.NamespacedName, bool) {
	for _, list := range p.pods {
		for key, pod := range list {
			if pod.Here && slices.Contains(pod.IPs, ip) {
				return key, true
			}
		}
	}
	return types.NamespacedName{}, false
}

// Isolated says in which directions policies isolate a pod of this node, as of the last Flush.
func (p *Plan) Isolated(key types.NamespacedName) (ingress, egress bool) {
	on := p.pods[key.Namespace][key]
	return on != nil && on.chains[Ingress] != "", on != nil && on.chains[Egress] != ""
}

// Problems of policies that select a pod of this node.
func (p *Plan) Problems() map[types.NamespacedName]error { return maps.Clone(p.problems) }

// Crowded are the pods that more policies select than MaxPolicies.
func (p *Plan) Crowded() []types.NamespacedName { return slices.Collect(maps.Keys(p.crowded)) }

func put[V any](m map[string]map[types.NamespacedName]V, key types.NamespacedName, v V) {
	if m[key.Namespace] == nil {
		m[key.Namespace] = map[types.NamespacedName]V{}
	}
	m[key.Namespace][key] = v
}

func take[V any](m map[string]map[types.NamespacedName]V, key types.NamespacedName) {
	if delete(m[key.Namespace], key); len(m[key.Namespace]) == 0 {
		delete(m, key.Namespace)
	}
}
