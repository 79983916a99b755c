// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"slices"

	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// ErrTaken is why an entry is left out whose name another origin uses.
var ErrTaken = errors.New("a plugin of this name stands in the configuration file, and is not touched through the API; choose another name")

// Why a load ended before its end.
var (
	errGone     = errors.New("the plugin's entry is gone")
	errReplaced = errors.New("the plugin has another entry now")
)

// plan says what another set of entries means for what is in force, and for what is being loaded.
type plan struct {
	keep    []*slot // what is in force, and stays so at least until its load has ended
	gone    []*slot // what is unloaded
	stopped []*load // what is not to be loaded any more
	fresh   []*load // what is to be loaded
	awaited []*load // what the entries come to: fresh, and what was being loaded before
	errs    []error // of entries that are left out
}

// plan compares entries with what is there. l.mu is held. files are the digests of local
// files, by path; off are disabled plugins.
func (l *Loader) plan(from Origin, entries []manifest.Entry, files map[string]string, off map[string]bool) *plan {
	p := &plan{}
	before := map[string]*slot{}
	taken := map[string]bool{}
	for _, s := range l.slots {
		if s.origin == from {
			before[s.entry.Name] = s
			continue
		}
		p.keep, taken[s.entry.Name] = append(p.keep, s), true
	}
	unwanted := map[string]*load{}
	for name, j := range l.loads {
		if j.origin == from {
			unwanted[name] = j
			continue
		}
		taken[name] = true
	}
	for i, e := range entries {
		if e.Disabled || off[e.Name] || off[e.MemberOf] {
			continue
		}
		if taken[e.Name] {
			p.errs = append(p.errs, fmt.Errorf("load plugin %q: %w", e.Name, ErrTaken))
			continue
		}
		s, j := before[e.Name], unwanted[e.Name]
		delete(before, e.Name)
		delete(unwanted, e.Name)
		if s != nil {
			p.keep = append(p.keep, s.at(i))
		}
		next := l.newLoad(from, i, e, s, files)
		switch {
		case j != nil && j.equals(next): // it is being loaded already
			j.place = i
			p.awaited = append(p.awaited, j)
		case next.due():
			p.fresh, p.awaited = append(p.fresh, next), append(p.awaited, next)
		case j != nil: // what is in force is wanted again
			p.stopped = append(p.stopped, j)
		}
	}
	for _, s := range before {
		p.gone = append(p.gone, s)
	}
	for _, j := range unwanted {
		p.stopped = append(p.stopped, j)
	}
	joinMembers(p)
	return p
}

// joinMembers has groups wait for their members: a group is not to be asked before they can be.
func joinMembers(p *plan) {
	for _, g := range p.fresh {
		for _, j := range p.awaited {
			if g.entry.Group != nil && j.entry.MemberOf == g.entry.Name {
				g.members = append(g.members, j)
			}
		}
	}
}

// at is the slot in another place among the entries of its origin.
func (s *slot) at(place int) *slot {
	if s.place == place {
		return s
	}
	moved := s.with(s.entry)
	moved.place = place
	return moved
}

// arrange publishes slots in their order. changed says that there are other plugins
// than before, not only others' entries. l.mu is held.
func (l *Loader) arrange(slots []*slot, changed bool) {
	slots = slices.Clone(slots)
	slices.SortStableFunc(slots, inOrder)
	l.join(slots)
	changed = changed || !slices.Equal(slots, l.slots) // in another order
	l.slots = slots
	if !changed {
		return
	}
	for _, c := range []chan struct{}{l.changes, l.sources} {
		select {
		case c <- struct{}{}:
		default: // it has been sent already
		}
	}
}

func (l *Loader) list() []*slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slots
}
