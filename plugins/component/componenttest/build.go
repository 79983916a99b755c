// SPDX-License-Identifier: Apache-2.0

// Package componenttest builds components for tests, definition by definition: what they say is not
// checked, so that they may lie. Core modules are written as text.
package componenttest

import (
	"encoding/binary"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/bytejoin"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// Value types without parts.
const (
	Bool   Type = "\x7f"
	S8     Type = "\x7e"
	U8     Type = "\x7d"
	U16    Type = "\x7b"
	S32    Type = "\x7a"
	U32    Type = "\x79"
	S64    Type = "\x78"
	U64    Type = "\x77"
	F32    Type = "\x76"
	F64    Type = "\x75"
	Char   Type = "\x74"
	String Type = "\x73"
)

// Sorts of definitions.
const (
	Func      byte = 1
	TypeSort  byte = 3
	Nested    byte = 4
	Instances byte = 5
)

// Type is the encoding of a reference to a value type.
type Type string

// Ref is the type at an index.
func Ref(i int) Type {
	b := make([]byte, 0, 5)
	for v := i; ; v >>= 7 {
		if v < 0x40 {
			return Type(append(b, byte(v)))
		}
		b = append(b, byte(v&0x7f)|0x80)
	}
}

// U is a number.
func U(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }

// Name is a name.
func Name(s string) []byte { return append(U(len(s)), s...) }

// Join puts parts together: numbers, bytes, text, types.
func Join(parts ...any) []byte {
	plain := make([]any, len(parts))
	for i, p := range parts {
		switch p := p.(type) {
		case Type:
			plain[i] = []byte(p)
		case Option:
			plain[i] = []byte(p)
		default:
			plain[i] = p
		}
	}
	return bytejoin.Join(plain...)
}

// Preamble is how components begin.
const Preamble = "\x00asm\x0d\x00\x01\x00"

// Component is a component that is being built. Its methods return the index of what they add.
type Component struct {
	b                                                               []byte
	modules, cores, coreFuncs, memories, types, funcs, parts, insts int
}

// New begins a component.
func New() *Component { return &Component{b: []byte(Preamble)} }

// Bytes is what has been built.
func (c *Component) Bytes() []byte { return append([]byte(nil), c.b...) }

// Raw adds a section as it is.
func (c *Component) Raw(id byte, content ...any) {
	b := Join(content...)
	c.b = append(append(append(c.b, id), U(len(b))...), b...)
}

func next(n *int) int {
	*n++
	return *n - 1
}

// Core adds a core module, written as text; it panics where the text is wrong.
func (c *Component) Core(text string) int {
	b, err := wat.Assemble(text)
	if err != nil {
		panic(err)
	}
	c.Raw(1, b)
	return next(&c.modules)
}

// Arg is an argument, or an export, with its name.
type Arg struct {
	Name  string
	Sort  byte
	Index int
}

// Instantiate adds an instance of a core module; arguments are core instances.
func (c *Component) Instantiate(module int, args ...Arg) int {
	out := Join(1, byte(0), module, len(args))
	for _, a := range args {
		out = append(out, Join(a.Name, byte(0x12), a.Index)...)
	}
	c.Raw(2, out)
	return next(&c.cores)
}

// Bundle adds a core instance of core functions.
func (c *Component) Bundle(exports ...Arg) int {
	out := Join(1, byte(1), len(exports))
	for _, a := range exports {
		out = append(out, Join(a.Name, a.Sort, a.Index)...)
	}
	c.Raw(2, out)
	return next(&c.cores)
}

// CoreFunc adds what a core instance exports as a function.
func (c *Component) CoreFunc(instance int, name string) int {
	c.Raw(6, 1, byte(0), byte(0), byte(1), instance, name)
	return next(&c.coreFuncs)
}

// Memory adds what a core instance exports as a memory.
func (c *Component) Memory(instance int, name string) int {
	c.Raw(6, 1, byte(0), byte(2), byte(1), instance, name)
	return next(&c.memories)
}

// Type adds a type by its encoding.
func (c *Component) Type(parts ...any) int {
	c.Raw(7, append([]any{1}, parts...)...)
	return next(&c.types)
}

// List adds list<t>.
func (c *Component) List(t Type) Type { return Ref(c.Type(byte(0x70), t)) }

// Option adds option<t>.
func (c *Component) Option(t Type) Type { return Ref(c.Type(byte(0x6b), t)) }

// Result adds result<t, e>.
func (c *Component) Result(t, e Type) Type {
	return Ref(c.Type(byte(0x6a), byte(1), t, byte(1), e))
}

// Tuple adds tuple<...>.
func (c *Component) Tuple(ts ...Type) Type {
	out := Join(byte(0x6f), len(ts))
	for _, t := range ts {
		out = append(out, t...)
	}
	return Ref(c.Type(out))
}

// Own and Borrow add handles to the resource type at an index.
func (c *Component) Own(resource int) Type { return Ref(c.Type(byte(0x69), resource)) }

// Borrow is Own of a handle that is lent.
func (c *Component) Borrow(resource int) Type { return Ref(c.Type(byte(0x68), resource)) }

// Resource adds a resource type; dtor < 0 = it has no destructor.
func (c *Component) Resource(dtor int) int {
	if dtor < 0 {
		return c.Type(byte(0x3f), byte(0x7f), byte(0))
	}
	return c.Type(byte(0x3f), byte(0x7f), byte(1), dtor)
}

// FuncType adds the type of a function with parameters p0, p1, ...; result "" = it has none.
func (c *Component) FuncType(result Type, params ...Type) int {
	return c.Type(funcType("p0", result, params))
}

// funcType is the type of a function, of whose parameters the first has a name.
func funcType(first string, result Type, params []Type) []byte {
	out := Join(byte(0x40), len(params))
	for i, p := range params {
		name := first
		if i > 0 {
			name = "p" + string(rune('0'+i%10)) + suffix(i/10)
		}
		out = append(out, Join(name, p)...)
	}
	if result == "" {
		return append(out, 1, 0)
	}
	return append(append(out, 0), result...)
}

func suffix(n int) string {
	if n == 0 {
		return ""
	}
	return string(rune('a' + n))
}

// Option is a canonical option.
type Option []byte

// Mem is the option "memory".
func Mem(i int) Option { return Option(Join(byte(3), i)) }

// Realloc is the option "realloc".
func Realloc(i int) Option { return Option(Join(byte(4), i)) }

// PostReturn is the option "post-return".
func PostReturn(i int) Option { return Option(Join(byte(5), i)) }

// UTF16 is the option "string-encoding=utf16".
func UTF16() Option { return Option{1} }

// Latin1 is the option "string-encoding=latin1+utf16".
func Latin1() Option { return Option{2} }

func options(opts []Option) []byte {
	out := U(len(opts))
	for _, o := range opts {
		out = append(out, o...)
	}
	return out
}

// Lift adds a function made of a core function.
func (c *Component) Lift(core, typ int, opts ...Option) int {
	c.Raw(8, 1, byte(0), byte(0), core, options(opts), typ)
	return next(&c.funcs)
}

// Lower adds a core function made of a function.
func (c *Component) Lower(fn int, opts ...Option) int {
	c.Raw(8, 1, byte(1), byte(0), fn, options(opts))
	return next(&c.coreFuncs)
}

// Builtin adds resource.new (2), resource.drop (3) or resource.rep (4).
func (c *Component) Builtin(code byte, resource int) int {
	c.Raw(8, 1, code, resource)
	return next(&c.coreFuncs)
}

// ImportFunc adds a function that is imported.
func (c *Component) ImportFunc(name string, typ int) int {
	c.Raw(10, 1, byte(0), name, byte(1), typ)
	return next(&c.funcs)
}

// ImportInstance adds an instance that is imported, of an instance type.
func (c *Component) ImportInstance(name string, typ int) int {
	c.Raw(10, 1, byte(0), name, byte(5), typ)
	return next(&c.insts)
}

// ImportResource adds a resource type that is imported.
func (c *Component) ImportResource(name string) int {
	c.Raw(10, 1, byte(0), name, byte(3), byte(1))
	return next(&c.types)
}

// Export exports a definition, which adds it once more.
func (c *Component) Export(name string, sort byte, i int) int {
	c.Raw(11, 1, byte(0), name, sort, i, byte(0))
	return c.added(sort)
}

func (c *Component) added(sort byte) int {
	switch sort {
	case Func:
		return next(&c.funcs)
	case TypeSort:
		return next(&c.types)
	case Nested:
		return next(&c.parts)
	}
	return next(&c.insts)
}

// Add adds a component.
func (c *Component) Add(in *Component) int {
	c.Raw(4, in.b)
	return next(&c.parts)
}

// Make adds an instance of a component.
func (c *Component) Make(component int, args ...Arg) int {
	out := Join(1, byte(0), component, len(args))
	for _, a := range args {
		out = append(out, Join(a.Name, a.Sort, a.Index)...)
	}
	c.Raw(5, out)
	return next(&c.insts)
}

// Alias adds what an instance exports.
func (c *Component) Alias(sort byte, instance int, name string) int {
	c.Raw(6, 1, sort, byte(0), instance, name)
	return c.added(sort)
}

// InstanceType begins the type of an instance: a list of declarations.
type InstanceType struct {
	n, types int
	b        []byte
}

// Type declares a type.
func (t *InstanceType) Type(parts ...any) int {
	t.n++
	t.b = append(append(t.b, 1), Join(parts...)...)
	return next(&t.types)
}

// Resource exports a resource type.
func (t *InstanceType) Resource(name string) int {
	t.n++
	t.b = append(t.b, Join(byte(4), byte(0), name, byte(3), byte(1))...)
	return next(&t.types)
}

// Export exports a value type under a name, and is the type with that name.
func (t *InstanceType) Export(name string, of Type) int {
	t.n++
	t.b = append(t.b, Join(byte(4), byte(0), name, byte(3), byte(0), of)...)
	return next(&t.types)
}

// Func exports a function. A method's first parameter is "self", as it has to be.
func (t *InstanceType) Func(name string, result Type, params ...Type) {
	first := "p0"
	if strings.HasPrefix(name, "[method]") {
		first = "self"
	}
	i := t.Type(funcType(first, result, params))
	t.n++
	t.b = append(t.b, Join(byte(4), byte(0), name, byte(1), i)...)
}

// InstanceType adds the type of an instance.
func (c *Component) InstanceType(t *InstanceType) int { return c.Type(byte(0x42), t.n, t.b) }

// Outer declares a type of an enclosing scope.
func (t *InstanceType) Outer(count, index int) int {
	t.n++
	t.b = append(t.b, Join(byte(2), byte(3), byte(2), count, index)...)
	return next(&t.types)
}

// Instance exports an instance of an instance type.
func (t *InstanceType) Instance(name string, typ int) {
	t.n++
	t.b = append(t.b, Join(byte(4), byte(0), name, byte(5), typ)...)
}
