// SPDX-License-Identifier: Apache-2.0

package ctype

import "fmt"

// Names are the imports or the exports of a scope.
type Names struct {
	seen      map[string]string    // by canonical form
	resources map[string]*Resource // types that are resources, by name
	visible   map[*Type]bool       // value types that have a name
	handles   map[*Resource]bool   // resource types that have one
}

// NewNames makes an empty scope.
func NewNames() *Names {
	return &Names{map[string]string{}, map[string]*Resource{}, map[*Type]bool{}, map[*Resource]bool{}}
}

// Add refuses a name that conflicts with another, or that is annotated and does not fit its type.
func (n *Names) Add(what string, name *Name, e Extern) error {
	key := name.Canonical()
	if known, ok := n.seen[key]; ok {
		return fmt.Errorf("%s name `%s` conflicts with previous name `%s`", what, name.Text, known)
	}
	n.seen[key] = name.Text
	if name.Annotation != "" {
		if err := n.checkAnnotation(name, e); err != nil {
			return fmt.Errorf("%s `%s`: %w", what, name.Text, err)
		}
	}
	if e.Sort == Types && e.Def.Resource != nil && name.Annotation == "" {
		n.resources[name.Text] = e.Def.Resource
	}
	return nil
}

// checkAnnotation holds a function against what its name promises.
func (n *Names) checkAnnotation(name *Name, e Extern) error {
	if e.Sort != Funcs {
		return fmt.Errorf("%s is not a func", name.Text)
	}
	var of *Resource
	switch name.Annotation {
	case "constructor":
		of = constructed(e.Func.Result)
		if e.Func.Result == nil {
			return fmt.Errorf("function should return one value")
		}
		if of == nil {
			return fmt.Errorf("function should return `(own $T)` or `(result (own $T))`")
		}
	case "method":
		if len(e.Func.Params) == 0 {
			return fmt.Errorf("function should have at least one argument")
		}
		self := e.Func.Params[0]
		if self.Name != "self" {
			return fmt.Errorf("function should have a first argument called `self`")
		}
		if self.Type.Kind != Borrow {
			return fmt.Errorf("function should take a first argument of `(borrow $T)`")
		}
		of = self.Type.Resource
	default:
		if n.resources[name.Resource] == nil {
			return fmt.Errorf("static resource name is not known in this context")
		}
		return nil
	}
	found := ""
	for text, r := range n.resources {
		if r == of {
			if found = text; text == name.Resource {
				return nil
			}
		}
	}
	if found == "" {
		return fmt.Errorf("resource used in function does not have a name in this context")
	}
	return fmt.Errorf("function does not match expected resource name `%s`", found)
}

func constructed(t *Type) *Resource {
	if t != nil && t.Kind == Result {
		t = t.Cases[0].Type
	}
	if t == nil || t.Kind != Own {
		return nil
	}
	return t.Resource
}

// Show makes the types that an extern brings visible: others may name them from then on.
func (n *Names) Show(e Extern) {
	switch e.Sort {
	case Types:
		switch {
		case e.Def.Value != nil:
			n.visible[e.Def.Value] = true
		case e.Def.Resource != nil:
			n.handles[e.Def.Resource] = true
		}
	case Instances:
		for _, x := range e.Instance.Exports {
			n.Show(x.Extern)
		}
	default:
	}
}

// visibility looks whether types have names that others can use.
type visibility struct {
	set     *Set
	err     error
	in      []*Names
	checked map[*Type]bool
}

// check says whether an extern names only what is visible.
func (v *visibility) check(e Extern) bool {
	switch e.Sort {
	case Funcs:
		if v.err = v.set.spend(1 + len(e.Func.Params)); v.err != nil {
			return false
		}
		for _, p := range e.Func.Params {
			if !v.named(p.Type) {
				return false
			}
		}
		return e.Func.Result == nil || v.named(e.Func.Result)
	case Types:
		switch {
		case e.Def.Value != nil:
			return v.parts(e.Def.Value)
		case e.Def.Func != nil:
			return v.check(Extern{Sort: Funcs, Func: e.Def.Func})
		case e.Def.Instance != nil:
			return v.check(Extern{Sort: Instances, Instance: e.Def.Instance})
		}
	case Instances:
		own := NewNames()
		own.Show(e)
		in := visibility{set: v.set, in: append(append([]*Names(nil), v.in...), own), checked: map[*Type]bool{}}
		for _, x := range e.Instance.Exports {
			if !in.check(x.Extern) {
				v.err = in.err
				return false
			}
		}
	default:
	}
	return true
}

// named says whether a type can be written by who sees the names.
func (v *visibility) named(t *Type) bool {
	switch t.Kind {
	case Record, Variant, Enum, Flags:
		for _, n := range v.in {
			if n.visible[t] {
				return true
			}
		}
		return false
	default:
	}
	return v.parts(t)
}

func (v *visibility) parts(t *Type) bool {
	if v.checked[t] {
		return true
	}
	if v.err = v.set.spend(1 + len(t.Fields) + len(t.Cases)); v.err != nil {
		return false
	}
	v.checked[t] = true
	if t.Resource != nil {
		for _, n := range v.in {
			if n.handles[t.Resource] {
				return true
			}
		}
		return false
	}
	if t.Elem != nil && !v.named(t.Elem) {
		return false
	}
	for _, f := range t.Fields {
		if !v.named(f.Type) {
			return false
		}
	}
	for _, c := range t.Cases {
		if c.Type != nil && !v.named(c.Type) {
			return false
		}
	}
	return true
}

// Visible says whether an extern names only types that have a name in one of these scopes, or brings the name.
func (s *Set) Visible(e Extern, in ...*Names) (bool, error) {
	v := visibility{set: s, in: in, checked: map[*Type]bool{}}
	ok := v.check(e)
	return ok, v.err
}
