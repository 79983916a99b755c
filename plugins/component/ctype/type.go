// SPDX-License-Identifier: Apache-2.0

package ctype

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Kind says what a value type is.
type Kind uint8

// The kinds of value types.
const (
	Bool Kind = iota
	S8
	U8
	S16
	U16
	S32
	U32
	S64
	U64
	F32
	F64
	Char
	String
	List      // of Elem
	FixedList // of Len times Elem
	Record
	Tuple
	Variant
	Enum
	Option // of Elem
	Result // Cases ok and error
	Flags
	Own
	Borrow
	Map // a list of tuples of a key and a value: Elem
)

var kindNames = [...]string{
	"bool", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f32", "f64", "char", "string", "list", "list",
	"record", "tuple", "variant", "enum", "option", "result", "flags", "own", "borrow", "map",
}

// String is the kind as WIT writes it.
func (k Kind) String() string { return kindNames[k] }

// Core is a core value type, as the binary format numbers it.
type Core byte

// Core value types.
const (
	I32       Core = 0x7f
	I64       Core = 0x7e
	CoreF32   Core = 0x7d
	CoreF64   Core = 0x7c
	V128      Core = 0x7b
	FuncRef   Core = 0x70
	ExternRef Core = 0x6f
)

// Bounds of the canonical ABI and of this implementation.
const (
	MaxFlatParams  = 16
	MaxFlatResults = 1
	maxSize        = 1 << 28 // of a value in memory, in bytes; by the specification
	maxDepth       = 100     // of types in types: what lifts and lowers values is recursive
	maxTypes       = 1 << 17 // different types of one component
	maxMembers     = 1000    // fields, cases and labels of one type
	maxAllMembers  = 1 << 18 // of all types together
	maxFlags       = 32      // by the specification
)

// Field is a field of a record, or of a tuple, where it has no name.
type Field struct {
	Name   string
	Type   *Type
	Offset uint32 // in memory
}

// Case is a case of a variant; Type is nil where it has no payload.
type Case struct {
	Name string
	Type *Type
}

// Resource is the identity of a resource type: two are equal where they are the same pointer.
type Resource struct {
	Name  string
	id    uint32
	Local any // what it stands for where the component is linked; nil = nothing yet
}

// Type is a value type. Its fields must not be changed.
type Type struct {
	Kind     Kind
	Elem     *Type
	Len      uint32
	Fields   []Field
	Cases    []Case // of variants, enumerations, options and results
	Labels   []string
	Resource *Resource

	// Layout in memory. Payload is where the payload of a variant begins, Tag the width of its discriminant.
	Size, Align, Payload, Tag uint32
	// Flat is the flat form; nil with TooFlat, where it has more than MaxFlatParams values.
	Flat    []Core
	TooFlat bool

	Memory    bool // it contains a string or a list
	Borrows   bool // it contains a borrow
	Resources bool // it contains a handle

	id    uint32
	depth int
	// The same layout where addresses have 64 bits, by which the specification bounds sizes.
	wide, wideAlign uint64
}

// Set interns types. It is not safe for concurrent use.
type Set struct {
	known     map[string]*Type
	resources uint32
	steps     int
	members   int
	words     []byte
}

// NewSet makes an empty set.
func NewSet() *Set { return &Set{known: map[string]*Type{}} }

// NewResource makes a resource type that equals no other.
func (s *Set) NewResource(name string) *Resource {
	s.resources++
	return &Resource{Name: name, id: s.resources}
}

// Intern returns the type that equals t, or makes it. Its parts have to be of the same set.
func (s *Set) Intern(t *Type) (*Type, error) {
	key := s.key(t)
	if known := s.known[string(key)]; known != nil {
		return known, nil
	}
	if len(s.known) >= maxTypes {
		return nil, fmt.Errorf("more than %d different types", maxTypes)
	}
	if len(t.Fields)+len(t.Cases)+len(t.Labels) > maxMembers {
		return nil, fmt.Errorf("a %s of %d members: at most %d are allowed", t.Kind, len(t.Fields)+len(t.Cases)+len(t.Labels), maxMembers)
	}
	if s.members += len(t.Fields) + len(t.Cases) + len(t.Labels); s.members > maxAllMembers {
		return nil, fmt.Errorf("more than %d fields, cases and labels of all types", maxAllMembers)
	}
	made := *t
	if err := made.complete(); err != nil {
		return nil, err
	}
	made.id = uint32(len(s.known) + 1)
	s.known[string(key)] = &made
	return &made, nil
}

// Primitive is a type without parts.
func (s *Set) Primitive(k Kind) *Type {
	t, _ := s.Intern(&Type{Kind: k}) // nothing of it can be wrong
	return t
}

func (s *Set) key(t *Type) []byte {
	b := append(s.words[:0], byte(t.Kind))
	number := func(n uint32) { b = binary.AppendUvarint(b, uint64(n)) }
	text := func(v string) { number(uint32(len(v))); b = append(b, v...) }
	part := func(p *Type) {
		if p == nil {
			number(0)
			return
		}
		number(p.id)
	}
	part(t.Elem)
	number(t.Len)
	number(uint32(len(t.Fields)))
	for _, f := range t.Fields {
		text(f.Name)
		part(f.Type)
	}
	number(uint32(len(t.Cases)))
	for _, c := range t.Cases {
		text(c.Name)
		part(c.Type)
	}
	for _, l := range t.Labels {
		text(l)
	}
	if t.Resource != nil {
		number(t.Resource.id)
	}
	s.words = b
	return b
}

var errTooBig = errors.New("a type exceeds maximum byte size of 2^28")

// complete computes what follows from a type's parts.
func (t *Type) complete() error {
	size := t.measure()
	t.wide, t.wideAlign = t.measureWide(size)
	if size >= maxSize || t.wide >= maxSize {
		return errTooBig
	}
	t.Size = uint32(size)
	t.Memory = t.Kind == String || t.Kind == List || t.Kind == Map
	t.Borrows, t.Resources = t.Kind == Borrow, t.Kind == Borrow || t.Kind == Own
	t.each(func(p *Type) {
		t.Memory, t.Borrows, t.Resources = t.Memory || p.Memory, t.Borrows || p.Borrows, t.Resources || p.Resources
		t.depth = max(t.depth, p.depth+1)
	})
	if t.depth > maxDepth {
		return fmt.Errorf("types are nested deeper than %d", maxDepth)
	}
	t.flatten()
	return nil
}

// each visits the parts.
func (t *Type) each(visit func(*Type)) {
	if t.Elem != nil {
		visit(t.Elem)
	}
	for _, f := range t.Fields {
		visit(f.Type)
	}
	for _, c := range t.Cases {
		if c.Type != nil {
			visit(c.Type)
		}
	}
}

func alignTo(n uint64, align uint32) uint64 {
	return (n + uint64(align) - 1) &^ (uint64(align) - 1)
}

// measure lays a type out, and returns its size.
func (t *Type) measure() uint64 {
	switch t.Kind {
	case Bool, S8, U8:
		t.Align = 1
		return 1
	case S16, U16:
		t.Align = 2
		return 2
	case S32, U32, F32, Char, Own, Borrow:
		t.Align = 4
		return 4
	case S64, U64, F64:
		t.Align = 8
		return 8
	case String, List, Map:
		t.Align = 4
		return 8
	case FixedList:
		t.Align = t.Elem.Align
		return uint64(t.Elem.Size) * uint64(t.Len)
	case Record, Tuple:
		return t.measureFields()
	case Flags:
		t.Align = width(uint64(1) << min(len(t.Labels), maxFlags))
		return uint64(t.Align)
	case Variant, Enum, Option, Result:
		return t.measureCases()
	}
	return maxSize
}

func (t *Type) measureFields() uint64 {
	t.Align = 1
	fields := make([]Field, len(t.Fields))
	var at uint64
	for i, f := range t.Fields {
		at = alignTo(at, f.Type.Align)
		f.Offset = uint32(min(at, maxSize))
		fields[i] = f
		at += uint64(f.Type.Size)
		t.Align = max(t.Align, f.Type.Align)
	}
	t.Fields = fields
	return alignTo(at, t.Align)
}

// measureWide measures as if addresses had 64 bits; size is that with 32.
func (t *Type) measureWide(size uint64) (wide, align uint64) {
	align = uint64(t.Align)
	switch t.Kind {
	case String, List, Map:
		return 16, 8
	case FixedList:
		return t.Elem.wide * uint64(t.Len), t.Elem.wideAlign
	case Record, Tuple:
		for _, f := range t.Fields {
			wide = alignTo(wide, uint32(f.Type.wideAlign)) + f.Type.wide
			align = max(align, f.Type.wideAlign)
		}
	case Variant, Enum, Option, Result:
		payload := uint64(1)
		for _, c := range t.Cases {
			if c.Type != nil {
				payload, wide = max(payload, c.Type.wideAlign), max(wide, c.Type.wide)
			}
		}
		align = max(uint64(t.Tag), payload)
		wide += alignTo(uint64(t.Tag), uint32(payload))
	default:
		return size, align
	}
	return alignTo(wide, uint32(align)), align
}

// width is how many bytes a number below n takes.
func width(n uint64) uint32 {
	switch {
	case n <= 1<<8:
		return 1
	case n <= 1<<16:
		return 2
	}
	return 4
}

func (t *Type) measureCases() uint64 {
	t.Tag = width(uint64(len(t.Cases)))
	var size uint64
	payload := uint32(1)
	for _, c := range t.Cases {
		if c.Type != nil {
			payload = max(payload, c.Type.Align)
			size = max(size, uint64(c.Type.Size))
		}
	}
	t.Align = max(t.Tag, payload)
	t.Payload = uint32(alignTo(uint64(t.Tag), payload))
	return alignTo(uint64(t.Payload)+size, t.Align)
}

// flatten makes the flat form, unless it is too long.
func (t *Type) flatten() {
	var out []Core
	add := func(p *Type) {
		if p.TooFlat || len(out)+len(p.Flat) > MaxFlatParams {
			t.TooFlat = true
			return
		}
		out = append(out, p.Flat...)
	}
	switch t.Kind {
	case S64, U64:
		out = []Core{I64}
	case F32:
		out = []Core{CoreF32}
	case F64:
		out = []Core{CoreF64}
	case String, List, Map:
		out = []Core{I32, I32}
	case FixedList:
		for i := uint32(0); i < t.Len && !t.TooFlat; i++ {
			add(t.Elem)
			if len(t.Elem.Flat) == 0 && !t.Elem.TooFlat {
				break
			}
		}
	case Record, Tuple:
		for _, f := range t.Fields {
			add(f.Type)
		}
	case Variant, Enum, Option, Result:
		out = t.flattenCases()
	default:
		out = []Core{I32}
	}
	if t.TooFlat {
		out = nil
	}
	t.Flat = out
}

func (t *Type) flattenCases() []Core {
	out := []Core{I32}
	for _, c := range t.Cases {
		if c.Type == nil {
			continue
		}
		if c.Type.TooFlat || len(c.Type.Flat) >= MaxFlatParams {
			t.TooFlat = true
			return nil
		}
		for i, f := range c.Type.Flat {
			if i+1 < len(out) {
				out[i+1] = join(out[i+1], f)
			} else {
				out = append(out, f)
			}
		}
	}
	return out
}

// join is the core type that can carry values of both.
func join(a, b Core) Core {
	switch {
	case a == b:
		return a
	case a == I32 && b == CoreF32, a == CoreF32 && b == I32:
		return I32
	}
	return I64
}

// String is the type as WIT writes it, shortened where it is long.
func (t *Type) String() string {
	switch t.Kind {
	case List, Option, Map:
		return fmt.Sprintf("%s<%s>", t.Kind, t.Elem.brief())
	case FixedList:
		return fmt.Sprintf("list<%s, %d>", t.Elem.brief(), t.Len)
	case Tuple:
		var parts []string
		for _, f := range t.Fields[:min(len(t.Fields), 4)] {
			parts = append(parts, f.Type.brief())
		}
		return "tuple<" + strings.Join(parts, ", ") + ">"
	case Own, Borrow:
		return fmt.Sprintf("%s<%s>", t.Kind, t.Resource.Name)
	default:
	}
	return t.Kind.String()
}

func (t *Type) brief() string {
	if t.depth > 2 {
		return t.Kind.String()
	}
	return t.String()
}
