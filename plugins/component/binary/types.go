// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"fmt"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// primitives are numbered downwards from 0x7f.
var primitives = map[byte]ctype.Kind{
	0x7f: ctype.Bool, 0x7e: ctype.S8, 0x7d: ctype.U8, 0x7c: ctype.S16, 0x7b: ctype.U16, 0x7a: ctype.S32, 0x79: ctype.U32,
	0x78: ctype.S64, 0x77: ctype.U64, 0x76: ctype.F32, 0x75: ctype.F64, 0x74: ctype.Char, 0x73: ctype.String,
}

const howSync = "build the component for WASI 0.2, without asynchronous functions (componentize-qjs: --sync; wit-bindgen: no --async)"

// readType reads one entry of the type section, and adds it.
func (s *scope) readType(r *reader) error {
	d := &ctype.Def{}
	var err error
	switch form := r.byte(); form {
	case 0x40, 0x43:
		d.Func, err = s.readFuncType(r, form == 0x43)
	case 0x41:
		d.Component, err = s.readComponentType(r)
	case 0x42:
		d.Instance, err = s.readInstanceType(r)
	case 0x3f:
		return s.readResource(r)
	default:
		if r.err == nil {
			d.Value, err = s.readDefined(r, form)
		}
	}
	if r.err != nil {
		return r.err
	}
	if err != nil {
		return err
	}
	return s.add(ctype.Extern{Sort: ctype.Types, Def: d})
}

// readValue reads a reference to a value type: a primitive, or an index.
func (s *scope) readValue(r *reader) (*ctype.Type, error) {
	at := r.pos
	v := r.s33()
	if r.err != nil {
		return nil, r.err
	}
	if v >= 0 {
		return s.valueType(uint32(v))
	}
	if k, ok := primitives[byte(v)&0x7f]; ok && v >= -64 {
		return s.set.Primitive(k), nil
	}
	if byte(v)&0x7f == 0x64 && v >= -64 {
		return nil, fmt.Errorf("error contexts are not supported: %s", howSync)
	}
	r.pos = at
	r.invalid(r.byte(), "component value type")
	return nil, r.err
}

func (s *scope) readOptional(r *reader, what string) (*ctype.Type, error) {
	switch b := r.byte(); {
	case b == 1:
		return s.readValue(r)
	case b > 1:
		r.invalid(b, what)
	}
	return nil, r.err
}

// readDefined reads a value type that has a definition.
func (s *scope) readDefined(r *reader, form byte) (*ctype.Type, error) {
	if k, ok := primitives[form]; ok {
		return s.set.Primitive(k), nil
	}
	t := &ctype.Type{}
	var err error
	switch form {
	case 0x72:
		t.Kind = ctype.Record
		t.Fields, err = s.readFields(r, true)
	case 0x71:
		t.Kind = ctype.Variant
		t.Cases, err = s.readCases(r)
	case 0x70:
		t.Kind = ctype.List
		t.Elem, err = s.readValue(r)
	case 0x67:
		t.Kind = ctype.FixedList
		if t.Elem, err = s.readValue(r); err == nil {
			if t.Len = r.u32(); t.Len == 0 && r.err == nil {
				err = fmt.Errorf("a list of a fixed length has at least one element")
			}
		}
	case 0x6f:
		t.Kind = ctype.Tuple
		t.Fields, err = s.readFields(r, false)
	case 0x6e:
		t.Kind = ctype.Flags
		t.Labels, err = readLabels(r, "flag name", "flags must have at least one entry")
		if err == nil && len(t.Labels) > 32 {
			err = fmt.Errorf("cannot have more than 32 flags")
		}
	case 0x6d:
		t.Kind = ctype.Enum
		var labels []string
		labels, err = readLabels(r, "enum tag name", "enum type must have at least one variant")
		for _, l := range labels {
			t.Cases = append(t.Cases, ctype.Case{Name: l})
		}
	case 0x6b:
		t.Kind = ctype.Option
		if t.Elem, err = s.readValue(r); err == nil {
			t.Cases = []ctype.Case{{Name: "none"}, {Name: "some", Type: t.Elem}}
		}
	case 0x6a:
		t.Kind = ctype.Result
		err = s.readResult(r, t)
	case 0x69, 0x68:
		t.Kind = ctype.Own
		if form == 0x68 {
			t.Kind = ctype.Borrow
		}
		t.Resource, err = s.resource(r.u32())
	case 0x66, 0x65:
		return nil, fmt.Errorf("streams and futures are not supported: %s", howSync)
	case 0x64:
		return nil, fmt.Errorf("error contexts are not supported: %s", howSync)
	case 0x63:
		t.Kind = ctype.Map
		t.Elem, err = s.readEntry(r)
	default:
		r.invalid(form, "component defined type")
	}
	if r.err != nil {
		return nil, r.err
	}
	if err != nil {
		return nil, err
	}
	return s.set.Intern(t)
}

// readEntry reads key and value of a map, as the tuple that its entries are.
func (s *scope) readEntry(r *reader) (*ctype.Type, error) {
	k, err := s.readValue(r)
	if err != nil {
		return nil, err
	}
	if k.Kind > ctype.String || k.Kind == ctype.F32 || k.Kind == ctype.F64 {
		return nil, fmt.Errorf("a map has keys of a simple type, not %s", k)
	}
	v, err := s.readValue(r)
	if err != nil {
		return nil, err
	}
	return s.set.Intern(&ctype.Type{Kind: ctype.Tuple, Fields: []ctype.Field{{Type: k}, {Type: v}}})
}

func (s *scope) readResult(r *reader, t *ctype.Type) error {
	ok, err := s.readOptional(r, "optional type")
	if err != nil {
		return err
	}
	failed, err := s.readOptional(r, "optional type")
	t.Cases = []ctype.Case{{Name: "ok", Type: ok}, {Name: "error", Type: failed}}
	return err
}

// distinct refuses names that differ in nothing but their case.
type distinct map[string]string

func (d distinct) add(what, name, previous string) error {
	if err := ctype.CheckLabel(what, name); err != nil {
		return err
	}
	key := strings.ToLower(name)
	if known, ok := d[key]; ok {
		return fmt.Errorf("%s `%s` conflicts with previous %s `%s`", what, name, previous, known)
	}
	d[key] = name
	return nil
}

func (s *scope) readFields(r *reader, named bool) ([]ctype.Field, error) {
	what, none := "record field name", "record type must have at least one field"
	if !named {
		none = "tuple type must have at least one type"
	}
	n := r.count("members of a type", maxArgs)
	if n == 0 && r.err == nil {
		return nil, fmt.Errorf("%s", none)
	}
	var out []ctype.Field
	names := distinct{}
	for ; n > 0 && r.err == nil; n-- {
		var f ctype.Field
		if named {
			f.Name = r.name()
			if r.err != nil {
				break
			}
			if err := names.add(what, f.Name, "field name"); err != nil {
				return nil, err
			}
		}
		var err error
		if f.Type, err = s.readValue(r); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, r.err
}

func (s *scope) readCases(r *reader) ([]ctype.Case, error) {
	n := r.count("cases of a variant", maxArgs)
	if n == 0 && r.err == nil {
		return nil, fmt.Errorf("variant type must have at least one case")
	}
	var out []ctype.Case
	names := distinct{}
	for ; n > 0 && r.err == nil; n-- {
		c := ctype.Case{Name: r.name()}
		if r.err != nil {
			break
		}
		if err := names.add("variant case name", c.Name, "case name"); err != nil {
			return nil, err
		}
		var err error
		if c.Type, err = s.readOptional(r, "optional type"); err != nil {
			return nil, err
		}
		r.expect(0, "zero byte required")
		out = append(out, c)
	}
	return out, r.err
}

func readLabels(r *reader, what, none string) ([]string, error) {
	n := r.count("labels of a type", maxArgs)
	if n == 0 && r.err == nil {
		return nil, fmt.Errorf("%s", none)
	}
	var out []string
	names := distinct{}
	for ; n > 0 && r.err == nil; n-- {
		l := r.name()
		if r.err != nil {
			break
		}
		if err := names.add(what, l, strings.TrimPrefix(what, "enum ")); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, r.err
}

func (s *scope) readFuncType(r *reader, async bool) (*ctype.Func, error) {
	f := &ctype.Func{Async: async}
	names := distinct{}
	for n := r.count("parameters of a function", maxArgs); n > 0 && r.err == nil; n-- {
		p := ctype.Param{Name: r.name()}
		if r.err != nil {
			break
		}
		if err := names.add("function parameter name", p.Name, "parameter name"); err != nil {
			return nil, err
		}
		var err error
		if p.Type, err = s.readValue(r); err != nil {
			return nil, err
		}
		f.Params = append(f.Params, p)
	}
	var err error
	if f.Result, err = s.readResults(r); err != nil {
		return nil, err
	}
	if err := s.define(len(f.Params)); err != nil {
		return nil, err
	}
	if f.Result != nil && f.Result.Borrows {
		return nil, fmt.Errorf("function result cannot contain a `borrow` type")
	}
	return f, r.err
}

func (s *scope) readResults(r *reader) (*ctype.Type, error) {
	switch b := r.byte(); b {
	case 0:
		return s.readValue(r)
	case 1:
		r.expect(0, "number of results")
	default:
		if r.err == nil {
			r.invalid(b, "component function results")
		}
	}
	return nil, r.err
}

func (s *scope) readResource(r *reader) error {
	rep := readCoreValue(r)
	d := &DefineResource{}
	switch b := r.byte(); {
	case b == 1:
		i := r.u32()
		d.Dtor = &i
	case b > 1:
		r.invalid(b, "optional destructor")
	}
	if r.err != nil {
		return r.err
	}
	if s.kind != ofComponent {
		return fmt.Errorf("resources can only be defined within a concrete component")
	}
	if rep != ctype.I32 {
		return fmt.Errorf("resources can only be represented by `i32`")
	}
	if d.Dtor != nil {
		f, err := get(s.coreFuncs, *d.Dtor, "core function")
		if err != nil {
			return err
		}
		if !f.Equal(&ctype.CoreFunc{Params: []ctype.Core{ctype.I32}}) {
			return fmt.Errorf("wrong signature for a destructor: core function %d has type %s", *d.Dtor, f)
		}
	}
	d.Resource = s.set.NewResource("resource")
	s.local[d.Resource] = true
	s.typ.Fresh = append(s.typ.Fresh, d.Resource)
	s.defs = append(s.defs, d)
	return s.add(ctype.Extern{Sort: ctype.Types, Def: &ctype.Def{Resource: d.Resource}})
}

func (s *scope) readInstanceType(r *reader) (*ctype.Instance, error) {
	in, err := s.readDeclarations(r, ofInstanceType)
	if err != nil {
		return nil, err
	}
	t := &ctype.Instance{Exports: in.typ.Exports, Fresh: in.typ.Fresh}
	return t, s.weigh(t)
}

func (s *scope) readComponentType(r *reader) (*ctype.Component, error) {
	in, err := s.readDeclarations(r, ofComponentType)
	if err != nil {
		return nil, err
	}
	t := in.typ
	return &t, nil
}

func (s *scope) readDeclarations(r *reader, kind scopeKind) (*scope, error) {
	in, err := s.decoder.scope(s, kind)
	if err != nil {
		return nil, err
	}
	n := r.count("declarations of a type", 1<<16)
	for i := uint32(0); i < n && r.err == nil; i++ {
		if err := in.readDeclaration(r); err != nil {
			return nil, fmt.Errorf("declaration %d: %w", i, err)
		}
	}
	return in, r.err
}

func (s *scope) readDeclaration(r *reader) error {
	switch b := r.byte(); {
	case r.err != nil:
		return r.err
	case b == 0:
		return s.readCoreType(r)
	case b == 1:
		return s.readType(r)
	case b == 2:
		return s.readAlias(r)
	case b == 3 && s.kind == ofComponentType:
		return s.readImport(r)
	case b == 4:
		return s.readExportDeclaration(r)
	default:
		r.invalid(b, "component or instance type declaration")
		return r.err
	}
}

// readExtern reads the type of an import or export. Resource types that it leaves open are new ones; they
// are put into fresh.
func (s *scope) readExtern(r *reader, fresh *[]*ctype.Resource, name string) (e ctype.Extern, err error) {
	kind := r.byte()
	e.Sort = ctype.Sort(kind)
	switch e.Sort {
	case ctype.Core0:
		r.expect(byte(ctype.CoreModules), "component external kind")
		i := r.u32()
		if r.err != nil {
			return e, r.err
		}
		var d coreDef
		if d, err = get(s.coreTypes, i, "core type"); err == nil && d.module == nil {
			err = fmt.Errorf("core type index %d is not a module type", i)
		}
		e.Module = d.module
	case ctype.Funcs:
		e.Func, err = s.funcType(r.u32())
	case ctype.Types:
		e.Def, err = s.readBound(r, fresh, name)
	case ctype.Components, ctype.Instances:
		err = s.readTypeIndex(r, &e, fresh)
	case ctype.Values:
		err = errValues
	default:
		if r.err == nil {
			r.invalid(kind, "component external kind")
		}
	}
	if r.err != nil {
		return e, r.err
	}
	return e, err
}

func (s *scope) readTypeIndex(r *reader, e *ctype.Extern, fresh *[]*ctype.Resource) error {
	i := r.u32()
	if r.err != nil {
		return r.err
	}
	d, err := s.typeAt(i)
	if err != nil {
		return err
	}
	if e.Sort == ctype.Components {
		if e.Component = d.Component; d.Component == nil {
			return fmt.Errorf("type index %d is not a component type", i)
		}
		return nil
	}
	if d.Instance == nil {
		return fmt.Errorf("type index %d is not an instance type", i)
	}
	if e.Instance, err = s.set.Freshen(d.Instance); err != nil {
		return err
	}
	// From here on they belong to the scope; the instance's type declares none of its own.
	*fresh = append(*fresh, e.Instance.Fresh...)
	e.Instance = &ctype.Instance{Exports: e.Instance.Exports}
	return nil
}

func (s *scope) readBound(r *reader, fresh *[]*ctype.Resource, name string) (*ctype.Def, error) {
	switch b := r.byte(); b {
	case 0:
		return s.typeAt(r.u32())
	case 1:
		made := s.set.NewResource(name)
		*fresh = append(*fresh, made)
		return &ctype.Def{Resource: made}, nil
	default:
		if r.err == nil {
			r.invalid(b, "type bound")
		}
		return nil, r.err
	}
}

// readCoreType reads one entry of the core type section, and adds it.
func (s *scope) readCoreType(r *reader) error {
	var d coreDef
	var err error
	switch form := r.byte(); form {
	case 0x60:
		d.fn = readFuncType(r)
	case 0x50:
		d.module, err = s.readModuleType(r)
	case 0x00, 0x4e, 0x4f, 0x5e, 0x5f:
		return fmt.Errorf("core types other than functions are not supported")
	default:
		if r.err == nil {
			r.invalid(form, "type definition")
		}
	}
	if r.err != nil {
		return r.err
	}
	if err != nil {
		return err
	}
	s.coreTypes = append(s.coreTypes, d)
	return s.define(1)
}

// readModuleType reads the type of a core module.
func (s *scope) readModuleType(r *reader) (*ctype.Module, error) {
	m := &ctype.Module{}
	var types []*ctype.CoreFunc
	seen := map[string]bool{}
	for n := r.count("declarations of a module type", maxArgs); n > 0 && r.err == nil; n-- {
		switch b := r.byte(); b {
		case 0:
			i := ctype.CoreImport{Module: r.name(), Name: r.name()}
			i.Type = readTypedExtern(r, types)
			if key := fmt.Sprintf("i%q %q", i.Module, i.Name); seen[key] && r.err == nil {
				return nil, fmt.Errorf("duplicate import name `%s:%s`", i.Module, i.Name)
			} else if seen[key] = true; r.err == nil {
				m.Imports = append(m.Imports, i)
			}
		case 1:
			types = append(types, readFuncForm(r))
		case 2:
			t, err := s.readCoreOuter(r)
			if err != nil {
				return nil, err
			}
			types = append(types, t)
		case 3:
			e := ctype.CoreExport{Name: r.name()}
			e.Type = readTypedExtern(r, types)
			if seen["e"+e.Name] && r.err == nil {
				return nil, fmt.Errorf("export name `%s` already defined", e.Name)
			}
			seen["e"+e.Name] = true
			m.Exports = append(m.Exports, e)
		default:
			if r.err == nil {
				r.invalid(b, "type definition")
			}
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return m, s.define(len(m.Imports) + len(m.Exports))
}

// readCoreOuter reads an alias of an enclosing scope's core type; the module type itself is a scope.
func (s *scope) readCoreOuter(r *reader) (*ctype.CoreFunc, error) {
	r.expect(byte(ctype.CoreTypes), "outer alias kind")
	r.expect(1, "outer alias target")
	count, i := r.u32(), r.u32()
	if r.err != nil {
		return nil, r.err
	}
	if count == 0 {
		return nil, fmt.Errorf("type index out of bounds: a module type's own types are not aliased")
	}
	at, _, err := s.outer(count - 1)
	if err != nil {
		return nil, fmt.Errorf("invalid outer alias count of %d", count)
	}
	d, err := get(at.coreTypes, i, "type")
	if err == nil && d.fn == nil {
		err = fmt.Errorf("core type %d is not a function type", i)
	}
	return d.fn, err
}

func readTypedExtern(r *reader, types []*ctype.CoreFunc) ctype.CoreExtern {
	switch kind := r.byte(); kind {
	case 0:
		f, err := get(types, r.u32(), "type")
		if err != nil {
			r.fail("%w", err)
		}
		return ctype.CoreExtern{Sort: ctype.CoreFuncs, Func: f}
	case 1, 2, 3:
		return readCoreExtern(r, kind)
	case 4:
		r.fail("tags (exceptions) are not supported")
	default:
		if r.err == nil {
			r.invalid(kind, "a core external kind")
		}
	}
	return ctype.CoreExtern{}
}
