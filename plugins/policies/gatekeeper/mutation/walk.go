// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"errors"
	"fmt"
	"slices"

	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/path/parser"

	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
)

// What all mutators together may take for one object.
const (
	mostWork  = 2_000_000
	mostBytes = 8 << 20
)

// budget is what is left of it.
type budget struct {
	steps, bytes int
	questions    questions
}

func newBudget() *budget { return &budget{steps: mostWork, bytes: mostBytes} }

// work takes steps.
func (b *budget) work(steps int) error {
	if b.steps -= steps; b.steps < 0 {
		return fmt.Errorf("the object takes more than %d steps to change", mostWork)
	}
	return nil
}

// spend takes bytes that are put into the object.
func (b *budget) spend(bytes int) error {
	if b.bytes -= bytes; b.bytes < 0 {
		return fmt.Errorf("more than %d bytes are put into the object", mostBytes)
	}
	return nil
}

// walk is one mutator at work on one object, which is its own.
type walk struct {
	*Mutator
	target *gatekeeper.Target
	budget *budget
}

// apply changes the object; done says whether something was put anywhere, be it what was there.
func (m *Mutator) apply(t *gatekeeper.Target, b *budget) (done bool, err error) {
	w := &walk{m, t, b}
	_, done, err = w.at(t.Object, 0)
	return done, err
}

// at follows the path from one of its nodes on. What it answers takes the place of what stood there
// where something was done: what is missing on the way is only made where something is put into it.
func (w *walk) at(here any, depth int) (now any, done bool, err error) {
	if err := w.budget.work(1); err != nil {
		return nil, false, err
	}
	if list, ok := w.path[depth].(*parser.List); ok {
		items, ok := here.([]any)
		if !ok {
			return nil, false, w.mismatch(depth, "a list", here)
		}
		return w.items(items, list, depth)
	}
	object, ok := here.(map[string]any)
	if !ok {
		return nil, false, w.mismatch(depth, "an object", here)
	}
	return w.field(object, reference(w.path[depth]), depth)
}

func (w *walk) mismatch(depth int, expected string, found any) error {
	at := render(w.path[:depth])
	if depth == 0 {
		at = "the object"
	}
	return fmt.Errorf("%s: expected %s, as spec.location has it, found %s", at, expected, kindOf(found))
}

func (w *walk) field(object map[string]any, field string, depth int) (now any, done bool, err error) {
	next, there := object[field]
	if there && !w.tests.ExistsOkay(depth) || !there && !w.tests.MissingOkay(depth) {
		return nil, false, nil
	}
	if depth == len(w.path)-1 {
		if err := w.setter.set(w, object, field); err != nil {
			return nil, false, fmt.Errorf("%s: %w", render(w.path), err)
		}
		return object, true, nil
	}
	if !there {
		if next, err = w.missing(depth); err != nil {
			return nil, false, err
		}
	}
	if next, done, err = w.at(next, depth+1); err != nil || !done {
		return nil, false, err
	}
	object[field] = next
	return object, true, nil
}

// missing is what stands at a node where nothing stood: the empty list or object that the next node
// takes, with its key where it is an item of a list.
func (w *walk) missing(depth int) (any, error) {
	if w.path[depth+1].Type() == parser.ListNode {
		return []any{}, nil
	}
	out := map[string]any{}
	if list, ok := w.path[depth].(*parser.List); ok {
		if list.KeyValue == nil {
			return nil, errors.New("an item of a list has no key")
		}
		out[list.KeyField] = list.KeyValue
	}
	return out, nil
}

func (w *walk) items(items []any, list *parser.List, depth int) (now any, done bool, err error) {
	if depth == len(w.path)-1 {
		return w.putItem(items, list, depth)
	}
	if list.Glob && !w.tests.ExistsOkay(depth) {
		return nil, false, nil // that there is no item at all is never said
	}
	out := slices.Clone(items)
	found := false
	for i, item := range items {
		if !list.Glob {
			if o, ok := item.(map[string]any); !ok || o[list.KeyField] != list.KeyValue {
				continue
			}
			if !w.tests.ExistsOkay(depth) {
				return nil, false, nil
			}
		}
		found = true
		changed, did, err := w.at(item, depth+1)
		if err != nil {
			return nil, false, err
		}
		if did {
			out[i], done = changed, true
		}
	}
	if found || list.Glob {
		return out, done, w.budget.work(len(items))
	}
	if !w.tests.MissingOkay(depth) {
		return nil, false, nil
	}
	fresh, err := w.missing(depth)
	if err != nil {
		return nil, false, err
	}
	if fresh, done, err = w.at(fresh, depth+1); err != nil || !done {
		return nil, false, err
	}
	return append(out, fresh), true, nil
}

// putItem puts a whole item, in the place of the one with its key.
func (w *walk) putItem(items []any, list *parser.List, depth int) (now any, done bool, err error) {
	fresh, err := w.setter.item(w)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", render(w.path), err)
	}
	out := slices.Clone(items)
	for i, item := range items {
		if o, ok := item.(map[string]any); !ok || o[list.KeyField] != list.KeyValue {
			continue
		}
		if !w.tests.ExistsOkay(depth) {
			return nil, false, nil
		}
		out[i] = fresh
		return out, true, nil
	}
	if !w.tests.MissingOkay(depth) {
		return nil, false, nil
	}
	return append(out, fresh), true, w.budget.work(len(items))
}
