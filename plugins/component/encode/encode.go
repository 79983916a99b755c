// SPDX-License-Identifier: Apache-2.0

package encode

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// Bounds of what is encoded.
const (
	maxModule  = 256 << 20 // bytes
	maxWorld   = 1 << 20   // bytes
	maxImports = 1 << 12   // functions that a module imports
)

// Names that the canonical ABI gives to what a module exports, and to functions that a world imports by themselves.
const (
	memoryName  = "memory"
	reallocName = "cabi_realloc"
	postPrefix  = "cabi_post_"
	initName    = "_initialize"
	rootName    = "$root"
	dropPrefix  = "[resource-drop]"
)

// Component makes a component of a core module. The world is the one in the module's own section, else
// the one that is given, in the same encoding; nil = none. The result shares no memory with the arguments.
func Component(module, world []byte) ([]byte, error) {
	if len(module) > maxModule {
		return nil, fmt.Errorf("make a component: a module of %d bytes: at most %d are allowed", len(module), maxModule)
	}
	out, err := encode(module, world)
	if err != nil {
		return nil, fmt.Errorf("make a component: %w", err)
	}
	if _, _, err := binary.Decode(out); err != nil {
		return nil, fmt.Errorf("make a component: what was encoded is %w", err)
	}
	return out, nil
}

func encode(module, given []byte) ([]byte, error) {
	core, err := binary.Module(module)
	if err != nil {
		return nil, err
	}
	own, rest, err := section(module)
	if err != nil {
		return nil, err
	}
	if own == nil {
		own = given
	}
	if own == nil {
		return nil, errors.New("the module has no section component-type, which generators of bindings (wit-bindgen) write: its world is unknown")
	}
	w, err := readWorld(own)
	if err != nil {
		return nil, err
	}
	e := &encoder{world: w, core: core}
	if err := e.match(); err != nil {
		return nil, fmt.Errorf("the world %s: %w", w.name, err)
	}
	return e.write(rest), nil
}

// encoder holds a module against a world.
type encoder struct {
	world *world
	core  *ctype.Module

	imports         []lowered
	exports         []lifted
	memory, realloc bool // the module exports them
	initialize      bool // and a function that wants to be called first
}

// lowered is a function that the module imports.
type lowered struct {
	module, name string
	core         *ctype.CoreFunc
	instance     int    // the world's import, of its instances or, of $root, of its functions
	drops        string // the resource type that the function drops; "" = it calls a function
	indirect     int    // its place in the table; -1 = it needs no memory
	realloc      bool
}

// lifted is a function that the world exports.
type lifted struct {
	name string
	flat ctype.Flat
	post bool
}

func (e *encoder) match() error {
	if m := e.core.Export(memoryName); m != nil && m.Sort == ctype.CoreMemories {
		e.memory = true
	}
	var err error
	if e.realloc, err = e.optional(reallocName, reallocType); err != nil {
		return err
	}
	if e.initialize, err = e.optional(initName, &ctype.CoreFunc{}); err != nil {
		return err
	}
	if len(e.core.Imports) > maxImports {
		return fmt.Errorf("the module has %d imports: at most %d are allowed", len(e.core.Imports), maxImports)
	}
	for _, i := range e.core.Imports {
		if err := e.matchImport(i); err != nil {
			return fmt.Errorf("import %s of %s: %w", i.Name, i.Module, err)
		}
	}
	for _, x := range e.world.typ.Exports {
		if err := e.matchExport(x.Name, x.Func); err != nil {
			return fmt.Errorf("export %s: %w", x.Name, err)
		}
	}
	return nil
}

var reallocType = &ctype.CoreFunc{Params: []ctype.Core{ctype.I32, ctype.I32, ctype.I32, ctype.I32}, Results: []ctype.Core{ctype.I32}}

// optional says whether the module exports a function that it may have, of a type that it must have then.
func (e *encoder) optional(name string, want *ctype.CoreFunc) (bool, error) {
	x := e.core.Export(name)
	if x == nil {
		return false, nil
	}
	if x.Sort != ctype.CoreFuncs || !x.Func.Equal(want) {
		return false, fmt.Errorf("export %s: the canonical ABI wants %s, the module has %s", name, want, describe(x))
	}
	return true, nil
}

func describe(x *ctype.CoreExtern) string {
	if x.Sort == ctype.CoreFuncs {
		return x.Func.String()
	}
	return "a " + x.Sort.String()
}

func (e *encoder) matchImport(i ctype.CoreImport) error {
	if i.Type.Sort != ctype.CoreFuncs {
		return fmt.Errorf("it is a %s: only functions are imported", i.Type.Sort)
	}
	l := lowered{module: i.Module, name: i.Name, indirect: -1}
	var err error
	if l.instance, err = e.place(i.Module); err != nil {
		return err
	}
	need, err := l.find(e.world.typ, i)
	if err != nil {
		return err
	}
	if l.core = need.Core; !l.core.Equal(i.Type.Func) {
		return fmt.Errorf("the world wants %s, the module has %s", l.core, i.Type.Func)
	}
	if err := e.needs(need); err != nil {
		return err
	}
	if l.realloc = need.Realloc; need.Memory || need.Realloc {
		l.indirect = e.indirect()
	}
	e.imports = append(e.imports, l)
	return nil
}

// indirect counts the functions that are called by the table.
func (e *encoder) indirect() (n int) {
	for _, l := range e.imports {
		if l.indirect >= 0 {
			n++
		}
	}
	return n
}

// place is the index of an interface among the instances that the world imports.
func (e *encoder) place(module string) (int, error) {
	if module == rootName {
		return 0, nil
	}
	n := 0
	var names []string
	for _, i := range e.world.typ.Imports {
		if i.Sort != ctype.Instances {
			continue
		}
		if i.Name == module {
			return n, nil
		}
		names = append(names, i.Name)
		n++
	}
	return 0, fmt.Errorf("the world does not import this interface, but %s", list(names))
}

func list(names []string) string {
	const most = 8
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		names = append(names[:most:most], "...")
	}
	return strings.Join(names, ", ")
}

// find finds the function in the world.
func (l *lowered) find(w *ctype.Component, i ctype.CoreImport) (ctype.Flat, error) {
	exported := w.Import
	if i.Module != rootName {
		exported = w.Import(i.Module).Instance.Export
	}
	if resource, ok := strings.CutPrefix(i.Name, dropPrefix); ok && i.Module != rootName {
		x := exported(resource)
		if x == nil || x.Sort != ctype.Types || x.Def.Resource == nil {
			return ctype.Flat{}, fmt.Errorf("the interface has no resource %s", resource)
		}
		l.drops = resource
		return ctype.Flat{Core: &ctype.CoreFunc{Params: []ctype.Core{ctype.I32}}}, nil
	}
	x := exported(i.Name)
	if x == nil || x.Sort != ctype.Funcs {
		return ctype.Flat{}, errors.New("the world has no such function there")
	}
	if i.Module == rootName {
		for _, f := range w.Imports {
			if f.Name == i.Name {
				break
			}
			if f.Sort == ctype.Funcs {
				l.instance++
			}
		}
	}
	return x.Func.Flat(true), nil
}

func (e *encoder) matchExport(name string, f *ctype.Func) error {
	l := lifted{name: name, flat: f.Flat(false)}
	x := e.core.Export(name)
	if x == nil {
		return fmt.Errorf("the module does not have it: a function %s was expected", l.flat.Core)
	}
	if x.Sort != ctype.CoreFuncs || !x.Func.Equal(l.flat.Core) {
		return fmt.Errorf("the world wants %s, the module has %s", l.flat.Core, describe(x))
	}
	var err error
	if l.post, err = e.optional(postPrefix+name, &ctype.CoreFunc{Params: l.flat.Core.Results}); err != nil {
		return err
	}
	e.exports = append(e.exports, l)
	return e.needs(l.flat)
}

// needs refuses a function whose values go by memory, where the module does not export what that needs.
func (e *encoder) needs(f ctype.Flat) error {
	switch {
	case (f.Memory || f.Realloc) && !e.memory:
		return fmt.Errorf("its values go by memory: the module has to export it as %s", memoryName)
	case f.Realloc && !e.realloc:
		return fmt.Errorf("its values need room in memory: the module has to export %s, %s", reallocName, reallocType)
	}
	return nil
}
