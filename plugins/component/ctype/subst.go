// SPDX-License-Identifier: Apache-2.0

package ctype

import "fmt"

// Subst puts resource types in the place of others. It remembers what it has done, so
// that the work is bounded by the number of different types.
type Subst struct {
	set   *Set
	to    map[*Resource]*Resource
	types map[*Type]*Type
	insts map[*Instance]*Instance
	comps map[*Component]*Component
}

// NewSubst makes a substitution of resource types of a set.
func (s *Set) NewSubst() *Subst {
	u := &Subst{set: s, to: map[*Resource]*Resource{}}
	u.forget()
	return u
}

func (u *Subst) forget() {
	u.types, u.insts, u.comps = map[*Type]*Type{}, map[*Instance]*Instance{}, map[*Component]*Component{}
}

// Bind has b stand where a was.
func (u *Subst) Bind(a, b *Resource) {
	u.to[a] = b
	u.forget()
}

// Resource is what stands for a resource type.
func (u *Subst) Resource(r *Resource) *Resource {
	if to, ok := u.to[r]; ok {
		return to
	}
	return r
}

// Bound says whether something was put in r's place.
func (u *Subst) Bound(r *Resource) bool {
	_, ok := u.to[r]
	return ok
}

// Type substitutes in a value type; nil stays nil.
func (u *Subst) Type(t *Type) (*Type, error) {
	if t == nil || !t.Resources || len(u.to) == 0 {
		return t, nil
	}
	if done := u.types[t]; done != nil {
		return done, nil
	}
	if err := u.set.spend(1 + len(t.Fields) + len(t.Cases)); err != nil {
		return nil, err
	}
	n := Type{Kind: t.Kind, Len: t.Len, Labels: t.Labels}
	var err error
	part := func(p *Type) *Type {
		q, e := u.Type(p)
		if e != nil {
			err = e
		}
		return q
	}
	n.Elem = part(t.Elem)
	for _, f := range t.Fields {
		n.Fields = append(n.Fields, Field{Name: f.Name, Type: part(f.Type)})
	}
	for _, c := range t.Cases {
		n.Cases = append(n.Cases, Case{Name: c.Name, Type: part(c.Type)})
	}
	if t.Resource != nil {
		n.Resource = u.Resource(t.Resource)
	}
	if err != nil {
		return nil, err
	}
	made, err := u.set.Intern(&n)
	u.types[t] = made
	return made, err
}

// Func substitutes in a function's type.
func (u *Subst) Func(f *Func) (*Func, error) {
	out := &Func{Async: f.Async, Params: make([]Param, len(f.Params))}
	if err := u.set.spend(len(f.Params)); err != nil {
		return nil, err
	}
	for i, p := range f.Params {
		t, err := u.Type(p.Type)
		if err != nil {
			return nil, err
		}
		out.Params[i] = Param{Name: p.Name, Type: t}
	}
	var err error
	out.Result, err = u.Type(f.Result)
	return out, err
}

// Extern substitutes in the type of an import or export.
func (u *Subst) Extern(e Extern) (out Extern, err error) {
	out = Extern{Sort: e.Sort, Module: e.Module}
	if len(u.to) == 0 {
		return e, nil
	}
	switch e.Sort {
	case Funcs:
		out.Func, err = u.Func(e.Func)
	case Instances:
		out.Instance, err = u.Instance(e.Instance)
	case Components:
		out.Component, err = u.Component(e.Component)
	case Types:
		out.Def, err = u.Def(e.Def)
	default:
	}
	return out, err
}

// Def substitutes in a definition.
func (u *Subst) Def(d *Def) (out *Def, err error) {
	out = &Def{}
	switch {
	case d.Resource != nil:
		out.Resource = u.Resource(d.Resource)
	case d.Value != nil:
		out.Value, err = u.Type(d.Value)
	case d.Func != nil:
		out.Func, err = u.Func(d.Func)
	case d.Instance != nil:
		out.Instance, err = u.Instance(d.Instance)
	case d.Component != nil:
		out.Component, err = u.Component(d.Component)
	}
	return out, err
}

func (u *Subst) all(in []Named) ([]Named, error) {
	out := make([]Named, len(in))
	for i, n := range in {
		if err := u.set.spend(1); err != nil {
			return nil, err
		}
		e, err := u.Extern(n.Extern)
		if err != nil {
			return nil, err
		}
		out[i] = Named{Name: n.Name, Extern: e}
	}
	return out, nil
}

// Instance substitutes in an instance's type.
func (u *Subst) Instance(i *Instance) (*Instance, error) {
	if done := u.insts[i]; done != nil {
		return done, nil
	}
	exports, err := u.all(i.Exports)
	out := &Instance{Exports: exports}
	for _, r := range i.Fresh {
		out.Fresh = append(out.Fresh, u.Resource(r))
	}
	u.insts[i] = out
	return out, err
}

// Component substitutes in a component's type.
func (u *Subst) Component(c *Component) (*Component, error) {
	if done := u.comps[c]; done != nil {
		return done, nil
	}
	imports, err := u.all(c.Imports)
	if err != nil {
		return nil, err
	}
	exports, err := u.all(c.Exports)
	out := &Component{Imports: imports, Exports: exports, Open: c.Open, Fresh: c.Fresh}
	u.comps[c] = out
	return out, err
}

// Freshen gives an instance type resource types of its own where it declares fresh ones.
func (s *Set) Freshen(i *Instance) (*Instance, error) {
	if len(i.Fresh) == 0 {
		return i, nil
	}
	u := s.NewSubst()
	for _, r := range i.Fresh {
		u.to[r] = s.NewResource(r.Name)
	}
	return u.Instance(i)
}

const maxSteps = 1 << 20

// Spend is spend for who looks at types of the set elsewhere.
func (s *Set) Spend(n int) error { return s.spend(n) }

// spend counts the work of comparing and substituting over the whole of a component: types of a
// few hundred bytes may ask for any amount of it.
func (s *Set) spend(n int) error {
	if s.steps += n; s.steps > maxSteps {
		return fmt.Errorf("its types take more than %d steps to compare", maxSteps)
	}
	return nil
}
