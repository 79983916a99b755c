// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"
)

// state is what is in a table, with who wants it. Two Services can want one
// element (they share an endpoint, or both claim an address): the first by name
// has its value, and it goes when the last does.
type state struct {
	plans    map[types.NamespacedName]*plan
	elements map[elementKey]map[types.NamespacedName]string
}

func newState() *state {
	return &state{plans: map[types.NamespacedName]*plan{}, elements: map[elementKey]map[types.NamespacedName]string{}}
}

// change is what differs in a table.
type change struct {
	chains          map[string]chain // added, or with other rules
	removedChains   []string
	affinity        map[string]int32
	removedAffinity []string
	elements        map[elementKey]string
	removed         []elementKey
}

func (c *change) empty() bool {
	return len(c.chains)+len(c.removedChains)+len(c.affinity)+len(c.removedAffinity)+len(c.elements)+len(c.removed) == 0
}

// apply puts plans in the place of earlier ones, and says what changes by that.
func (s *state) apply(plans map[types.NamespacedName]*plan) *change {
	c := &change{chains: map[string]chain{}, affinity: map[string]int32{}, elements: map[elementKey]string{}}
	touched := map[elementKey]string{} // the value before, "" with had false
	had := map[elementKey]bool{}
	touch := func(k elementKey) {
		if _, seen := touched[k]; !seen {
			touched[k], had[k] = s.value(k)
		}
	}
	for service, p := range plans {
		old := s.plans[service]
		if old == nil {
			old = &plan{}
		}
		diffChains(c, old, p)
		for k := range old.elements {
			touch(k)
			delete(s.elements[k], service)
		}
		for k, v := range p.elements {
			touch(k)
			if s.elements[k] == nil {
				s.elements[k] = map[types.NamespacedName]string{}
			}
			s.elements[k][service] = v
		}
		if len(p.chains)+len(p.elements) == 0 {
			delete(s.plans, service)
		} else {
			s.plans[service] = p
		}
	}
	for k, before := range touched {
		after, has := s.value(k)
		switch {
		case !has:
			delete(s.elements, k)
			if had[k] {
				c.removed = append(c.removed, k)
			}
		case !had[k]:
			c.elements[k] = after
		case before != after:
			c.removed = append(c.removed, k)
			c.elements[k] = after
		}
	}
	return c
}

// diffChains: a Service's chains are its own, their names hold its name's hash.
func diffChains(c *change, old, p *plan) {
	for n, ch := range p.chains {
		if was, ok := old.chains[n]; !ok || !slices.Equal(was.rules, ch.rules) {
			c.chains[n] = ch
		}
	}
	for n := range old.chains {
		if _, kept := p.chains[n]; !kept {
			c.removedChains = append(c.removedChains, n)
		}
	}
	remade := false
	for n, seconds := range p.affinity {
		was, ok := old.affinity[n]
		if ok && was != seconds {
			// A set's timeout cannot be changed: forget its clients, and have the chains that use it written again.
			c.removedAffinity = append(c.removedAffinity, n)
			remade = true
		}
		if !ok || was != seconds {
			c.affinity[n] = seconds
		}
	}
	for n := range old.affinity {
		if _, kept := p.affinity[n]; !kept {
			c.removedAffinity = append(c.removedAffinity, n)
		}
	}
	if remade {
		for n, ch := range p.chains {
			c.chains[n] = ch
		}
	}
}

// value is the element's value by the first who wants it.
func (s *state) value(k elementKey) (string, bool) {
	first, found := types.NamespacedName{}, false
	for service := range s.elements[k] {
		if !found || service.String() < first.String() {
			first, found = service, true
		}
	}
	return s.elements[k][first], found
}

// whole is everything, as a change from nothing.
func (s *state) whole() *change {
	return newState().apply(s.plans)
}

// write adds the change to a transaction, in an order that nft takes: what is
// referred to exists before, and is deleted after.
func (c *change) write(tx *knftables.Transaction, f family) {
	remade := map[string]bool{}
	for _, n := range c.removedAffinity {
		_, again := c.affinity[n]
		remade[n] = again
	}
	for n, ch := range c.chains {
		tx.Add(&knftables.Chain{Name: n, Comment: knftables.PtrTo(cut(ch.comment))})
		tx.Flush(&knftables.Chain{Name: n})
	}
	for n, again := range remade {
		if again {
			tx.Delete(&knftables.Set{Name: n})
		}
	}
	for n, seconds := range c.affinity {
		tx.Add(affinitySet(n, seconds, f))
	}
	for n, ch := range c.chains {
		for _, r := range ch.rules {
			tx.Add(&knftables.Rule{Chain: n, Rule: r})
		}
	}
	for _, k := range c.removed {
		tx.Delete(element(k, ""))
	}
	for k, v := range c.elements {
		tx.Add(element(k, v))
	}
	for _, n := range c.removedChains {
		tx.Flush(&knftables.Chain{Name: n})
	}
	for _, n := range c.removedChains {
		tx.Delete(&knftables.Chain{Name: n})
	}
	for n, again := range remade {
		if !again {
			tx.Delete(&knftables.Set{Name: n})
		}
	}
}

func element(k elementKey, value string) *knftables.Element {
	e := &knftables.Element{Key: strings.Split(k.key, " . ")}
	if k.in == setHairpin {
		e.Set = k.in
		return e
	}
	e.Map = k.in
	if value != "" {
		e.Value = []string{value}
	}
	return e
}

// cut shortens a comment to what nft takes.
func cut(comment string) string {
	if len(comment) > knftables.CommentLengthMax {
		return comment[:knftables.CommentLengthMax]
	}
	return comment
}
