// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"bytes"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/bytereader"
	"github.com/wasmplane/wasmplane/plugins/component/coremodule"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// The first bytes of every module, and what follows in a component.
var (
	magic     = []byte("\x00asm")
	preamble  = []byte("\x0d\x00\x01\x00")
	coreLayer = []byte("\x01\x00\x00\x00")
)

// Is says whether bytes are those of a component, and not of a core module.
func Is(wasm []byte) bool {
	return len(wasm) >= 8 && bytes.Equal(wasm[:4], magic) && wasm[6] == 1 && wasm[7] == 0
}

// Decode reads and validates a component. The result refers to the bytes.
func Decode(wasm []byte) (*Component, *ctype.Set, error) {
	d := &decoder{set: ctype.NewSet()}
	s, err := d.scope(nil, ofComponent)
	if err != nil {
		return nil, nil, err
	}
	c, err := s.readComponent(&bytereader.Reader{B: wasm})
	if err != nil {
		return nil, nil, fmt.Errorf("not a valid component: %w", err)
	}
	return c, d.set, nil
}

func checkPreamble(r *bytereader.Reader) error {
	head := r.Bytes(uint32(min(len(r.B)-r.Pos, 4)))
	if !bytes.Equal(head, magic) {
		return fmt.Errorf("it does not begin as WebAssembly does (magic header not detected)")
	}
	version := r.Bytes(uint32(min(len(r.B)-r.Pos, 4)))
	switch {
	case bytes.Equal(version, preamble):
		return nil
	case bytes.Equal(version, coreLayer):
		return fmt.Errorf("expected a version header for a component: this is a core module (wasm-tools component new makes a component of it)")
	case len(version) < 4:
		return bytereader.ErrEnd
	}
	return fmt.Errorf("unknown binary version %#x: only the component format %#x is known", version, preamble)
}

var sections = [...]string{
	"custom", "core module", "core instance", "core type", "component", "instance", "alias", "type",
	"canonical function", "start", "import", "export", "value",
}

// readComponent reads a component with its preamble.
func (s *scope) readComponent(r *bytereader.Reader) (*Component, error) {
	if err := checkPreamble(r); err != nil {
		return nil, err
	}
	for !r.Done() {
		id := r.Byte()
		c := r.Part()
		if r.Err != nil {
			return nil, r.Err
		}
		if int(id) >= len(sections) {
			return nil, fmt.Errorf("malformed section id: %d (at byte %#x)", id, c.Base)
		}
		if err := s.readSection(id, c); err != nil {
			return nil, err
		}
	}
	return &Component{Type: &s.typ, Defs: s.defs}, r.Err
}

func (s *scope) readSection(id byte, r *bytereader.Reader) error {
	switch id {
	case 0:
		r.Name()
		return s.wrap(r, id, -1, nil)
	case 1:
		return s.wrap(r, id, s.modules, s.readModule(r))
	case 4:
		return s.wrap(r, id, len(s.components), s.readNested(r))
	case 9, 12:
		return s.wrap(r, id, -1, errValues)
	}
	n := r.U32()
	for i := uint32(0); i < n && r.Err == nil; i++ {
		at := r.At()
		if err := s.wrap(r, id, int(i), s.readItem(id, r)); err != nil {
			if _, ok := placeOf(err); !ok {
				err = &bytereader.Placed{At: at, Err: err}
			}
			return err
		}
	}
	if r.Err == nil && !r.Done() {
		r.Fail("section size mismatch: bytes are left")
	}
	return s.wrap(r, id, -1, nil)
}

// wrap names section and item of an error.
func (s *scope) wrap(r *bytereader.Reader, id byte, i int, err error) error {
	if r.Err != nil {
		err = r.Err
	}
	if err == nil {
		return nil
	}
	if i < 0 {
		return fmt.Errorf("%s section: %w", sections[id], err)
	}
	return fmt.Errorf("%s %d: %w", sections[id], i, err)
}

func placeOf(err error) (int, bool) {
	for err != nil {
		if p, ok := err.(*bytereader.Placed); ok { //nolint:errorlint // the chain is walked here
			return p.At, true
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			break
		}
		err = u.Unwrap()
	}
	return 0, false
}

func (s *scope) readItem(id byte, r *bytereader.Reader) error {
	switch id {
	case 2:
		return s.readCoreInstance(r)
	case 3:
		return s.readCoreType(r)
	case 5:
		return s.readInstance(r)
	case 6:
		return s.readAlias(r)
	case 7:
		return s.readType(r)
	case 8:
		return s.readCanon(r)
	case 10:
		return s.readImport(r)
	}
	return s.readExport(r)
}

func (s *scope) readModule(r *bytereader.Reader) error {
	if err := s.countModule(); err != nil {
		return err
	}
	s.modules++
	t, err := coremodule.Read(r)
	if err != nil {
		return err
	}
	if err := s.define(len(t.Imports) + len(t.Exports)); err != nil {
		return err
	}
	s.defs = append(s.defs, &CoreModule{Bytes: r.B, Type: t})
	return s.add(ctype.Extern{Sort: ctype.Core0, Module: t})
}

func (s *scope) readNested(r *bytereader.Reader) error {
	if err := s.countModule(); err != nil {
		return err
	}
	in, err := s.decoder.scope(s, ofComponent)
	if err != nil {
		return err
	}
	c, err := in.readComponent(r)
	if err != nil {
		return err
	}
	s.defs = append(s.defs, &Nested{Component: c})
	return s.add(ctype.Extern{Sort: ctype.Components, Component: c.Type})
}

// readCoreInstance reads a core instance, and checks what the module is given.
func (s *scope) readCoreInstance(r *bytereader.Reader) error {
	switch b := r.Byte(); b {
	case 0:
		return s.readCoreInstantiate(r)
	case 1:
		return s.readCoreBundle(r)
	default:
		if r.Err == nil {
			r.Invalid(b, "core instance")
		}
		return r.Err
	}
}

func (s *scope) readCoreInstantiate(r *bytereader.Reader) error {
	d := &CoreInstantiate{Module: r.U32(), Args: map[string]uint32{}}
	for n := r.Count("arguments", bytereader.MaxArgs); n > 0 && r.Err == nil; n-- {
		name := r.Name()
		r.Expect(byte(ctype.CoreInsts), "instantiation arg kind")
		i := r.U32()
		if _, twice := d.Args[name]; twice && r.Err == nil {
			return fmt.Errorf("duplicate module instantiation argument named `%s`", name)
		}
		d.Args[name] = i
	}
	if r.Err != nil {
		return r.Err
	}
	m, err := bytereader.Get(s.coreModules, d.Module, "module")
	if err != nil {
		return err
	}
	for name, i := range d.Args {
		if _, err := bytereader.Get(s.coreInsts, i, "core instance"); err != nil {
			return fmt.Errorf("argument `%s`: %w", name, err)
		}
	}
	for _, i := range m.Imports {
		at, ok := d.Args[i.Module]
		if !ok {
			return fmt.Errorf("missing module instantiation argument named `%s`", i.Module)
		}
		given := s.coreInsts[at].Export(i.Name)
		if given == nil {
			return fmt.Errorf("module instantiation argument `%s` does not export an item named `%s`", i.Module, i.Name)
		}
		if err := ctype.MatchCore(given, &i.Type); err != nil {
			return fmt.Errorf("type mismatch for export `%s` of module instantiation argument `%s`: %w", i.Name, i.Module, err)
		}
	}
	s.defs = append(s.defs, d)
	s.coreInsts = append(s.coreInsts, &ctype.Module{Exports: m.Exports})
	return s.define(1 + len(m.Imports))
}

func (s *scope) readCoreBundle(r *bytereader.Reader) error {
	d := &CoreBundle{}
	t := &ctype.Module{}
	seen := map[string]bool{}
	for n := r.Count("exports", 1<<16); n > 0 && r.Err == nil; n-- {
		e := CoreItem{Name: r.Name(), Sort: ctype.CoreSort(r.Byte()), Index: r.U32()}
		if r.Err != nil {
			return r.Err
		}
		if e.Sort > ctype.CoreTags {
			return fmt.Errorf("invalid leading byte (%#x) for a core export", byte(e.Sort))
		}
		x, err := s.coreExtern(e.Sort, e.Index)
		if err != nil {
			return err
		}
		if seen[e.Name] {
			return fmt.Errorf("export name `%s` already defined", e.Name)
		}
		seen[e.Name] = true
		d.Exports = append(d.Exports, e)
		t.Exports = append(t.Exports, ctype.CoreExport{Name: e.Name, Type: *x})
	}
	s.defs = append(s.defs, d)
	s.coreInsts = append(s.coreInsts, t)
	return s.define(1 + len(d.Exports))
}

// readSort reads a sort; of the core sorts only modules.
func readSort(r *bytereader.Reader, what string) ctype.Sort {
	b := r.Byte()
	switch {
	case r.Err != nil:
	case b == 0:
		if core := r.Byte(); r.Err == nil && ctype.CoreSort(core) != ctype.CoreModules {
			r.Invalid(core, what)
		}
	case b > byte(ctype.Instances):
		r.Invalid(b, what)
	}
	return ctype.Sort(b)
}

func (s *scope) readInstance(r *bytereader.Reader) error {
	switch b := r.Byte(); b {
	case 0:
		return s.readInstantiate(r)
	case 1:
		return s.readBundle(r)
	default:
		if r.Err == nil {
			r.Invalid(b, "instance")
		}
		return r.Err
	}
}

// readIndexed reads a sort with an index.
func (s *scope) readIndexed(r *bytereader.Reader, i *Item) error {
	sort := readSort(r, "component external kind")
	i.Index = r.U32()
	if r.Err != nil {
		return r.Err
	}
	var err error
	i.Extern, err = s.extern(sort, i.Index)
	return err
}

func (s *scope) readInstantiate(r *bytereader.Reader) error {
	d := &Instantiate{Component: r.U32()}
	given := map[string]*ctype.Extern{}
	seen := distinctNames{}
	for n := r.Count("arguments", bytereader.MaxArgs); n > 0 && r.Err == nil; n-- {
		i := Item{Name: r.Name()}
		if err := s.readIndexed(r, &i); err != nil {
			return err
		}
		if err := seen.add("instantiation argument", i.Name, "argument"); err != nil {
			return err
		}
		d.Args = append(d.Args, i)
		given[i.Name] = &i.Extern
	}
	if r.Err != nil {
		return r.Err
	}
	c, err := bytereader.Get(s.components, d.Component, "component")
	if err != nil {
		return err
	}
	before := len(c.Fresh)
	var sub *ctype.Subst
	d.Type, sub, err = s.set.Instantiate(c, func(name string) *ctype.Extern { return given[name] })
	if err != nil {
		return err
	}
	for _, f := range c.Fresh[:before] {
		s.typ.Fresh = append(s.typ.Fresh, sub.Resource(f))
	}
	s.defs = append(s.defs, d)
	if err := s.define(len(c.Imports) + before); err != nil {
		return err
	}
	if err := s.weigh(d.Type); err != nil {
		return err
	}
	return s.add(ctype.Extern{Sort: ctype.Instances, Instance: d.Type})
}

// distinctNames refuses names that differ in nothing but their case.
type distinctNames map[string]string

func (d distinctNames) add(what, name, previous string) error {
	key := name
	if n, err := ctype.ParseName(name); err == nil {
		key = n.Canonical()
	}
	if known, ok := d[key]; ok {
		return fmt.Errorf("%s `%s` conflicts with previous %s `%s`", what, name, previous, known)
	}
	d[key] = name
	return nil
}

func (s *scope) readBundle(r *bytereader.Reader) error {
	d := &Bundle{}
	t := &ctype.Instance{}
	own := ctype.NewNames()
	for n := r.Count("exports", 1<<16); n > 0 && r.Err == nil; n-- {
		name, _, err := readExternName(r)
		if err != nil {
			return err
		}
		i := Item{Name: name.Text}
		if err := s.readIndexed(r, &i); err != nil {
			return err
		}
		if err := own.Add("export", &name, i.Extern); err != nil {
			return err
		}
		d.Exports = append(d.Exports, i)
		t.Exports = append(t.Exports, ctype.Named{Name: i.Name, Extern: i.Extern})
	}
	s.defs = append(s.defs, d)
	if r.Err != nil {
		return r.Err
	}
	if err := s.weigh(t); err != nil {
		return err
	}
	return s.add(ctype.Extern{Sort: ctype.Instances, Instance: t})
}

// readAlias reads an alias, and adds what it stands for.
func (s *scope) readAlias(r *bytereader.Reader) error {
	sort := r.Byte()
	core := ctype.CoreSort(0)
	if sort == 0 {
		core = ctype.CoreSort(r.Byte())
	} else if sort > byte(ctype.Instances) && r.Err == nil {
		r.Invalid(sort, "component outer alias kind")
	}
	target := r.Byte()
	if r.Err != nil {
		return r.Err
	}
	switch target {
	case 0:
		return s.aliasExport(r, ctype.Sort(sort), core)
	case 1:
		return s.aliasCore(r, ctype.Sort(sort), core)
	case 2:
		return s.aliasOuter(r, ctype.Sort(sort), core)
	}
	r.Invalid(target, "alias")
	return r.Err
}

func (s *scope) aliasExport(r *bytereader.Reader, sort ctype.Sort, core ctype.CoreSort) error {
	i, name := r.U32(), r.Name()
	switch {
	case r.Err != nil:
		return r.Err
	case sort == ctype.Core0 && core != ctype.CoreModules:
		return fmt.Errorf("invalid leading byte (%#x) for component external kind", byte(core))
	case s.kind != ofComponent && sort != ctype.Instances && sort != ctype.Types:
		return fmt.Errorf("aliases in types may only refer to types or instances")
	}
	in, err := bytereader.Get(s.instances, i, "instance")
	if err != nil {
		return err
	}
	e := in.Export(name)
	if e == nil {
		return fmt.Errorf("instance %d has no export named `%s`", i, name)
	}
	if e.Sort != sort {
		return fmt.Errorf("export `%s` for instance %d is not a %s", name, i, sort)
	}
	s.defs = append(s.defs, &AliasExport{Sort: sort, Instance: i, Name: name})
	return s.add(*e)
}

func (s *scope) aliasCore(r *bytereader.Reader, sort ctype.Sort, core ctype.CoreSort) error {
	i, name := r.U32(), r.Name()
	switch {
	case r.Err != nil:
		return r.Err
	case sort != ctype.Core0 || core > ctype.CoreTags:
		return fmt.Errorf("core instances export functions, tables, memories and globals only")
	case s.kind != ofComponent:
		return fmt.Errorf("aliases in types may only refer to types or instances")
	}
	in, err := bytereader.Get(s.coreInsts, i, "core instance")
	if err != nil {
		return err
	}
	e := in.Export(name)
	if e == nil {
		return fmt.Errorf("core instance %d has no export named `%s`", i, name)
	}
	if e.Sort != core {
		return fmt.Errorf("export `%s` for core instance %d is not a %s", name, i, core)
	}
	s.defs = append(s.defs, &AliasCore{Sort: core, Instance: i, Name: name})
	return s.addCore(e)
}

func (s *scope) aliasOuter(r *bytereader.Reader, sort ctype.Sort, core ctype.CoreSort) error {
	count, i := r.U32(), r.U32()
	if r.Err != nil {
		return r.Err
	}
	ok := sort == ctype.Core0 && core == ctype.CoreTypes || sort == ctype.Types
	if s.kind != ofComponent && !ok {
		return fmt.Errorf("outer aliases in types may only refer to types or instances")
	}
	at, crossed, err := s.outer(count)
	if err != nil {
		return err
	}
	switch {
	case sort == ctype.Core0 && core == ctype.CoreTypes:
		d, err := bytereader.Get(at.coreTypes, i, "core type")
		s.coreTypes = append(s.coreTypes, d)
		if err != nil {
			return err
		}
		return s.define(1)
	case sort == ctype.Types:
		d, err := at.typeAt(i)
		if err != nil {
			return err
		}
		if crossed {
			if err := s.refuseResources(d); err != nil {
				return err
			}
		}
		return s.add(ctype.Extern{Sort: sort, Def: d})
	case sort == ctype.Core0 && core == ctype.CoreModules, sort == ctype.Components:
		e, err := at.extern(sort, i)
		if err != nil {
			return err
		}
		s.defs = append(s.defs, &AliasOuter{Sort: sort, Count: count, Index: i})
		return s.add(e)
	}
	return fmt.Errorf("invalid leading byte (%#x) for component outer alias kind", byte(sort))
}
