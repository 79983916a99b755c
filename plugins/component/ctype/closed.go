// SPDX-License-Identifier: Apache-2.0

package ctype

// Closed says that a definition names no resource types but those that it declares itself.
func (s *Set) Closed(d *Def) bool {
	c := closing{bound: map[*Resource]bool{}, seen: map[any]bool{}}
	return c.def(d)
}

type closing struct {
	bound map[*Resource]bool
	seen  map[any]bool
}

func (c *closing) first(x any) bool {
	if c.seen[x] {
		return false
	}
	c.seen[x] = true
	return true
}

func (c *closing) def(d *Def) bool {
	switch {
	case d.Resource != nil:
		return c.bound[d.Resource]
	case d.Value != nil:
		return c.value(d.Value)
	case d.Func != nil:
		return c.fn(d.Func)
	case d.Instance != nil:
		return c.instance(d.Instance)
	}
	return c.component(d.Component)
}

func (c *closing) value(t *Type) bool {
	if !t.Resources || !c.first(t) {
		return true
	}
	if t.Resource != nil {
		return c.bound[t.Resource]
	}
	ok := true
	t.each(func(p *Type) { ok = ok && c.value(p) })
	return ok
}

func (c *closing) fn(f *Func) bool {
	for _, p := range f.Params {
		if !c.value(p.Type) {
			return false
		}
	}
	return f.Result == nil || c.value(f.Result)
}

func (c *closing) bind(rs []*Resource) {
	for _, r := range rs {
		c.bound[r] = true
	}
}

func (c *closing) all(in []Named) bool {
	for _, n := range in {
		ok := true
		switch n.Sort {
		case Types:
			ok = c.def(n.Def)
		case Funcs:
			ok = c.fn(n.Func)
		case Instances:
			ok = c.instance(n.Instance)
		case Components:
			ok = c.component(n.Component)
		default:
		}
		if !ok {
			return false
		}
	}
	return true
}

func (c *closing) instance(i *Instance) bool {
	if !c.first(i) {
		return true
	}
	c.bind(i.Fresh)
	return c.all(i.Exports)
}

func (c *closing) component(k *Component) bool {
	if !c.first(k) {
		return true
	}
	c.bind(k.Open)
	c.bind(k.Fresh)
	return c.all(k.Imports) && c.all(k.Exports)
}
