// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"fmt"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/bytereader"
	"github.com/wasmplane/wasmplane/plugins/component/coremodule"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// primitives are numbered downwards from 0x7f.
var primitives = map[byte]ctype.Kind{
	0x7f: ctype.Bool, 0x7e: ctype.S8, 0x7d: ctype.U8, 0x7c: ctype.S16, 0x7b: ctype.U16, 0x7a: ctype.S32, 0x79: ctype.U32,
	0x78: ctype.S64, 0x77: ctype.U64, 0x76: ctype.F32, 0x75: ctype.F64, 0x74: ctype.Char, 0x73: ctype.String,
}

const howSync = "build the component for WASI 0.2, without asynchronous functions (componentize-qjs: --sync; wit-bindgen: no --async)"

// readType reads one entry of the type section, and adds it.
func (s *scope) readType(r *bytereader.Reader) error {
	d := &ctype.Def{}
	var err error
	switch form := r.Byte(); form {
	case 0x40, 0x43:
		d.Func, err = s.readFuncType(r, form == 0x43)
	case 0x41:
		d.Component, err = s.readComponentType(r)
	case 0x42:
		d.Instance, err = s.readInstanceType(r)
	case 0x3f:
		return s.readResource(r)
	default:
		if r.Err == nil {
			d.Value, err = s.readDefined(r, form)
		}
	}
	if r.Err != nil {
		return r.Err
	}
	if err != nil {
		return err
	}
	return s.add(ctype.Extern{Sort: ctype.Types, Def: d})
}

// readValue reads a reference to a value type: a primitive, or an index.
func (s *scope) readValue(r *bytereader.Reader) (*ctype.Type, error) {
	at := r.Pos
	v := r.S33()
	if r.Err != nil {
		return nil, r.Err
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
	r.Pos = at
	r.Invalid(r.Byte(), "component value type")
	return nil, r.Err
}

func (s *scope) readOptional(r *bytereader.Reader, what string) (*ctype.Type, error) {
	switch b := r.Byte(); {
	case b == 1:
		return s.readValue(r)
	case b > 1:
		r.Invalid(b, what)
	}
	return nil, r.Err
}

// readDefined reads a value type that has a definition.
func (s *scope) readDefined(r *bytereader.Reader, form byte) (*ctype.Type, error) {
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
			if t.Len = r.U32(); t.Len == 0 && r.Err == nil {
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
		t.Resource, err = s.resource(r.U32())
	case 0x66, 0x65:
		return nil, fmt.Errorf("streams and futures are not supported: %s", howSync)
	case 0x64:
		return nil, fmt.Errorf("error contexts are not supported: %s", howSync)
	case 0x63:
		t.Kind = ctype.Map
		t.Elem, err = s.readEntry(r)
	default:
		r.Invalid(form, "component defined type")
	}
	if r.Err != nil {
		return nil, r.Err
	}
	if err != nil {
		return nil, err
	}
	return s.set.Intern(t)
}

// readEntry reads key and value of a map, as the tuple that its entries are.
func (s *scope) readEntry(r *bytereader.Reader) (*ctype.Type, error) {
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

func (s *scope) readResult(r *bytereader.Reader, t *ctype.Type) error {
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

func (s *scope) readFields(r *bytereader.Reader, named bool) ([]ctype.Field, error) {
	what, none := "record field name", "record type must have at least one field"
	if !named {
		none = "tuple type must have at least one type"
	}
	n := r.Count("members of a type", bytereader.MaxArgs)
	if n == 0 && r.Err == nil {
		return nil, fmt.Errorf("%s", none)
	}
	var out []ctype.Field
	names := distinct{}
	for ; n > 0 && r.Err == nil; n-- {
		var f ctype.Field
		if named {
			f.Name = r.Name()
			if r.Err != nil {
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
	return out, r.Err
}

func (s *scope) readCases(r *bytereader.Reader) ([]ctype.Case, error) {
	n := r.Count("cases of a variant", bytereader.MaxArgs)
	if n == 0 && r.Err == nil {
		return nil, fmt.Errorf("variant type must have at least one case")
	}
	var out []ctype.Case
	names := distinct{}
	for ; n > 0 && r.Err == nil; n-- {
		c := ctype.Case{Name: r.Name()}
		if r.Err != nil {
			break
		}
		if err := names.add("variant case name", c.Name, "case name"); err != nil {
			return nil, err
		}
		var err error
		if c.Type, err = s.readOptional(r, "optional type"); err != nil {
			return nil, err
		}
		r.Expect(0, "zero byte required")
		out = append(out, c)
	}
	return out, r.Err
}

func readLabels(r *bytereader.Reader, what, none string) ([]string, error) {
	n := r.Count("labels of a type", bytereader.MaxArgs)
	if n == 0 && r.Err == nil {
		return nil, fmt.Errorf("%s", none)
	}
	var out []string
	names := distinct{}
	for ; n > 0 && r.Err == nil; n-- {
		l := r.Name()
		if r.Err != nil {
			break
		}
		if err := names.add(what, l, strings.TrimPrefix(what, "enum ")); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, r.Err
}

func (s *scope) readFuncType(r *bytereader.Reader, async bool) (*ctype.Func, error) {
	f := &ctype.Func{Async: async}
	names := distinct{}
	for n := r.Count("parameters of a function", bytereader.MaxArgs); n > 0 && r.Err == nil; n-- {
		p := ctype.Param{Name: r.Name()}
		if r.Err != nil {
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
	return f, r.Err
}

func (s *scope) readResults(r *bytereader.Reader) (*ctype.Type, error) {
	switch b := r.Byte(); b {
	case 0:
		return s.readValue(r)
	case 1:
		r.Expect(0, "number of results")
	default:
		if r.Err == nil {
			r.Invalid(b, "component function results")
		}
	}
	return nil, r.Err
}

func (s *scope) readResource(r *bytereader.Reader) error {
	rep := coremodule.Value(r)
	d := &DefineResource{}
	switch b := r.Byte(); {
	case b == 1:
		i := r.U32()
		d.Dtor = &i
	case b > 1:
		r.Invalid(b, "optional destructor")
	}
	if r.Err != nil {
		return r.Err
	}
	if s.kind != ofComponent {
		return fmt.Errorf("resources can only be defined within a concrete component")
	}
	if rep != ctype.I32 {
		return fmt.Errorf("resources can only be represented by `i32`")
	}
	if d.Dtor != nil {
		f, err := bytereader.Get(s.coreFuncs, *d.Dtor, "core function")
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

func (s *scope) readInstanceType(r *bytereader.Reader) (*ctype.Instance, error) {
	in, err := s.readDeclarations(r, ofInstanceType)
	if err != nil {
		return nil, err
	}
	t := &ctype.Instance{Exports: in.typ.Exports, Fresh: in.typ.Fresh}
	return t, s.weigh(t)
}

func (s *scope) readComponentType(r *bytereader.Reader) (*ctype.Component, error) {
	in, err := s.readDeclarations(r, ofComponentType)
	if err != nil {
		return nil, err
	}
	t := in.typ
	return &t, nil
}

func (s *scope) readDeclarations(r *bytereader.Reader, kind scopeKind) (*scope, error) {
	in, err := s.decoder.scope(s, kind)
	if err != nil {
		return nil, err
	}
	n := r.Count("declarations of a type", 1<<16)
	for i := uint32(0); i < n && r.Err == nil; i++ {
		if err := in.readDeclaration(r); err != nil {
			return nil, fmt.Errorf("declaration %d: %w", i, err)
		}
	}
	return in, r.Err
}

func (s *scope) readDeclaration(r *bytereader.Reader) error {
	switch b := r.Byte(); {
	case r.Err != nil:
		return r.Err
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
		r.Invalid(b, "component or instance type declaration")
		return r.Err
	}
}

// readExtern reads the type of an import or export. Resource types that it leaves open are new ones; they
// are put into fresh.
func (s *scope) readExtern(r *bytereader.Reader, fresh *[]*ctype.Resource, name string) (e ctype.Extern, err error) {
	kind := r.Byte()
	e.Sort = ctype.Sort(kind)
	switch e.Sort {
	case ctype.Core0:
		r.Expect(byte(ctype.CoreModules), "component external kind")
		i := r.U32()
		if r.Err != nil {
			return e, r.Err
		}
		var d coreDef
		if d, err = bytereader.Get(s.coreTypes, i, "core type"); err == nil && d.module == nil {
			err = fmt.Errorf("core type index %d is not a module type", i)
		}
		e.Module = d.module
	case ctype.Funcs:
		e.Func, err = s.funcType(r.U32())
	case ctype.Types:
		e.Def, err = s.readBound(r, fresh, name)
	case ctype.Components, ctype.Instances:
		err = s.readTypeIndex(r, &e, fresh)
	case ctype.Values:
		err = errValues
	default:
		if r.Err == nil {
			r.Invalid(kind, "component external kind")
		}
	}
	if r.Err != nil {
		return e, r.Err
	}
	return e, err
}

func (s *scope) readTypeIndex(r *bytereader.Reader, e *ctype.Extern, fresh *[]*ctype.Resource) error {
	i := r.U32()
	if r.Err != nil {
		return r.Err
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

func (s *scope) readBound(r *bytereader.Reader, fresh *[]*ctype.Resource, name string) (*ctype.Def, error) {
	switch b := r.Byte(); b {
	case 0:
		return s.typeAt(r.U32())
	case 1:
		made := s.set.NewResource(name)
		*fresh = append(*fresh, made)
		return &ctype.Def{Resource: made}, nil
	default:
		if r.Err == nil {
			r.Invalid(b, "type bound")
		}
		return nil, r.Err
	}
}

// readCoreType reads one entry of the core type section, and adds it.
func (s *scope) readCoreType(r *bytereader.Reader) error {
	var d coreDef
	var err error
	switch form := r.Byte(); form {
	case 0x60:
		d.fn = coremodule.FuncType(r)
	case 0x50:
		d.module, err = s.readModuleType(r)
	case 0x00, 0x4e, 0x4f, 0x5e, 0x5f:
		return fmt.Errorf("core types other than functions are not supported")
	default:
		if r.Err == nil {
			r.Invalid(form, "type definition")
		}
	}
	if r.Err != nil {
		return r.Err
	}
	if err != nil {
		return err
	}
	s.coreTypes = append(s.coreTypes, d)
	return s.define(1)
}

// readModuleType reads the type of a core module.
func (s *scope) readModuleType(r *bytereader.Reader) (*ctype.Module, error) {
	m := &ctype.Module{}
	var types []*ctype.CoreFunc
	seen := map[string]bool{}
	for n := r.Count("declarations of a module type", bytereader.MaxArgs); n > 0 && r.Err == nil; n-- {
		switch b := r.Byte(); b {
		case 0:
			i := ctype.CoreImport{Module: r.Name(), Name: r.Name()}
			i.Type = readTypedExtern(r, types)
			if key := fmt.Sprintf("i%q %q", i.Module, i.Name); seen[key] && r.Err == nil {
				return nil, fmt.Errorf("duplicate import name `%s:%s`", i.Module, i.Name)
			} else if seen[key] = true; r.Err == nil {
				m.Imports = append(m.Imports, i)
			}
		case 1:
			types = append(types, coremodule.FuncForm(r))
		case 2:
			t, err := s.readCoreOuter(r)
			if err != nil {
				return nil, err
			}
			types = append(types, t)
		case 3:
			e := ctype.CoreExport{Name: r.Name()}
			e.Type = readTypedExtern(r, types)
			if seen["e"+e.Name] && r.Err == nil {
				return nil, fmt.Errorf("export name `%s` already defined", e.Name)
			}
			seen["e"+e.Name] = true
			m.Exports = append(m.Exports, e)
		default:
			if r.Err == nil {
				r.Invalid(b, "type definition")
			}
		}
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return m, s.define(len(m.Imports) + len(m.Exports))
}

// readCoreOuter reads an alias of an enclosing scope's core type; the module type itself is a scope.
func (s *scope) readCoreOuter(r *bytereader.Reader) (*ctype.CoreFunc, error) {
	r.Expect(byte(ctype.CoreTypes), "outer alias kind")
	r.Expect(1, "outer alias target")
	count, i := r.U32(), r.U32()
	if r.Err != nil {
		return nil, r.Err
	}
	if count == 0 {
		return nil, fmt.Errorf("type index out of bounds: a module type's own types are not aliased")
	}
	at, _, err := s.outer(count - 1)
	if err != nil {
		return nil, fmt.Errorf("invalid outer alias count of %d", count)
	}
	d, err := bytereader.Get(at.coreTypes, i, "type")
	if err == nil && d.fn == nil {
		err = fmt.Errorf("core type %d is not a function type", i)
	}
	return d.fn, err
}

func readTypedExtern(r *bytereader.Reader, types []*ctype.CoreFunc) ctype.CoreExtern {
	switch kind := r.Byte(); kind {
	case 0:
		f, err := bytereader.Get(types, r.U32(), "type")
		if err != nil {
			r.Fail("%w", err)
		}
		return ctype.CoreExtern{Sort: ctype.CoreFuncs, Func: f}
	case 1, 2, 3:
		return coremodule.Extern(r, kind)
	case 4:
		r.Fail("tags (exceptions) are not supported")
	default:
		if r.Err == nil {
			r.Invalid(kind, "a core external kind")
		}
	}
	return ctype.CoreExtern{}
}
