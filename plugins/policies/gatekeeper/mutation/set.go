// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/path/parser"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
)

// Set is all mutators that there are. It is safe for concurrent use.
type Set struct {
	mutators  []*Mutator
	conflicts map[*Mutator][]string
}

// NewSet makes a set. Mutators that imply different schemas for one field of one kind contradict each other:
// none of them is applied.
func NewSet(list []*Mutator) *Set {
	s := &Set{mutators: slices.Clone(list), conflicts: map[*Mutator][]string{}}
	slices.SortFunc(s.mutators, func(a, b *Mutator) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	roots := map[schema.GroupVersionKind]*node{}
	for _, m := range s.mutators {
		for _, kind := range m.Bindings {
			if roots[kind] == nil {
				roots[kind] = &node{}
			}
			roots[kind].add(m, m.path)
		}
	}
	together := map[*Mutator]map[string]bool{}
	for _, root := range roots {
		root.walk(func(in []*Mutator) {
			for _, m := range in {
				if together[m] == nil {
					together[m] = map[string]bool{}
				}
				for _, other := range in {
					together[m][other.ID()] = true
				}
			}
		})
	}
	for m, others := range together {
		s.conflicts[m] = slices.Sorted(maps.Keys(others))
	}
	return s
}

// Changes says whether one of them may change objects of a kind.
func (s *Set) Changes(k schema.GroupVersionKind) bool {
	return slices.ContainsFunc(s.mutators, func(m *Mutator) bool { return m.appliesTo(k) && m.match.MatchesKind(k) })
}

// Conflicts are the mutators that contradict each other, one of them being m; none = m is applied.
func (s *Set) Conflicts(m *Mutator) []string { return s.conflicts[m] }

// Mutate changes the target's object, which the caller owns, until nothing changes any more, and
// says who changed it. Providers of external data are asked then, once. After an error the object is not to be used.
func (s *Set) Mutate(t *gatekeeper.Target) (applied []*Mutator, err error) {
	b := newBudget()
	did := map[*Mutator]bool{}
	for range len(s.mutators) + 1 {
		var before map[string]any
		if before, err = s.once(t, b, did); err != nil {
			return nil, err
		}
		if before == nil || reflect.DeepEqual(before, t.Object) {
			return applied, b.questions.resolve(t)
		}
		applied = slices.SortedFunc(maps.Keys(did), func(a, b *Mutator) int { return cmp.Compare(a.ID(), b.ID()) })
	}
	var names []string
	for _, m := range applied {
		names = append(names, m.ID())
	}
	return nil, fmt.Errorf("the mutators %s change each other's results without an end", strings.Join(names, ", "))
}

// once applies each mutator once, and adds those to did that put something. before is the object as it was; nil = no
// mutator is about it.
func (s *Set) once(t *gatekeeper.Target, b *budget, did map[*Mutator]bool) (before map[string]any, err error) {
	for _, m := range s.mutators {
		if err := b.work(1); err != nil {
			return nil, err
		}
		if len(s.conflicts[m]) > 0 {
			continue
		}
		matches, err := m.matches(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.ID(), err)
		}
		if !matches {
			continue
		}
		if before == nil {
			before = runtime.DeepCopyJSON(t.Object)
		}
		done, err := m.apply(t, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.ID(), err)
		}
		if done {
			did[m] = true
		}
	}
	return before, nil
}

// nodeType is what a mutator implies of what stands at a field.
type nodeType string

// The types of what stands in the middle of a path are those of the node behind.
const (
	unknownNode nodeType = "" // nothing is implied
	listNode    nodeType = nodeType(parser.ListNode)
	setNode     nodeType = "Set"
	textNode    nodeType = "Text"
)

// node is a place in the schema that mutators imply of one kind of objects.
type node struct {
	by       []*Mutator
	ends     []*Mutator                    // those for whom nothing stands below
	children map[string]map[nodeType]*node // by field (or by key of a list), by what is implied of it
}

func (n *node) add(m *Mutator, path []parser.Node) {
	n.by = append(n.by, m)
	if len(path) == 0 {
		if m.closed {
			n.ends = append(n.ends, m)
		}
		return
	}
	field, implied := reference(path[0]), m.terminal
	if list, ok := path[0].(*parser.List); ok {
		field = list.KeyField
	}
	if len(path) > 1 {
		implied = nodeType(path[1].Type())
	}
	if n.children == nil {
		n.children = map[string]map[nodeType]*node{}
	}
	if n.children[field] == nil {
		n.children[field] = map[nodeType]*node{}
	}
	child := n.children[field][implied]
	if child == nil {
		child = &node{}
		n.children[field][implied] = child
	}
	child.add(m, path[1:])
}

// walk reports mutators that contradict each other.
func (n *node) walk(report func([]*Mutator)) {
	for _, types := range n.children {
		if in := contradicting(types); len(in) > 0 {
			report(in)
		}
		for _, child := range types {
			child.walk(report)
		}
	}
}

// contradicting are those who say of one field that it is of different types, that its items have different
// keys, or that there is something below what has nothing below it.
func contradicting(types map[nodeType]*node) (out []*Mutator) {
	known := len(types)
	if types[unknownNode] != nil {
		known--
	}
	var ends, below []*Mutator
	for implied, child := range types {
		if implied != unknownNode && (known > 1 || implied == listNode && len(child.children) > 1) {
			out = append(out, child.by...)
		}
		ends = append(ends, child.ends...)
		for _, grandchildren := range child.children {
			for _, g := range grandchildren {
				below = append(below, g.by...)
			}
		}
	}
	if len(ends) > 0 && len(below) > 0 {
		out = append(append(out, ends...), below...)
	}
	return out
}
