// SPDX-License-Identifier: Apache-2.0

package ctype

import "fmt"

// Match checks that something of type a may stand where b is expected. Resource types of b that
// are in open and not bound in u yet are bound to what a has in their place.
func (u *Subst) Match(a, b Extern, open map[*Resource]bool) error {
	if err := u.set.spend(1); err != nil {
		return err
	}
	if a.Sort != b.Sort {
		return fmt.Errorf("type mismatch: expected %s, found %s", b.Sort, a.Sort)
	}
	switch b.Sort {
	case Core0:
		return matchModule(a.Module, b.Module)
	case Funcs:
		return u.matchFunc(a.Func, b.Func)
	case Types:
		return u.matchDef(a.Def, b.Def, open)
	case Instances:
		return u.matchExports(a.Instance.Export, b.Instance.Exports, open)
	case Components:
		return u.matchComponent(a.Component, b.Component)
	default:
	}
	return fmt.Errorf("a %s cannot be given", b.Sort)
}

// widened is open with more resource types.
func widened(open map[*Resource]bool, more []*Resource) map[*Resource]bool {
	if len(more) == 0 {
		return open
	}
	out := make(map[*Resource]bool, len(open)+len(more))
	for r := range open {
		out[r] = true
	}
	for _, r := range more {
		out[r] = true
	}
	return out
}

func (u *Subst) matchDef(a, b *Def, open map[*Resource]bool) error {
	switch {
	case b.Resource != nil && a.Resource == nil:
		return fmt.Errorf("expected resource, found defined type (%s)", a.what())
	case b.Resource == nil && a.Resource != nil:
		return fmt.Errorf("expected defined type (%s), found resource", b.what())
	case b.Resource != nil:
		if open[b.Resource] && !u.Bound(b.Resource) {
			u.Bind(b.Resource, a.Resource)
			return nil
		}
		if u.Resource(b.Resource) != a.Resource {
			return errResource
		}
		return nil
	case b.Value != nil && a.Value != nil:
		return u.matchType(a.Value, b.Value)
	case b.Func != nil && a.Func != nil:
		return u.matchFunc(a.Func, b.Func)
	case b.Instance != nil && a.Instance != nil:
		return u.equal(Extern{Sort: Instances, Instance: a.Instance}, Extern{Sort: Instances, Instance: b.Instance})
	case b.Component != nil && a.Component != nil:
		return u.equal(Extern{Sort: Components, Component: a.Component}, Extern{Sort: Components, Component: b.Component})
	}
	return fmt.Errorf("type mismatch: expected %s, found %s", b.what(), a.what())
}

// equal checks that either type may stand for the other.
func (u *Subst) equal(a, b Extern) error {
	if err := u.Match(a, b, declared(b)); err != nil {
		return err
	}
	b, err := u.Extern(b)
	if err != nil {
		return err
	}
	return u.set.NewSubst().Match(b, a, declared(a))
}

// declared are the resource types that an instance's type declares.
func declared(e Extern) map[*Resource]bool {
	if e.Instance == nil {
		return nil
	}
	return widened(nil, e.Instance.Fresh)
}

var errResource = fmt.Errorf("resource types are not the same")

// matchType checks that value types are equal.
func (u *Subst) matchType(a, b *Type) error {
	b, err := u.Type(b)
	if err != nil || a == b {
		return err
	}
	return differ(a, b)
}

// differ says in what two types differ.
func differ(a, b *Type) error {
	if a == nil || b == nil {
		return differPresence(a, b)
	}
	if a.Kind != b.Kind {
		if a.Kind <= String && b.Kind <= String {
			return fmt.Errorf("expected primitive `%s` found primitive `%s`", b, a)
		}
		if b.Kind <= String && a.Kind > String && a.Kind != Own && a.Kind != Borrow {
			return fmt.Errorf("type mismatch: expected %s, found %s (expected primitive, found %s)", b.Kind, a.Kind, a.Kind)
		}
		return fmt.Errorf("type mismatch: expected %s, found %s", b.Kind, a.Kind)
	}
	switch a.Kind {
	case Own, Borrow:
		return errResource
	case List, Option, FixedList, Map:
		if a.Elem != b.Elem {
			return differ(a.Elem, b.Elem)
		}
	case Record, Tuple:
		return differFields(a, b)
	case Variant, Enum, Result:
		return differCases(a, b)
	default:
	}
	return fmt.Errorf("type mismatch in %s elements", a.Kind)
}

func differPresence(a, b *Type) error {
	if a == nil {
		return fmt.Errorf("type mismatch: expected %s, found none", b)
	}
	return fmt.Errorf("type mismatch: expected none, found %s", a)
}

func differFields(a, b *Type) error {
	if len(a.Fields) != len(b.Fields) {
		what := "fields"
		if a.Kind == Tuple {
			what = "types"
		}
		return fmt.Errorf("type mismatch: expected %d %s, found %d", len(b.Fields), what, len(a.Fields))
	}
	for i, f := range b.Fields {
		if g := a.Fields[i]; g.Name != f.Name {
			return fmt.Errorf("type mismatch: expected field name `%s`, found `%s`", f.Name, g.Name)
		} else if g.Type != f.Type {
			name := fmt.Sprintf("`%s`", f.Name)
			if a.Kind == Tuple {
				name = fmt.Sprint(i)
			}
			return fmt.Errorf("type mismatch in %s field %s: %w", a.Kind, name, differ(g.Type, f.Type))
		}
	}
	return fmt.Errorf("type mismatch in %s", a.Kind)
}

func differCases(a, b *Type) error {
	if a.Kind == Enum {
		return fmt.Errorf("type mismatch in enum elements")
	}
	if len(a.Cases) != len(b.Cases) {
		return fmt.Errorf("type mismatch: expected %d cases, found %d", len(b.Cases), len(a.Cases))
	}
	for i, c := range b.Cases {
		d := a.Cases[i]
		switch {
		case c.Name != d.Name:
			return fmt.Errorf("type mismatch: expected case named `%s`, found `%s`", c.Name, d.Name)
		case c.Type == nil && d.Type != nil:
			return fmt.Errorf("type mismatch: expected case `%s` to have no type (expected %s type to not be present)", c.Name, briefCase(c.Name))
		case c.Type != nil && d.Type == nil:
			return fmt.Errorf("type mismatch: expected case `%s` to have a type, found none (expected %s type, but found none)", c.Name, briefCase(c.Name))
		case c.Type != d.Type:
			return fmt.Errorf("type mismatch in %s case `%s` (type mismatch in %s variant): %w", a.Kind, c.Name, briefCase(c.Name), differ(d.Type, c.Type))
		}
	}
	return fmt.Errorf("type mismatch in %s", a.Kind)
}

func briefCase(name string) string {
	if name == "error" {
		return "err"
	}
	return name
}

func (u *Subst) matchFunc(a, b *Func) error {
	if a.Async != b.Async {
		return fmt.Errorf("type mismatch: one function is async and the other is not")
	}
	if len(a.Params) != len(b.Params) {
		return fmt.Errorf("expected %d parameters, found %d", len(b.Params), len(a.Params))
	}
	if err := u.set.spend(len(b.Params)); err != nil {
		return err
	}
	for i, p := range b.Params {
		q := a.Params[i]
		if p.Name != q.Name {
			return fmt.Errorf("expected parameter named `%s`, found `%s`", p.Name, q.Name)
		}
		if err := u.matchType(q.Type, p.Type); err != nil {
			return fmt.Errorf("type mismatch in function parameter `%s`: %w", p.Name, err)
		}
	}
	switch {
	case a.Result == nil && b.Result != nil:
		return fmt.Errorf("expected a result, found none")
	case a.Result != nil && b.Result == nil:
		return fmt.Errorf("expected no result, found one")
	case a.Result == nil:
		return nil
	}
	if err := u.matchType(a.Result, b.Result); err != nil {
		return fmt.Errorf("type mismatch with result type: %w", err)
	}
	return nil
}

// matchExports checks what is given by name against what is expected, in the order in which it
// was declared: types come before what names them.
func (u *Subst) matchExports(given func(string) *Extern, expected []Named, open map[*Resource]bool) error {
	for _, e := range expected {
		g := given(e.Name)
		if g == nil {
			return fmt.Errorf("missing expected export `%s`", e.Name)
		}
		if err := u.Match(*g, e.Extern, open); err != nil {
			return fmt.Errorf("type mismatch in instance export `%s`: %w", e.Name, err)
		}
	}
	return nil
}

// matchComponent instantiates a with what b imports, and expects b's exports of it.
func (u *Subst) matchComponent(a, b *Component) error {
	b, err := u.Component(b)
	if err != nil {
		return err
	}
	in := u.set.NewSubst()
	open := widened(nil, a.Open)
	for _, i := range a.Imports {
		g := b.Import(i.Name)
		if g == nil {
			return fmt.Errorf("missing expected import `%s`", i.Name)
		}
		if err := in.Match(*g, i.Extern, open); err != nil {
			return fmt.Errorf("type mismatch in import `%s`: %w", i.Name, err)
		}
	}
	exports, err := in.all(a.Exports)
	if err != nil {
		return err
	}
	made := &Instance{Exports: exports}
	out := u.set.NewSubst()
	for _, e := range b.Exports {
		g := made.Export(e.Name)
		if g == nil {
			return fmt.Errorf("missing expected export `%s`", e.Name)
		}
		if err := out.Match(*g, e.Extern, widened(nil, b.Fresh)); err != nil {
			return fmt.Errorf("type mismatch in export `%s`: %w", e.Name, err)
		}
	}
	return nil
}

// Instantiate is the type of an instance of c. given finds what is given for an import; what it
// makes of resource types that c leaves open comes back.
func (s *Set) Instantiate(c *Component, given func(name string) *Extern) (*Instance, *Subst, error) {
	u := s.NewSubst()
	open := widened(nil, c.Open)
	for _, i := range c.Imports {
		g := given(i.Name)
		if g == nil {
			return nil, nil, fmt.Errorf("missing import named `%s`", i.Name)
		}
		if err := u.Match(*g, i.Extern, open); err != nil {
			return nil, nil, fmt.Errorf("import `%s`: %w", i.Name, err)
		}
	}
	for _, r := range c.Fresh {
		u.Bind(r, s.NewResource(r.Name))
	}
	exports, err := u.all(c.Exports)
	if err != nil {
		return nil, nil, err
	}
	return &Instance{Exports: exports}, u, nil
}

func matchModule(a, b *Module) error {
	if len(b.Exports)+len(a.Imports) > 1<<16 {
		return fmt.Errorf("too many imports and exports to compare")
	}
	type key struct{ module, name string }
	offered := map[key]*CoreExtern{}
	for i := range b.Imports {
		offered[key{b.Imports[i].Module, b.Imports[i].Name}] = &b.Imports[i].Type
	}
	for _, i := range a.Imports {
		g := offered[key{i.Module, i.Name}]
		if g == nil {
			return fmt.Errorf("missing expected import `%s::%s`", i.Module, i.Name)
		}
		if err := MatchCore(g, &i.Type); err != nil {
			return fmt.Errorf("type mismatch in import `%s::%s`: %w", i.Module, i.Name, err)
		}
	}
	for _, e := range b.Exports {
		g := a.Export(e.Name)
		if g == nil {
			return fmt.Errorf("missing expected export `%s`", e.Name)
		}
		if err := MatchCore(g, &e.Type); err != nil {
			return fmt.Errorf("type mismatch in export `%s`: %w", e.Name, err)
		}
	}
	return nil
}

// MatchCore checks that something core of type a may stand where b is expected.
func MatchCore(a, b *CoreExtern) error {
	if a.Sort != b.Sort {
		return fmt.Errorf("type mismatch: expected %s, found %s", b.Sort, a.Sort)
	}
	switch b.Sort {
	case CoreFuncs:
		if !a.Func.Equal(b.Func) {
			return fmt.Errorf("type mismatch: expected: %s, found: %s", b.Func, a.Func)
		}
	case CoreGlobals:
		if a.Value != b.Value || a.Mutable != b.Mutable {
			return fmt.Errorf("type mismatch: expected global type %s, found %s", b.global(), a.global())
		}
	case CoreTables:
		if a.Value != b.Value {
			return fmt.Errorf("type mismatch: expected table element type %s, found %s", b.Value, a.Value)
		}
		return matchLimits(a, b, "table")
	case CoreMemories:
		if a.Shared != b.Shared {
			return fmt.Errorf("mismatch in the shared flag for memories")
		}
		return matchLimits(a, b, "memory")
	default:
	}
	return nil
}

func matchLimits(a, b *CoreExtern, what string) error {
	if a.Wide != b.Wide || a.Min < b.Min || b.HasMax && (!a.HasMax || a.Max > b.Max) {
		return fmt.Errorf("mismatch in %s limits", what)
	}
	return nil
}

func (e *CoreExtern) global() string {
	if e.Mutable {
		return "mut " + e.Value.String()
	}
	return e.Value.String()
}

// String names a core type.
func (c Core) String() string {
	switch c {
	case I32:
		return "i32"
	case I64:
		return "i64"
	case CoreF32:
		return "f32"
	case CoreF64:
		return "f64"
	case V128:
		return "v128"
	case FuncRef:
		return "funcref"
	case ExternRef:
		return "externref"
	}
	return fmt.Sprintf("core type 0x%x", byte(c))
}

// String is the type as the text format writes it.
func (f *CoreFunc) String() string {
	out := "(func"
	for i, p := range f.Params {
		if i == 0 {
			out += " (param"
		}
		out += " " + p.String()
	}
	if len(f.Params) > 0 {
		out += ")"
	}
	for i, r := range f.Results {
		if i == 0 {
			out += " (result"
		}
		out += " " + r.String()
	}
	if len(f.Results) > 0 {
		out += ")"
	}
	return out + ")"
}
