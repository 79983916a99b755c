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
	maxModule   = 256 << 20 // bytes of all core modules
	maxWorld    = 1 << 20   // bytes
	maxImports  = 1 << 12   // functions that a core module imports
	maxAdapters = 16
)

// MainModule is the name under which an adapter imports what the module exports.
const MainModule = "__main_module__"

// Names that the canonical ABI gives to what a module exports, and to functions that a world imports by themselves.
const (
	memoryName  = "memory"
	reallocName = "cabi_realloc"
	postPrefix  = "cabi_post_"
	initName    = "_initialize"
	rootName    = "$root"
	dropPrefix  = "[resource-drop]"
)

// Adapter is a core module that stands between the module and the component's imports, or between the module and the
// component's exports. The package's documentation says how.
type Adapter struct {
	// Name is the module name of the imports that it answers: of the module, and of adapters after it. Without a name
	// it answers none, and its exports are functions of the world, which go before the module's own.
	Name   string
	Module []byte
}

// Component makes a component of a core module. The world is the one in the module's own section, else
// the one that is given, in the same encoding; nil = none. The result shares no memory with the arguments.
func Component(module, world []byte, adapters ...Adapter) ([]byte, error) {
	out, err := encode(module, world, adapters)
	if err != nil {
		return nil, fmt.Errorf("make a component: %w", err)
	}
	if _, _, err := binary.Decode(out); err != nil {
		return nil, fmt.Errorf("make a component: what was encoded is %w", err)
	}
	return out, nil
}

func encode(module, given []byte, adapters []Adapter) ([]byte, error) {
	if err := checkSizes(module, adapters); err != nil {
		return nil, err
	}
	main, err := newPart("", module)
	if err != nil {
		return nil, err
	}
	if main.world == nil {
		main.world = given
	}
	if main.world == nil {
		return nil, errors.New("the module has no section component-type, which generators of bindings (wit-bindgen) write: its world is unknown")
	}
	e := &encoder{parts: []*part{main}, imports: newImports()}
	if e.world, err = readWorld(main.world); err != nil {
		return nil, err
	}
	for i, a := range adapters {
		if err := e.adapt(a); err != nil {
			return nil, fmt.Errorf("%s: %w", describeAdapter(i, a), err)
		}
	}
	if err := e.match(); err != nil {
		return nil, fmt.Errorf("the world %s: %w", e.world.name, err)
	}
	return e.write(), nil
}

func checkSizes(module []byte, adapters []Adapter) error {
	if len(adapters) > maxAdapters {
		return fmt.Errorf("%d adapters: at most %d are allowed", len(adapters), maxAdapters)
	}
	total := len(module)
	for _, a := range adapters {
		total += min(len(a.Module), maxModule)
	}
	if total > maxModule {
		return fmt.Errorf("core modules of %d bytes: at most %d are allowed", total, maxModule)
	}
	return nil
}

func describeAdapter(i int, a Adapter) string {
	if a.Name == "" {
		return fmt.Sprintf("adapter %d (of exports)", i+1)
	}
	return fmt.Sprintf("adapter %d (%s)", i+1, a.Name)
}

// encoder holds a module and its adapters against a world.
type encoder struct {
	world   *world
	parts   []*part // the module, then its adapters
	imports *imports
	types   map[place]uint32 // what became of the world's types
	exports []lifted
	table   []entry
}

// lifted is a function that the world exports.
type lifted struct {
	name string
	flat ctype.Flat
	part *part // which has it
	post bool
}

// entry is a function that is called by the table, since it is made after who calls it: one of the component's imports,
// with the memory of that part, or one that an adapter exports.
type entry struct {
	core   *ctype.CoreFunc
	caller *part
	supply *supply
}

// adapt adds an adapter, whose world imports and exports nothing that is an adapter's.
func (e *encoder) adapt(a Adapter) error {
	p, err := newPart(a.Name, a.Module)
	if err != nil {
		return err
	}
	if a.Name == MainModule || a.Name == rootName {
		return fmt.Errorf("%q names something else", a.Name)
	}
	if e.named(a.Name) != nil {
		return errors.New("there is another one of this name")
	}
	if e.world.typ.Import(a.Name) != nil {
		return fmt.Errorf("the world %s imports an interface of this name", e.world.name)
	}
	if a.Name == "" {
		p.memory = false // what it answers stands in the module's
	}
	if p.world != nil {
		w, err := readWorld(p.world)
		if err != nil {
			return err
		}
		if len(w.exported) > 0 {
			return fmt.Errorf("its world %s exports functions: that of an adapter has imports alone", w.name)
		}
		p.own = w
	}
	e.parts = append(e.parts, p)
	return nil
}

// named is the adapter of a name.
func (e *encoder) named(name string) *part {
	for _, p := range e.parts[1:] {
		if name != "" && p.name == name {
			return p
		}
	}
	return nil
}

func (e *encoder) match() error {
	if err := e.mergeWorlds(); err != nil {
		return err
	}
	for i, p := range e.parts {
		for _, im := range p.core.Imports {
			s, err := e.supply(i, im)
			if err != nil {
				return fmt.Errorf("%simport %s of %s: %w", p.prefix(i), im.Name, im.Module, err)
			}
			p.imports = append(p.imports, s)
		}
	}
	for _, x := range e.world.typ.Exports {
		if err := e.matchExport(x.Name, x.Func); err != nil {
			return fmt.Errorf("export %s: %w", x.Name, err)
		}
	}
	return nil
}

// mergeWorlds adds what is used of each world to the component's imports: an adapter's imports are of its own world
// where that has them, else of the module's.
func (e *encoder) mergeWorlds() error {
	used, own := map[string]bool{}, make([]map[string]bool, len(e.parts))
	for i, p := range e.parts {
		own[i] = map[string]bool{}
		for _, im := range p.core.Imports {
			name := im.Module
			if name == rootName {
				name = im.Name
			}
			if p.own != nil && p.own.typ.Import(name) != nil {
				own[i][name] = true
			} else {
				used[name] = true
			}
		}
	}
	var err error
	if e.types, err = e.imports.add(e.world, used); err != nil {
		return err
	}
	for i, p := range e.parts {
		if p.own == nil {
			continue
		}
		if _, err := e.imports.add(p.own, own[i]); err != nil {
			return fmt.Errorf("%sits world %s: %w", p.prefix(i), p.own.name, err)
		}
	}
	return nil
}

func (e *encoder) matchExport(name string, f *ctype.Func) error {
	form, err := flat(f, false)
	if err != nil {
		return err
	}
	l := lifted{name: name, flat: form, part: e.parts[0]}
	for _, p := range e.parts[1:] {
		if p.name != "" || p.core.Export(name) == nil {
			continue
		}
		if l.part != e.parts[0] {
			return errors.New("two adapters have it")
		}
		l.part = p
	}
	x := l.part.core.Export(name)
	if x == nil {
		return fmt.Errorf("the module does not have it: a function %s was expected", l.flat.Core)
	}
	if x.Sort != ctype.CoreFuncs || !x.Func.Equal(l.flat.Core) {
		return fmt.Errorf("the world wants %s, the module has %s", l.flat.Core, describe(x))
	}
	if l.post, err = l.part.optional(postPrefix+name, &ctype.CoreFunc{Params: l.flat.Core.Results}); err != nil {
		return err
	}
	e.exports = append(e.exports, l)
	return needs(l.flat, e.parts[0].memory, l.part.realloc || e.parts[0].realloc)
}

// needs refuses a function whose values go by memory, where what that needs is not exported.
func needs(f ctype.Flat, memory, realloc bool) error {
	switch {
	case (f.Memory || f.Realloc) && !memory:
		return fmt.Errorf("its values go by memory: the module has to export it as %s", memoryName)
	case f.Realloc && !realloc:
		return fmt.Errorf("its values need room in memory: the module has to export %s, %s", reallocName, reallocType)
	}
	return nil
}

func describe(x *ctype.CoreExtern) string {
	if x.Sort == ctype.CoreFuncs {
		return x.Func.String()
	}
	return "a " + x.Sort.String()
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
