// SPDX-License-Identifier: Apache-2.0

// Package networkpolicy decides which packets of one node's pods NetworkPolicies and
// ClusterNetworkPolicies allow: pods, namespaces, nodes and policies go in, and out come
// sets, chains and verdicts as a packet filter has them, and what changes in them with
// each change of an object.
//
// It is pure. A change costs what it concerns: a pod that comes is compared with the
// selectors that are in use and with the policies of its namespace and of the cluster, a
// policy with the pods of this node that it may select, a namespace's labels with its own
// pods. Only policies that select a pod of this node take part.
//
// Where something cannot be had as asked (a selector that does not parse, more peers
// than are allowed), it is closed rather than open, and Problems says so.
//
// core/networkpolicy/filter brings the result into the kernel.
package networkpolicy

import (
	"fmt"
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
	routes     []route // of a pod of this node; none where no policy selects it
}

// route is where packets of a pod are sent.
type route struct {
	direction Direction
	stage     Stage
	chain     string
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
	here       map[types.NamespacedName]*pod // of this node
	stale      map[*pod]bool                 // whose chains have to be made anew
	at         map[netip.Addr]map[*pod]bool  // this node's pods, by the addresses that they are said to have
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
		map[types.NamespacedName]*pod{},
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
	for key, np := range p.policies[clusterPolicies] {
		for _, pod := range p.pods[name] {
			p.choose(key, np, pod, p.selects(np, pod))
		}
	}
}

// selects says of a policy whether a pod is a subject of it.
func (p *Plan) selects(np *policy, on *pod) bool {
	return on.Here && np.subject.matches(&on.Pod, p.namespaces[on.Namespace])
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
	for _, from := range []string{now.Namespace, clusterPolicies} {
		for key, np := range p.policies[from] {
			p.choose(key, np, old, p.selects(np, old))
		}
	}
	p.listHere(old)
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
	delete(p.here, key)
	take(p.pods, key)
}

// listHere keeps the list of this node's pods.
func (p *Plan) listHere(on *pod) {
	if on.Here {
		p.here[on.NamespacedName] = on
	} else {
		delete(p.here, on.NamespacedName)
	}
}

// SetPolicy takes a policy as it is now.
func (p *Plan) SetPolicy(np *networkingv1.NetworkPolicy) {
	p.setPolicy(types.NamespacedName{Namespace: np.Namespace, Name: np.Name}, compile(np))
}

func (p *Plan) setPolicy(key types.NamespacedName, c *compiled) {
	now := &policy{c, map[types.NamespacedName]*pod{}}
	old := p.policies[key.Namespace][key]
	put(p.policies, key, now)
	for _, pod := range p.here {
		if p.selects(now, pod) {
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
	old := on.routes
	on.routes = nil
	p.retreat(on, old)
}

// retreat gives up routes that a pod had. Where it has another in the place of one, its addresses lead there by now.
func (p *Plan) retreat(on *pod, old []route) {
	for _, r := range old {
		replaced := slices.ContainsFunc(on.routes, func(now route) bool { return now.direction == r.direction && now.stage == r.stage })
		for _, ip := range on.IPs {
			if !replaced {
				p.release(on, Verdict{r.direction, r.stage, ip}, r.chain)
			}
			p.table.removeElement(selfElement(ip))
		}
		p.table.dropChain(r.chain)
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
	old := on.routes
	on.routes = nil
	crowded := false
	for _, d := range []Direction{Ingress, Egress} {
		w := on.way(d)
		crowded = crowded || w.crowded
		for stage, name := range w.stages {
			if name == "" {
				continue
			}
			on.routes = append(on.routes, route{d, Stage(stage), name})
			p.table.useChain(name, w.chains[name])
			for _, ip := range on.IPs {
				p.table.verdicts.set(Verdict{d, Stage(stage), ip}, name)
				p.table.addElement(selfElement(ip))
			}
		}
	}
	p.retreat(on, old)
	if crowded {
		p.crowded[on.NamespacedName] = true
	} else {
		delete(p.crowded, on.NamespacedName)
	}
}

// way is how packets of a pod are judged in one direction.
type way struct {
	stages  [3]string // the chain of each stage; "" for none
	chains  map[string]Chain
	crowded bool // more policies select the pod than are asked
}

// way of one direction: policies of the tier Admin that select the pod; then its NetworkPolicies, if any isolates it, or
// else the policies of the tier Baseline. Pods that the same policies select share the chains.
func (on *pod) way(d Direction) way {
	w := way{chains: map[string]Chain{}}
	var tiers [3][]*compiled
	isolated := false
	for _, np := range on.selectedBy {
		isolated = isolated || np.isolates[d]
		if np.chains[d] != "" {
			tiers[np.tier] = append(tiers[np.tier], np.compiled)
		}
	}
	byCluster := len(tiers[Admin])+len(tiers[Baseline]) > 0
	if !isolated && !byCluster || len(on.IPs) == 0 {
		return w
	}
	rest := Chain{Direction: d, End: Permit}
	if isolated {
		// NetworkPolicies say nothing of a pod and its own node.
		rest = Chain{Direction: d, OwnNode: byCluster && d == Egress}
		rest.Jumps = w.jumps(d, tiers[NetworkPolicies], &rest.End)
	} else {
		rest.Jumps = w.jumps(d, tiers[Baseline], &rest.End)
	}
	first := w.chain(rest)
	if len(tiers[Admin]) > 0 {
		w.stages[AfterAdmin] = first
		admin := Chain{Direction: d, End: Go}
		admin.Jumps = w.jumps(d, tiers[Admin], &admin.End)
		first = w.chain(admin)
	}
	w.stages[Forwarded] = first
	if byCluster && d == Egress {
		w.stages[ToNode] = first
	}
	return w
}

// jumps are the chains of policies in their order. If there are too many, what the first ones do not decide on is dropped.
func (w *way) jumps(d Direction, list []*compiled, end *End) (names []string) {
	byPrecedence(list, d)
	seen := map[string]bool{}
	for _, c := range list {
		if seen[c.chains[d]] {
			continue // it has decided on all that it decides on
		}
		seen[c.chains[d]] = true
		if len(names) == MaxPolicies {
			w.crowded, *end = true, Drop
			break
		}
		names = append(names, c.chains[d])
	}
	return names
}

// chain names a pod's chain.
func (w *way) chain(c Chain) (name string) {
	content := strings.Join(c.Jumps, " ")
	if c.End != Drop || c.OwnNode {
		content += fmt.Sprint(" ", c.End, c.OwnNode)
	}
	name = c.Direction.String() + "-pod-" + digest(content)
	w.chains[name] = c
	return name
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

// Isolated says in which directions policies are asked about a pod of this node, as of the last Flush.
func (p *Plan) Isolated(key types.NamespacedName) (ingress, egress bool) {
	if on := p.pods[key.Namespace][key]; on != nil {
		for _, r := range on.routes {
			ingress, egress = ingress || r.direction == Ingress, egress || r.direction == Egress
		}
	}
	return ingress, egress
}

// Problems of policies that select a pod of this node. Those of the cluster have no namespace.
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
