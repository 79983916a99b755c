// SPDX-License-Identifier: Apache-2.0

package queue

import "iter"

// waits has the groups by what they wait for: an event of one of ten thousand claims concerns one pod.
type waits struct {
	byKey map[string]map[*group]struct{}
	any   map[*group]struct{} // wait for anything
}

func newWaits() waits { return waits{map[string]map[*group]struct{}{}, map[*group]struct{}{}} }

// move a group to what it waits for now.
func (w *waits) move(g *group, keys []string) {
	w.drop(g)
	if keys == nil {
		w.any[g] = struct{}{}
	}
	for _, k := range keys {
		if w.byKey[k] == nil {
			w.byKey[k] = map[*group]struct{}{}
		}
		w.byKey[k][g] = struct{}{}
	}
}

// drop a group, by the refusal that it was moved with.
func (w *waits) drop(g *group) {
	delete(w.any, g)
	for _, k := range g.refusal.Keys {
		if delete(w.byKey[k], g); len(w.byKey[k]) == 0 {
			delete(w.byKey, k)
		}
	}
}

// of are the groups that wait for one of these keys, and those that wait for anything; each once.
func (w *waits) of(keys []string) iter.Seq[*group] {
	return func(yield func(*group) bool) {
		seen := map[*group]struct{}{}
		for _, k := range keys {
			for g := range w.byKey[k] {
				if _, twice := seen[g]; twice {
					continue
				}
				seen[g] = struct{}{}
				if !yield(g) {
					return
				}
			}
		}
		for g := range w.any {
			if !yield(g) {
				return
			}
		}
	}
}
