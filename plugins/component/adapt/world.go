// SPDX-License-Identifier: Apache-2.0

package adapt

import "github.com/wasmplane/wasmplane/plugins/component/bytejoin"

// The parts of a component's type (Binary.md).
const (
	declaresType   = byte(1)
	declaresAlias  = byte(2)
	declaresImport = byte(3)
	declaresExport = byte(4)

	sortFunc      = byte(1)
	sortType      = byte(3)
	sortComponent = byte(4)
	sortInstance  = byte(5)

	equalTo     = byte(0)
	aResource   = byte(1)
	aliasExport = byte(0)
	aliasOuter  = byte(2)

	formComponent = byte(0x41)
	formInstance  = byte(0x42)
	formFunc      = byte(0x40)
)

// scope is the type of an interface or of a world, as its declarations.
type scope struct {
	n, types, instances int
	b                   []byte
	named               map[string]int  // the indices of types by name
	asked               map[string]bool // if it is there, the names that were looked up
}

// index finds a type by its name.
func (s *scope) index(name string) int {
	if s.asked != nil {
		s.asked[name] = true
	}
	return s.named[name]
}

func (s *scope) declare(encoded []byte) {
	s.n++
	s.b = append(s.b, encoded...)
}

// next is the index of the type that is being declared.
func (s *scope) next() int {
	s.types++
	return s.types - 1
}

// define declares a type, and returns a reference to it.
func (s *scope) define(parts ...any) []byte {
	s.declare(append([]byte{declaresType}, bytejoin.Join(parts...)...))
	return reference(s.next())
}

// reference is an index where a primitive type could stand, which is why it has a sign.
func reference(i int) []byte {
	if i&0x40 == 0 && i < 0x40 {
		return []byte{byte(i)}
	}
	return []byte{byte(i&0x7f) | 0x80, byte(i >> 7)} // no scope has 8,192 types
}

func (s *scope) exportType(name string, bound []byte) {
	s.declare(bytejoin.Join(declaresExport, byte(0), name, sortType, bound))
	s.named[name] = s.next()
}

func (s *scope) declareType(name string) {
	if declared[name] == nil {
		s.exportType(name, []byte{aResource})
		return
	}
	declared[name](s)
	s.exportType(name, bytejoin.Join(equalTo, s.types-1))
}

func (s *scope) function(f function) {
	params := make([]any, 0, 2*len(f.params)+2)
	for _, p := range f.params {
		params = append(params, p.name, p.typ(s))
	}
	answer := []byte{1, 0} // nothing
	if f.result != nil {
		answer = append([]byte{0}, f.result(s)...)
	}
	s.define(formFunc, len(f.params), bytejoin.Join(params...), answer)
	s.declare(bytejoin.Join(declaresExport, byte(0), f.name, sortFunc, s.types-1))
}

// imports adds an interface to a world, and gives it the types of the interface.
func (s *scope) imports(name string, of *scope, types []string) {
	s.define(formInstance, of.n, of.b)
	s.declare(bytejoin.Join(declaresImport, byte(0), name, sortInstance, s.types-1))
	for _, t := range types {
		s.declare(bytejoin.Join(declaresAlias, sortType, aliasExport, s.instances, t))
		s.named[t] = s.next()
	}
	s.instances++
}

// section is a world as a section of a module.
func (s *scope) section(name string) []byte {
	custom := func(name string, content []byte) []byte {
		body := bytejoin.Join(name, content)
		return bytejoin.Join(byte(0), len(body), body)
	}
	world := bytejoin.Join(formComponent, 2, declaresType, formComponent, s.n, s.b,
		declaresExport, byte(0), "adapter:adapter/"+name, sortComponent, 0)
	types, exports := bytejoin.Join(1, world), bytejoin.Join(1, byte(0), name, sortType, 0, byte(0))
	return custom("component-type:"+name, bytejoin.Join([]byte("\x00asm\x0d\x00\x01\x00"),
		custom("wit-component-encoding", []byte{4, 0}), byte(7), len(types), types, byte(11), len(exports), exports))
}

// shape defines a type in a scope, and returns a reference to it.
type shape func(s *scope) []byte

func primitive(code byte) shape { return func(*scope) []byte { return []byte{code} } }

var (
	text = primitive(0x73)
	u64  = primitive(0x77)
	u32  = primitive(0x79)
	u8   = primitive(0x7d)
)

func named(name string) shape { return func(s *scope) []byte { return reference(s.index(name)) } }

func own(name string) shape {
	return func(s *scope) []byte { return s.define(byte(0x69), s.index(name)) }
}

func borrow(name string) shape {
	return func(s *scope) []byte { return s.define(byte(0x68), s.index(name)) }
}

func list(of shape) shape { return func(s *scope) []byte { return s.define(byte(0x70), of(s)) } }

func tuple(of ...shape) shape {
	return func(s *scope) []byte {
		var all []byte
		for _, t := range of {
			all = append(all, t(s)...)
		}
		return s.define(byte(0x6f), len(of), all)
	}
}

func record(of ...param) shape {
	return func(s *scope) []byte {
		var all []byte
		for _, f := range of {
			all = append(all, bytejoin.Join(f.name, f.typ(s))...)
		}
		return s.define(byte(0x72), len(of), all)
	}
}

// optional is a type that may be missing.
func optional(s *scope, of shape) []byte {
	if of == nil {
		return []byte{0}
	}
	return append([]byte{1}, of(s)...)
}

func variant(of ...param) shape {
	return func(s *scope) []byte {
		var all []byte
		for _, c := range of {
			all = append(all, bytejoin.Join(c.name, optional(s, c.typ), byte(0))...)
		}
		return s.define(byte(0x71), len(of), all)
	}
}

func result(ok, failed shape) shape {
	return func(s *scope) []byte { return s.define(byte(0x6a), optional(s, ok), optional(s, failed)) }
}
