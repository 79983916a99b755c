// SPDX-License-Identifier: Apache-2.0

// Package allot decides which CPUs, and which NUMA nodes' memory, a container has for itself
// alone: purely, from what the machine has and what is free. The rules and their words are
// upstream's (CPU manager, memory manager, topology manager).
package allot

import (
	"fmt"
	"math/bits"
	"slices"

	"k8s.io/utils/cpuset"
)

// MostNodes of a machine: decisions look at all sets of its NUMA nodes.
const MostNodes = 8

// Nodes is a set of NUMA nodes; bit n is node n.
type Nodes uint64

// NodesOf makes a set.
func NodesOf(ids ...int) (s Nodes) {
	for _, id := range ids {
		s |= 1 << id
	}
	return s
}

// Len is how many there are.
func (s Nodes) Len() int { return bits.OnesCount64(uint64(s)) }

// Has says whether a node is in the set.
func (s Nodes) Has(id int) bool { return s&(1<<id) != 0 }

// List of the nodes in ascending order.
func (s Nodes) List() (out []int) {
	for ; s != 0; s &= s - 1 {
		out = append(out, bits.TrailingZeros64(uint64(s)))
	}
	return out
}

// String is the set as cgroups have it.
func (s Nodes) String() string { return cpuset.New(s.List()...).String() }

// CPU is a logical one. Core, Socket and Cache tell which share such a thing: they are
// unique in the machine.
type CPU struct{ ID, Core, Socket, Node, Cache int }

// Machine has CPUs, and memory by NUMA node and kind ("memory", "hugepages-2Mi").
type Machine struct {
	CPUs   []CPU
	Memory map[int]map[string]int64
}

// Nodes of the machine.
func (m *Machine) Nodes() (s Nodes) {
	for _, c := range m.CPUs {
		s |= NodesOf(c.Node)
	}
	for id := range m.Memory {
		s |= NodesOf(id)
	}
	return s
}

// All CPUs.
func (m *Machine) All() cpuset.CPUSet {
	return m.where(func(CPU) bool { return true })
}

// Of NUMA nodes, the CPUs.
func (m *Machine) Of(nodes Nodes) cpuset.CPUSet {
	return m.where(func(c CPU) bool { return nodes.Has(c.Node) })
}

func (m *Machine) where(ok func(CPU) bool) cpuset.CPUSet {
	var ids []int
	for _, c := range m.CPUs {
		if ok(c) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// NodesOfCPUs are the NUMA nodes of CPUs.
func (m *Machine) NodesOfCPUs(set cpuset.CPUSet) (s Nodes) {
	for _, c := range m.CPUs {
		if set.Contains(c.ID) {
			s |= NodesOf(c.Node)
		}
	}
	return s
}

// ThreadsPerCore of the core that has most.
func (m *Machine) ThreadsPerCore() int {
	n, most := map[int]int{}, 1
	for _, c := range m.CPUs {
		n[c.Core]++
		most = max(most, n[c.Core])
	}
	return most
}

// Options of the CPU manager's static policy.
type Options struct {
	// FullCores gives whole cores alone (full-pcpus-only).
	FullCores bool
	// Distribute evenly over the NUMA nodes that are needed (distribute-cpus-across-numa).
	Distribute bool
	// AlignCaches prefers CPUs that share a last-level cache (prefer-align-cpus-by-uncorecache).
	AlignCaches bool
}

// Usable are the free CPUs that options let be given.
func (m *Machine) Usable(free cpuset.CPUSet, o Options) cpuset.CPUSet {
	if !o.FullCores {
		return free
	}
	out := cpuset.New()
	for _, core := range m.units(func(c CPU) int { return c.Core }) {
		if core.IsSubsetOf(free) {
			out = out.Union(core)
		}
	}
	return out
}

// Take n of the free CPUs, near ones first: whole NUMA nodes and sockets, then whole cores, then single ones of
// cores, sockets and nodes that are in use already.
func (m *Machine) Take(free cpuset.CPUSet, n int, near Nodes, o Options) (cpuset.CPUSet, error) {
	free = m.Usable(free, o)
	if free.Size() < n {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, free.Size())
	}
	if here := m.Of(near).Intersection(free); here.Size() >= n {
		free = here
	} else if here.Size() > 0 {
		// All that there is nearby, and the rest from elsewhere.
		rest := m.pack(free.Difference(here), n-here.Size(), o)
		return here.Union(rest), nil
	}
	if o.Distribute {
		if set, ok := m.spread(free, n, o); ok {
			return set, nil
		}
	}
	return m.pack(free, n, o), nil
}

// pack takes n of at least n free CPUs.
func (m *Machine) pack(free cpuset.CPUSet, n int, o Options) cpuset.CPUSet {
	took := cpuset.New()
	node, socket := func(c CPU) int { return c.Node }, func(c CPU) int { return c.Socket }
	levels := []func(CPU) int{socket, node}
	if m.NodesOfCPUs(m.All()).Len() < len(m.units(socket)) {
		levels = []func(CPU) int{node, socket}
	}
	if o.AlignCaches {
		levels = append(levels, func(c CPU) int { return c.Cache })
	}
	levels = append(levels, func(c CPU) int { return c.Core })
	for _, level := range levels {
		for _, unit := range m.order(level, free, took) {
			if unit.IsSubsetOf(free) && unit.Size() <= n-took.Size() {
				took, free = took.Union(unit), free.Difference(unit)
			}
		}
	}
	for took.Size() < n {
		// One by one: what is taken changes which is next.
		for _, unit := range m.order(func(c CPU) int { return c.ID }, free, took)[:1] {
			took, free = took.Union(unit), free.Difference(unit)
		}
	}
	return took
}

// units are the CPUs of the machine that share something.
func (m *Machine) units(by func(CPU) int) map[int]cpuset.CPUSet {
	out := map[int]cpuset.CPUSet{}
	for _, c := range m.CPUs {
		out[by(c)] = out[by(c)].Union(cpuset.New(c.ID))
	}
	return out
}

// order has units with free CPUs, first those next to what is taken, then those in whose node,
// socket, cache and core the least is free.
func (m *Machine) order(by func(CPU) int, free, took cpuset.CPUSet) []cpuset.CPUSet {
	parents := []func(CPU) int{
		func(c CPU) int { return c.Node }, func(c CPU) int { return c.Socket }, func(c CPU) int { return c.Cache },
		func(c CPU) int { return c.Core },
	}
	var freeIn, tookIn []map[int]int
	for _, p := range parents {
		f, t := map[int]int{}, map[int]int{}
		for _, c := range m.CPUs {
			if free.Contains(c.ID) {
				f[p(c)]++
			}
			if took.Contains(c.ID) {
				t[p(c)] = -1
			}
		}
		freeIn, tookIn = append(freeIn, f), append(tookIn, t)
	}
	type ranked struct {
		key []int
		set cpuset.CPUSet
	}
	first := map[int]CPU{}
	for _, c := range m.CPUs {
		if have, ok := first[by(c)]; free.Contains(c.ID) && (!ok || c.ID < have.ID) {
			first[by(c)] = c
		}
	}
	units := m.units(by)
	var all []ranked
	for id, c := range first {
		r := ranked{set: units[id]}
		for i, p := range parents {
			r.key = append(r.key, tookIn[i][p(c)], freeIn[i][p(c)])
		}
		r.key = append(r.key, c.ID)
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b ranked) int { return slices.Compare(a.key, b.key) })
	var out []cpuset.CPUSet
	for _, r := range all {
		out = append(out, r.set)
	}
	return out
}

// spread takes as many of each of the fewest nodes that have enough; ok is false where none do.
func (m *Machine) spread(free cpuset.CPUSet, n int, o Options) (took cpuset.CPUSet, ok bool) {
	group := 1
	if o.FullCores {
		group = m.ThreadsPerCore()
	}
	for _, nodes := range Subsets(m.NodesOfCPUs(m.All())) {
		if nodes.Len() < 2 && m.Of(nodes).Intersection(free).Size() >= n {
			return cpuset.New(), false // one has enough
		}
		if n%group != 0 || n/group%nodes.Len() != 0 {
			continue
		}
		each := n / nodes.Len()
		took = cpuset.New()
		for _, id := range nodes.List() {
			if here := m.Of(NodesOf(id)).Intersection(free); here.Size() >= each {
				took = took.Union(m.pack(here, each, o))
			}
		}
		if took.Size() == n {
			return took, true
		}
	}
	return cpuset.New(), false
}

// Subsets of nodes that are not empty, the smallest first.
func Subsets(nodes Nodes) (out []Nodes) {
	for s := nodes; s != 0; s = (s - 1) & nodes {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Nodes) int {
		if d := a.Len() - b.Len(); d != 0 {
			return d
		}
		return int(int64(a) - int64(b)) //nolint:gosec // at most eight bits
	})
	return out
}
