// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
)

// Direction of traffic, as seen by the pod that a policy selects.
type Direction int

// The directions.
const (
	Ingress Direction = iota
	Egress
)

func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

// SetKind is what the elements of a set are.
type SetKind int

// The kinds of sets.
const (
	Addresses SetKind = iota // addresses of pods
	Ranges                   // ranges of addresses; such a set never changes
	Ports                    // address, protocol and port of pods' named ports
)

// Set is a set of one family.
type Set struct {
	Kind SetKind
	IPv6 bool
}

// Element is in a set. Value is as nftables writes it, parts joined by " . ".
type Element struct{ Set, Value string }

// Chain never changes: its name derives from what is in it. Either it has rules, and a
// packet on which none of them decides goes back to where it came from, or it is a pod's:
// it asks the chains in Jumps, and what none of them has decided on meets its End.
type Chain struct {
	Direction Direction
	Rules     []Rule
	Jumps     []string
	End       End
	// OwnNode: what is for the node itself passes before the Jumps.
	OwnNode bool
}

// End is what a pod's chain does with what nobody has decided on.
type End int

// The ends of chains.
const (
	Drop   End = iota
	Permit     // no later chain is asked
	Go         // to the pod's chain of the stage AfterAdmin
)

// Action is what a rule does with the packets that it matches.
type Action int

// The actions.
const (
	Accept Action = iota
	Deny
	Pass // on to the pod's chain of the stage AfterAdmin
)

// Rule acts on a packet whose other end is a peer and whose destination port is one of
// the ports.
type Rule struct {
	Action Action
	// AnyPeer, or the names of sets of peers by family (0 for IPv4, 1 for IPv6); "" for none.
	AnyPeer bool
	Pods    [2]string
	Blocks  [2]string
	// AnyPort, or ranges of ports, and names of sets of named ports by family.
	AnyPort bool
	Ports   []PortRange
	Named   [2]string
}

// PortRange is a range of ports of a protocol. All means packets of the protocol
// whatever their ports.
type PortRange struct {
	Protocol string
	From, To uint16
}

// All reports whether every port of the protocol is meant.
func (r PortRange) All() bool { return r.From == 0 && r.To == 65535 }

func (r PortRange) String() string {
	if r.From == r.To {
		return strconv.Itoa(int(r.From))
	}
	return strconv.Itoa(int(r.From)) + "-" + strconv.Itoa(int(r.To))
}

// Stage is when a pod's chain is asked.
type Stage int

// The stages.
const (
	Forwarded  Stage = iota // by this node: all traffic between pods, and with others
	AfterAdmin              // what the tier Admin has passed on
	ToNode                  // what the pod sends to this node itself
)

// Verdict sends what an address of this node sends or gets to a chain of its pod.
type Verdict struct {
	Direction Direction
	Stage     Stage
	Address   netip.Addr
}

// Change is what is different from an earlier state. Applied in one transaction, in
// the order of the fields, nothing is referred to before it exists.
type Change struct {
	Sets     map[string]Set
	Chains   map[string]Chain // those without Jumps come first
	Elements []Element
	Verdicts map[Verdict]string

	RemovedElements []Element
	// RemovedVerdicts have also those that get another value.
	RemovedVerdicts []Verdict
	RemovedChains   []string // those with Jumps come first
	RemovedSets     []string
}

// Empty reports whether nothing changes.
func (c *Change) Empty() bool {
	return len(c.Sets)+len(c.Chains)+len(c.Elements)+len(c.Verdicts)+len(c.RemovedElements)+len(c.RemovedVerdicts)+
		len(c.RemovedChains)+len(c.RemovedSets) == 0
}

// tracked is a map that knows what it was when it was last asked.
type tracked[K, V comparable] struct {
	now map[K]V
	was map[K]before[V]
}

type before[V any] struct {
	value V
	had   bool
}

func newTracked[K, V comparable]() tracked[K, V] {
	return tracked[K, V]{map[K]V{}, map[K]before[V]{}}
}

func (t *tracked[K, V]) touch(k K) {
	if _, seen := t.was[k]; !seen {
		v, had := t.now[k]
		t.was[k] = before[V]{v, had}
	}
}

func (t *tracked[K, V]) set(k K, v V) {
	t.touch(k)
	t.now[k] = v
}

func (t *tracked[K, V]) remove(k K) {
	t.touch(k)
	delete(t.now, k)
}

// flush answers what is to be added and removed since the last time; a key whose
// value has changed is in both.
func (t *tracked[K, V]) flush() (added map[K]V, removed []K) {
	added = map[K]V{}
	for k, b := range t.was {
		v, has := t.now[k]
		if b.had && (!has || v != b.value) {
			removed = append(removed, k)
		}
		if has && (!b.had || v != b.value) {
			added[k] = v
		}
	}
	t.was = map[K]before[V]{}
	return added, removed
}

// table is what is to be in the kernel, with what has changed since the last flush.
type table struct {
	sets     tracked[string, Set]
	chains   tracked[string, struct{}]
	elements tracked[Element, struct{}]
	verdicts tracked[Verdict, string]
	contents map[string]Chain
	// uses of sets, chains and elements; what has none goes.
	setUses, chainUses map[string]int
	elementUses        map[Element]int
}

func newTable() *table {
	return &table{
		newTracked[string, Set](), newTracked[string, struct{}](), newTracked[Element, struct{}](), newTracked[Verdict, string](),
		map[string]Chain{},
		map[string]int{},
		map[string]int{},
		map[Element]int{},
	}
}

// useSet says that one more wants a set, and whether it is the first.
func (t *table) useSet(name string, s Set) (first bool) {
	t.setUses[name]++
	if t.setUses[name] > 1 {
		return false
	}
	t.sets.set(name, s)
	return true
}

// dropSet says that one fewer wants it, and whether that was the last.
func (t *table) dropSet(name string) (last bool) {
	t.setUses[name]--
	if t.setUses[name] > 0 {
		return false
	}
	delete(t.setUses, name)
	t.sets.remove(name)
	return true
}

func (t *table) addElement(e Element) {
	t.elementUses[e]++
	if t.elementUses[e] == 1 {
		t.elements.set(e, struct{}{})
	}
}

func (t *table) removeElement(e Element) {
	t.elementUses[e]--
	if t.elementUses[e] == 0 {
		delete(t.elementUses, e)
		t.elements.remove(e)
	}
}

func (t *table) useChain(name string, c Chain) (first bool) {
	t.chainUses[name]++
	if t.chainUses[name] > 1 {
		return false
	}
	t.contents[name] = c
	t.chains.set(name, struct{}{})
	return true
}

func (t *table) dropChain(name string) (last bool) {
	t.chainUses[name]--
	if t.chainUses[name] > 0 {
		return false
	}
	delete(t.chainUses, name)
	t.chains.remove(name)
	return true
}

// flush answers what has changed since the last time.
func (t *table) flush() *Change {
	c := &Change{Chains: map[string]Chain{}}
	chains, removedChains := t.chains.flush()
	for name := range chains {
		c.Chains[name] = t.contents[name]
	}
	slices.SortFunc(removedChains, func(a, b string) int { return len(t.contents[b].Jumps) - len(t.contents[a].Jumps) })
	for _, name := range removedChains {
		delete(t.contents, name)
	}
	c.RemovedChains = removedChains
	c.Sets, c.RemovedSets = t.sets.flush()
	c.Verdicts, c.RemovedVerdicts = t.verdicts.flush()
	elements, removed := t.elements.flush()
	for e := range elements {
		c.Elements = append(c.Elements, e)
	}
	for _, e := range removed {
		// With its set an element goes by itself.
		if _, there := t.sets.now[e.Set]; there || e.Set == SelfSet(false) || e.Set == SelfSet(true) {
			c.RemovedElements = append(c.RemovedElements, e)
		}
	}
	return c
}

// whole is everything, as a change from nothing.
func (t *table) whole() *Change {
	c := &Change{Sets: maps.Clone(t.sets.now), Chains: map[string]Chain{}, Verdicts: maps.Clone(t.verdicts.now)}
	for name := range t.chains.now {
		c.Chains[name] = t.contents[name]
	}
	for e := range t.elements.now {
		c.Elements = append(c.Elements, e)
	}
	return c
}
