// SPDX-License-Identifier: Apache-2.0

package encode

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// How generators of bindings write a world: a section of the module whose name begins so, and in it a section that
// says how strings are encoded (wit-component, metadata.rs).
const (
	worldSection    = "component-type"
	encodingSection = "wit-component-encoding"
	encodingVersion = 4
)

// Forms of declarations in a component's type (Binary.md, componentdecl).
const (
	declaresCoreType = iota
	declaresType
	declaresAlias
	declaresImport
	declaresExport
)

// world is a world as it was encoded: the type of a component.
type world struct {
	name     string
	typ      *ctype.Component
	strings  byte // the canonical option of how they are encoded
	before   []declaration
	exported map[string]uint32 // the types of exported functions, by their index
}

// readWorld reads an encoded world.
func readWorld(encoded []byte) (*world, error) {
	w, err := decodeWorld(encoded)
	if err != nil {
		return nil, fmt.Errorf("the world: %w", err)
	}
	return w, nil
}

func decodeWorld(encoded []byte) (*world, error) {
	if len(encoded) > maxWorld {
		return nil, fmt.Errorf("%d bytes: at most %d are allowed", len(encoded), maxWorld)
	}
	c, _, err := binary.Decode(encoded)
	if err != nil {
		return nil, err
	}
	w := &world{exported: map[string]uint32{}}
	if err := w.find(c.Type); err != nil {
		return nil, err
	}
	for _, e := range w.typ.Exports {
		if e.Sort != ctype.Funcs {
			return nil, fmt.Errorf("%s exports the %s %s: only functions are lifted", w.name, e.Sort, e.Name)
		}
	}
	types, err := w.sections(encoded)
	if err != nil {
		return nil, err
	}
	return w, w.declarations(types)
}

var errForm = errors.New("it is not in the form in which generators of bindings write one")

// find finds the world: the component exports a type, which is a component that exports the world.
func (w *world) find(c *ctype.Component) error {
	if len(c.Exports) != 1 || c.Exports[0].Sort != ctype.Types || c.Exports[0].Def.Component == nil {
		return errForm
	}
	outer := c.Exports[0].Def.Component
	if len(outer.Exports) != 1 || len(outer.Imports) > 0 || outer.Exports[0].Sort != ctype.Components {
		return errForm
	}
	w.name, w.typ = outer.Exports[0].Name, outer.Exports[0].Component
	return nil
}

// sections returns the section of types, and takes how strings are encoded.
func (w *world) sections(encoded []byte) (*cursor, error) {
	var types *cursor
	for c := (&cursor{b: encoded, at: len(preamble)}); !c.done(); {
		id := c.byte()
		s := c.part()
		switch {
		case c.err != nil:
			return nil, c.err
		case id == sectionType && types != nil:
			return nil, errForm
		case id == sectionType:
			types = s
		case id == sectionCustom && s.name() == encodingSection:
			if version := s.byte(); version != encodingVersion {
				return nil, fmt.Errorf("its encoding is of version %d, %d is known: build with a newer generator of bindings", version, encodingVersion)
			}
			if w.strings = s.byte(); w.strings > 2 {
				return nil, fmt.Errorf("strings are encoded in the way %d, which is not known", w.strings)
			}
		}
	}
	if types == nil {
		return nil, errForm
	}
	return types, nil
}

// declarations takes the declarations of the world's type. All but exports become items of the component's
// sections, where they are used.
func (w *world) declarations(c *cursor) error {
	types, outer, _ := c.u32(), c.byte(), c.u32()
	first, form, n := c.byte(), c.byte(), c.u32()
	if types != 1 || outer != formComponent || first != declaresType || form != formComponent {
		return errForm
	}
	for ; n > 0 && c.err == nil; n-- {
		kind, begin := c.byte(), c.at
		var section byte
		switch kind {
		case declaresType:
			section = sectionType
			c.skipType()
		case declaresAlias:
			section = sectionAlias
			c.skipAlias()
		case declaresImport:
			section = sectionImport
			c.externName()
			c.skipExtern()
		case declaresExport: // of a function: others were refused
			name := c.externName()
			c.byte()
			w.exported[name] = c.u32()
			continue
		default:
			return errForm
		}
		w.before = append(w.before, declaration{section, c.b[begin:c.at]})
	}
	return c.err
}

// section finds the world in a module, and returns the module without it.
func section(module []byte) (world, rest []byte, err error) {
	c := &cursor{b: module, at: min(len(module), len(coreMagic))}
	rest = append(rest, module[:c.at]...)
	for !c.done() {
		begin := c.at
		id := c.byte()
		s := c.part()
		if c.err != nil {
			return nil, nil, c.err
		}
		if id != sectionCustom || !bytes.HasPrefix([]byte(s.name()), []byte(worldSection)) {
			rest = append(rest, module[begin:c.at]...)
			continue
		}
		if world != nil && !bytes.Equal(world, s.rest()) {
			return nil, nil, errors.New("the module has several worlds: make one world that includes them")
		}
		world = s.rest()
	}
	return world, rest, nil
}
