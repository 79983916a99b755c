// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"bytes"
	"fmt"

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
	c, err := s.readComponent(&reader{b: wasm})
	if err != nil {
		return nil, nil, fmt.Errorf("not a valid component: %w", err)
	}
	return c, d.set, nil
}

func checkPreamble(r *reader) error {
	head := r.bytes(uint32(min(len(r.b)-r.pos, 4)))
	if !bytes.Equal(head, magic) {
		return fmt.Errorf("it does not begin as WebAssembly does (magic header not detected)")
	}
	version := r.bytes(uint32(min(len(r.b)-r.pos, 4)))
	switch {
	case bytes.Equal(version, preamble):
		return nil
	case bytes.Equal(version, coreLayer):
		return fmt.Errorf("expected a version header for a component: this is a core module (wasm-tools component new makes a component of it)")
	case len(version) < 4:
		return errEnd
	}
	return fmt.Errorf("unknown binary version %#x: only the component format %#x is known", version, preamble)
}

var sections = [...]string{
	"custom", "core module", "core instance", "core type", "component", "instance", "alias", "type",
	"canonical function", "start", "import", "export", "value",
}

// readComponent reads a component with its preamble.
func (s *scope) readComponent(r *reader) (*Component, error) {
	if err := checkPreamble(r); err != nil {
		return nil, err
	}
	for !r.done() {
		id := r.byte()
		c := r.part()
		if r.err != nil {
			return nil, r.err
		}
		if int(id) >= len(sections) {
			return nil, fmt.Errorf("malformed section id: %d (at byte %#x)", id, c.base)
		}
		if err := s.readSection(id, c); err != nil {
			return nil, err
		}
	}
	return &Component{Type: &s.typ, Defs: s.defs}, r.err
}

func (s *scope) readSection(id byte, r *reader) error {
	switch id {
	case 0:
		r.name()
		return s.wrap(r, id, -1, nil)
	case 1:
		return s.wrap(r, id, s.modules, s.readModule(r))
	case 4:
		return s.wrap(r, id, len(s.components), s.readNested(r))
	case 9, 12:
		return s.wrap(r, id, -1, errValues)
	}
	n := r.u32()
	for i := uint32(0); i < n && r.err == nil; i++ {
		at := r.at()
		if err := s.wrap(r, id, int(i), s.readItem(id, r)); err != nil {
			if _, ok := placeOf(err); !ok {
				err = &placed{at: at, err: err}
			}
			return err
		}
	}
	if r.err == nil && !r.done() {
		r.fail("section size mismatch: bytes are left")
	}
	return s.wrap(r, id, -1, nil)
}

// wrap names section and item of an error.
func (s *scope) wrap(r *reader, id byte, i int, err error) error {
	if r.err != nil {
		err = r.err
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
		if p, ok := err.(*placed); ok { //nolint:errorlint // the chain is walked here
			return p.at, true
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			break
		}
		err = u.Unwrap()
	}
	return 0, false
}

func (s *scope) readItem(id byte, r *reader) error {
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

func (s *scope) readModule(r *reader) error {
	if err := s.countModule(); err != nil {
		return err
	}
	s.modules++
	t, err := readCoreModule(r)
	if err != nil {
		return err
	}
	if err := s.define(len(t.Imports) + len(t.Exports)); err != nil {
		return err
	}
	s.defs = append(s.defs, &CoreModule{Bytes: r.b, Type: t})
	return s.add(ctype.Extern{Sort: ctype.Core0, Module: t})
}

func (s *scope) readNested(r *reader) error {
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
func (s *scope) readCoreInstance(r *reader) error {
	switch b := r.byte(); b {
	case 0:
		return s.readCoreInstantiate(r)
	case 1:
		return s.readCoreBundle(r)
	default:
		if r.err == nil {
			r.invalid(b, "core instance")
		}
		return r.err
	}
}

func (s *scope) readCoreInstantiate(r *reader) error {
	d := &CoreInstantiate{Module: r.u32(), Args: map[string]uint32{}}
	for n := r.count("arguments", maxArgs); n > 0 && r.err == nil; n-- {
		name := r.name()
		r.expect(byte(ctype.CoreInsts), "instantiation arg kind")
		i := r.u32()
		if _, twice := d.Args[name]; twice && r.err == nil {
			return fmt.Errorf("duplicate module instantiation argument named `%s`", name)
		}
		d.Args[name] = i
	}
	if r.err != nil {
		return r.err
	}
	m, err := get(s.coreModules, d.Module, "module")
	if err != nil {
		return err
	}
	for name, i := range d.Args {
		if _, err := get(s.coreInsts, i, "core instance"); err != nil {
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

func (s *scope) readCoreBundle(r *reader) error {
	d := &CoreBundle{}
	t := &ctype.Module{}
	seen := map[string]bool{}
	for n := r.count("exports", 1<<16); n > 0 && r.err == nil; n-- {
		e := CoreItem{Name: r.name(), Sort: ctype.CoreSort(r.byte()), Index: r.u32()}
		if r.err != nil {
			return r.err
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
func readSort(r *reader, what string) ctype.Sort {
	b := r.byte()
	switch {
	case r.err != nil:
	case b == 0:
		if core := r.byte(); r.err == nil && ctype.CoreSort(core) != ctype.CoreModules {
			r.invalid(core, what)
		}
	case b > byte(ctype.Instances):
		r.invalid(b, what)
	}
	return ctype.Sort(b)
}

func (s *scope) readInstance(r *reader) error {
	switch b := r.byte(); b {
	case 0:
		return s.readInstantiate(r)
	case 1:
		return s.readBundle(r)
	default:
		if r.err == nil {
			r.invalid(b, "instance")
		}
		return r.err
	}
}

// readIndexed reads a sort with an index.
func (s *scope) readIndexed(r *reader, i *Item) error {
	sort := readSort(r, "component external kind")
	i.Index = r.u32()
	if r.err != nil {
		return r.err
	}
	var err error
	i.Extern, err = s.extern(sort, i.Index)
	return err
}

func (s *scope) readInstantiate(r *reader) error {
	d := &Instantiate{Component: r.u32()}
	given := map[string]*ctype.Extern{}
	seen := distinctNames{}
	for n := r.count("arguments", maxArgs); n > 0 && r.err == nil; n-- {
		i := Item{Name: r.name()}
		if err := s.readIndexed(r, &i); err != nil {
			return err
		}
		if err := seen.add("instantiation argument", i.Name, "argument"); err != nil {
			return err
		}
		d.Args = append(d.Args, i)
		given[i.Name] = &i.Extern
	}
	if r.err != nil {
		return r.err
	}
	c, err := get(s.components, d.Component, "component")
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

func (s *scope) readBundle(r *reader) error {
	d := &Bundle{}
	t := &ctype.Instance{}
	own := ctype.NewNames()
	for n := r.count("exports", 1<<16); n > 0 && r.err == nil; n-- {
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
	if r.err != nil {
		return r.err
	}
	if err := s.weigh(t); err != nil {
		return err
	}
	return s.add(ctype.Extern{Sort: ctype.Instances, Instance: t})
}

// readAlias reads an alias, and adds what it stands for.
func (s *scope) readAlias(r *reader) error {
	sort := r.byte()
	core := ctype.CoreSort(0)
	if sort == 0 {
		core = ctype.CoreSort(r.byte())
	} else if sort > byte(ctype.Instances) && r.err == nil {
		r.invalid(sort, "component outer alias kind")
	}
	target := r.byte()
	if r.err != nil {
		return r.err
	}
	switch target {
	case 0:
		return s.aliasExport(r, ctype.Sort(sort), core)
	case 1:
		return s.aliasCore(r, ctype.Sort(sort), core)
	case 2:
		return s.aliasOuter(r, ctype.Sort(sort), core)
	}
	r.invalid(target, "alias")
	return r.err
}

func (s *scope) aliasExport(r *reader, sort ctype.Sort, core ctype.CoreSort) error {
	i, name := r.u32(), r.name()
	switch {
	case r.err != nil:
		return r.err
	case sort == ctype.Core0 && core != ctype.CoreModules:
		return fmt.Errorf("invalid leading byte (%#x) for component external kind", byte(core))
	case s.kind != ofComponent && sort != ctype.Instances && sort != ctype.Types:
		return fmt.Errorf("aliases in types may only refer to types or instances")
	}
	in, err := get(s.instances, i, "instance")
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

func (s *scope) aliasCore(r *reader, sort ctype.Sort, core ctype.CoreSort) error {
	i, name := r.u32(), r.name()
	switch {
	case r.err != nil:
		return r.err
	case sort != ctype.Core0 || core > ctype.CoreTags:
		return fmt.Errorf("core instances export functions, tables, memories and globals only")
	case s.kind != ofComponent:
		return fmt.Errorf("aliases in types may only refer to types or instances")
	}
	in, err := get(s.coreInsts, i, "core instance")
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

func (s *scope) aliasOuter(r *reader, sort ctype.Sort, core ctype.CoreSort) error {
	count, i := r.u32(), r.u32()
	if r.err != nil {
		return r.err
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
		d, err := get(at.coreTypes, i, "core type")
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
