// SPDX-License-Identifier: Apache-2.0

package encode

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/coremodule"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// part is a core module of the component: the module, or an adapter.
type part struct {
	name    string // of an adapter
	module  []byte // without its world
	core    *ctype.Module
	world   []byte // encoded; nil = it has none
	own     *world // of an adapter
	imports []*supply

	memory, realloc bool // it exports them
	initialize      bool // and a function that wants to be called first
	instance        int  // the core instance that was made of it
}

// supply is where an import of a part comes from: of another part, or of the component's imports.
type supply struct {
	module, name string
	from         *part // nil = the component's imports
	sort         ctype.CoreSort

	core     *ctype.CoreFunc
	place    uint32 // in the component: the instance or, of $root, the function
	drops    string // the resource type that the function drops; "" = it calls a function
	memory   bool   // it needs the memory
	realloc  bool
	indirect int // its place in the table; -1 = it is called directly
}

var reallocType = &ctype.CoreFunc{Params: []ctype.Core{ctype.I32, ctype.I32, ctype.I32, ctype.I32}, Results: []ctype.Core{ctype.I32}}

func newPart(name string, module []byte) (*part, error) {
	core, err := coremodule.Module(module)
	if err != nil {
		return nil, err
	}
	p := &part{name: name, core: core}
	if len(core.Imports) > maxImports {
		return nil, fmt.Errorf("the module has %d imports: at most %d are allowed", len(core.Imports), maxImports)
	}
	if m := core.Export(memoryName); m != nil && m.Sort == ctype.CoreMemories {
		p.memory = true
	}
	if p.realloc, err = p.optional(reallocName, reallocType); err != nil {
		return nil, err
	}
	if p.initialize, err = p.optional(initName, &ctype.CoreFunc{}); err != nil {
		return nil, err
	}
	p.world, p.module, err = section(module)
	return p, err
}

// prefix says in errors whose import it is.
func (p *part) prefix(i int) string {
	if i == 0 {
		return ""
	}
	return describeAdapter(i-1, Adapter{Name: p.name}) + ": "
}

// optional says whether the module exports a function that it may have, of a type that it must have then.
func (p *part) optional(name string, want *ctype.CoreFunc) (bool, error) {
	x := p.core.Export(name)
	if x == nil {
		return false, nil
	}
	if x.Sort != ctype.CoreFuncs || !x.Func.Equal(want) {
		return false, fmt.Errorf("export %s: the canonical ABI wants %s, the module has %s", name, want, describe(x))
	}
	return true, nil
}

// supply finds what a part imports.
func (e *encoder) supply(i int, im ctype.CoreImport) (*supply, error) {
	s := &supply{module: im.Module, name: im.Name, sort: im.Type.Sort, core: im.Type.Func, indirect: -1}
	switch {
	case im.Module == MainModule && i > 0:
		s.from = e.parts[0]
	default:
		s.from = e.named(im.Module)
	}
	if s.from != nil {
		return s, e.fromPart(i, s, &im.Type)
	}
	if im.Type.Sort != ctype.CoreFuncs {
		return nil, fmt.Errorf("it is a %s: only functions are imported", im.Type.Sort)
	}
	need, err := e.fromWorld(s)
	if err != nil {
		return nil, err
	}
	if !need.Core.Equal(s.core) {
		return nil, fmt.Errorf("the world wants %s, the module has %s", need.Core, s.core)
	}
	p := e.parts[i]
	s.memory, s.realloc = need.Memory || need.Realloc, need.Realloc
	if err := needs(need, p.memory || e.parts[0].memory, p.realloc || !p.memory && e.parts[0].realloc); err != nil {
		return nil, err
	}
	if s.memory {
		e.byTable(s, p)
	}
	return s, nil
}

// byTable has a function called by the table.
func (e *encoder) byTable(s *supply, caller *part) {
	s.indirect = len(e.table)
	e.table = append(e.table, entry{core: s.core, caller: caller, supply: s})
}

// fromPart finds what a part imports of another one. The module imports of adapters, which are made after it, so by the
// table; an adapter imports of the module and of adapters before it.
func (e *encoder) fromPart(i int, s *supply, want *ctype.CoreExtern) error {
	if want.Sort != ctype.CoreFuncs && (i == 0 || want.Sort != ctype.CoreMemories) {
		return fmt.Errorf("it is a %s: of an adapter functions are imported, of the module its memory too", want.Sort)
	}
	for _, later := range e.parts[max(i, 1):] {
		if i > 0 && s.from == later {
			return errors.New("an adapter imports of the module and of adapters before it, so that there is no cycle")
		}
	}
	x := s.from.core.Export(s.name)
	if x == nil {
		return errors.New("there is no such export")
	}
	if err := ctype.MatchCore(x, want); err != nil {
		return err
	}
	if i == 0 {
		e.byTable(s, e.parts[0])
	}
	return nil
}

// fromWorld finds a function among the component's imports.
func (e *encoder) fromWorld(s *supply) (ctype.Flat, error) {
	if s.module == rootName {
		x := e.imports.types[s.name]
		if x == nil || x.Sort != ctype.Funcs {
			return ctype.Flat{}, errors.New("the world has no such function there")
		}
		s.place = e.imports.index[s.name]
		return flat(x.Func, true)
	}
	of := e.imports.types[s.module]
	if of == nil || of.Sort != ctype.Instances {
		return ctype.Flat{}, fmt.Errorf("the world does not import this interface, but %s", list(e.interfaces()))
	}
	s.place = e.imports.index[s.module]
	if resource, ok := strings.CutPrefix(s.name, dropPrefix); ok {
		x := of.Instance.Export(resource)
		if x == nil || x.Sort != ctype.Types || x.Def.Resource == nil {
			return ctype.Flat{}, fmt.Errorf("the interface has no resource %s", resource)
		}
		s.drops = resource
		return ctype.Flat{Core: &ctype.CoreFunc{Params: []ctype.Core{ctype.I32}}}, nil
	}
	x := of.Instance.Export(s.name)
	if x == nil || x.Sort != ctype.Funcs {
		return ctype.Flat{}, errors.New("the world has no such function there")
	}
	return flat(x.Func, true)
}

// flat is a function as core code sees it.
func flat(f *ctype.Func, lower bool) (ctype.Flat, error) {
	if f.Async {
		return ctype.Flat{}, errors.New("it is asynchronous in the world, which is not supported")
	}
	return f.Flat(lower), nil
}

// interfaces are those that the world imports.
func (e *encoder) interfaces() (names []string) {
	for _, i := range e.world.typ.Imports {
		if i.Sort == ctype.Instances {
			names = append(names, i.Name)
		}
	}
	return names
}
