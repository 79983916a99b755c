// SPDX-License-Identifier: Apache-2.0

package canon

// mostHandles bounds a table: by the specification it could have 2^28 entries, which cost memory of
// the host.
const mostHandles = 1 << 16

// entry is a handle in a table.
type entry struct {
	resource *Resource
	rep      uint32
	own      bool
	lent     int    // borrows of it that exist
	scope    *Scope // of a borrowed one: the call that it was lent to
}

// Table holds the handles of one component instance.
type Table struct {
	entries []*entry
	free    []uint32
}

// Scope is a call, as far as handles are lent in it.
type Scope struct {
	borrowed int      // handles that the callee has been lent and not dropped
	lenders  []*entry // handles of the caller that are lent
}

// End gives back what the caller lent, and traps where the callee has kept a borrowed handle.
func (s *Scope) End() {
	s.Return()
	if s.borrowed > 0 {
		Fail("%d borrowed handles still remain at the end of the call", s.borrowed)
	}
}

// Return gives back what the caller lent.
func (s *Scope) Return() {
	for _, e := range s.lenders {
		e.lent--
	}
	s.lenders = nil
}

func (t *Table) get(i uint32, of *Resource) *entry {
	if int64(i) >= int64(len(t.entries)) || t.entries[i] == nil {
		Fail("unknown handle index %d", i)
	}
	e := t.entries[i]
	if e.resource != of {
		Fail("handle index %d used with the wrong type, expected guest-defined resource %s but found another (%s)", i, of.Name, e.resource.Name)
	}
	return e
}

func (t *Table) add(e *entry) uint32 {
	if len(t.entries) == 0 {
		t.entries = append(t.entries, nil)
	}
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		t.entries[i] = e
		return i
	}
	if len(t.entries) > mostHandles {
		Fail("more than %d handles", mostHandles)
	}
	t.entries = append(t.entries, e)
	return uint32(len(t.entries) - 1)
}

func (t *Table) remove(i uint32) {
	t.entries[i] = nil
	t.free = append(t.free, i)
}

// Len says how many handles there are.
func (t *Table) Len() int { return max(0, len(t.entries)-1-len(t.free)) }

// New adds an owned handle.
func (t *Table) New(of *Resource, rep uint32) uint32 {
	return t.add(&entry{resource: of, rep: rep, own: true})
}

// Rep is the representation behind a handle.
func (t *Table) Rep(of *Resource, i uint32) uint32 { return t.get(i, of).rep }

// Drop removes a handle. It says whether the resource had its only owner here, and is to be ended.
func (t *Table) Drop(of *Resource, i uint32) (rep uint32, ended bool) {
	e := t.get(i, of)
	if e.lent != 0 {
		Fail("cannot remove owned resource while borrowed (handle index %d)", i)
	}
	t.remove(i)
	if !e.own {
		e.scope.borrowed--
	}
	return e.rep, e.own
}

func (c *Context) liftOwn(of *Resource, i uint32) *Handle {
	e := c.Table.get(i, of)
	switch {
	case e.lent != 0:
		Fail("cannot remove owned resource while borrowed (handle index %d)", i)
	case !e.own:
		Fail("cannot lift own resource from a borrow (handle index %d)", i)
	}
	c.Table.remove(i)
	return &Handle{Resource: of, Rep: e.rep, Own: true}
}

func (c *Context) liftBorrow(of *Resource, i uint32) *Handle {
	e := c.Table.get(i, of)
	e.lent++
	c.Scope.lenders = append(c.Scope.lenders, e)
	return &Handle{Resource: of, Rep: e.rep}
}

func (c *Context) lowerHandle(of *Resource, own bool, v any) uint32 {
	h, ok := v.(*Handle)
	if !ok || h == nil || h.Resource == nil {
		Fail("expected a handle of %s, found %T", of.Name, v)
	}
	if h.Resource != of || own && !h.Own {
		Fail("expected a handle of %s, found one of %s", of.Name, h.Resource.Name)
	}
	c.Account.Charge(perHandle)
	if own {
		return c.Table.New(of, h.Rep)
	}
	if of.Impl == c.Instance {
		return h.Rep
	}
	c.Scope.borrowed++
	return c.Table.add(&entry{resource: of, rep: h.Rep, scope: c.Scope})
}

// Snapshot copies a table, for Restore. Nothing may be lent.
func (t *Table) Snapshot() *Table {
	out := &Table{free: append([]uint32(nil), t.free...)}
	for _, e := range t.entries {
		if e != nil {
			kept := *e
			e = &kept
		}
		out.entries = append(out.entries, e)
	}
	return out
}

// Restore puts a table back to a snapshot of it.
func (t *Table) Restore(s *Table) { *t = *s.Snapshot() }
