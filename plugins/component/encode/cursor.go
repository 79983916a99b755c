// SPDX-License-Identifier: Apache-2.0

package encode

import (
	"errors"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
	"github.com/wasmplane/wasmplane/plugins/leb128"
)

// Sections of a component, and of a core module those that are written here.
const (
	sectionCustom       = 0
	sectionCoreModule   = 1
	sectionCoreInstance = 2
	sectionAlias        = 6
	sectionType         = 7
	sectionCanon        = 8
	sectionImport       = 10
	sectionExport       = 11
)

// Forms of types (Binary.md, Type Definitions).
const (
	formFunc      = 0x40
	formComponent = 0x41
	formInstance  = 0x42
	formAsync     = 0x43
)

// aliasOuter is the form of an alias of what an enclosing scope has.
const aliasOuter = 2

// cursor walks along bytes that package binary has found valid: it need not know what they mean, only where they end,
// and which of them are indices into the index spaces of the world.
type cursor struct {
	b   []byte
	at  int
	err error

	depth  int                                         // in how many types of instances and components it is
	index  func(sort ctype.Sort, i uint32) (to uint32) // what an index becomes; nil = it stays
	out    []byte                                      // the bytes with their new indices, up to copied
	copied int
}

var errEnd = errors.New("it ends in the middle")

func (c *cursor) done() bool { return c.err != nil || c.at >= len(c.b) }

func (c *cursor) rest() []byte { return c.b[c.at:] }

func (c *cursor) fail() {
	c.err, c.at = errEnd, len(c.b)
}

func (c *cursor) byte() byte {
	if c.at >= len(c.b) {
		c.fail()
		return 0
	}
	c.at++
	return c.b[c.at-1]
}

func (c *cursor) u32() uint32 {
	v, n, err := leb128.Unsigned(c.b[c.at:], 32)
	if err != nil {
		c.fail()
		return 0
	}
	c.at += n
	return uint32(v)
}

// bytes takes as many as a number before them says.
func (c *cursor) bytes() []byte {
	n := c.u32()
	if uint64(n) > uint64(len(c.b)-c.at) {
		c.fail()
		return nil
	}
	c.at += int(n)
	return c.b[c.at-int(n) : c.at]
}

func (c *cursor) name() string { return string(c.bytes()) }

// reference takes an index. In a type of an instance it is an index into that type's own spaces, and stays.
func (c *cursor) reference(sort ctype.Sort) {
	begin := c.at
	if i := c.u32(); c.depth == 0 {
		c.replace(sort, begin, i, unsigned)
	}
}

func (c *cursor) replace(sort ctype.Sort, begin int, i uint32, encode func(int) []byte) {
	if c.index == nil || c.err != nil {
		return
	}
	c.out = append(append(c.out, c.b[c.copied:begin]...), encode(int(c.index(sort, i)))...)
	c.copied = c.at
}

// rewritten returns what was walked along, with its new indices.
func (c *cursor) rewritten() []byte { return append(c.out, c.b[c.copied:c.at]...) }

func (c *cursor) part() *cursor { return &cursor{b: c.bytes(), err: c.err} }

// each does something as often as a number says.
func (c *cursor) each(skip func()) {
	for n := c.u32(); n > 0 && c.err == nil; n-- {
		skip()
	}
}

// externName takes the name of an import or export, and skips its attributes.
func (c *cursor) externName() string {
	form := c.byte()
	name := c.name()
	if form == 2 {
		c.each(func() { c.byte(); c.bytes() })
	}
	return name
}

// skipExtern skips the type of an import or export.
func (c *cursor) skipExtern() {
	switch c.byte() {
	case 0: // a module: its sort has two bytes
		c.byte()
		c.u32()
		return
	case 3: // a type: equal to one, or a resource
		if c.byte() == 1 {
			return
		}
	}
	c.reference(ctype.Types)
}

func (c *cursor) skipAlias() {
	sort := ctype.Sort(c.byte())
	if sort == ctype.Core0 {
		c.byte()
	}
	switch c.byte() {
	case aliasOuter:
		outwards, begin := int(c.u32()), c.at
		i := c.u32()
		switch {
		case outwards > c.depth: // outside of the world nothing is
			c.fail()
		case outwards == c.depth:
			c.replace(sort, begin, i, unsigned)
		}
	default:
		c.reference(ctype.Instances)
		c.bytes()
	}
}

// skipValue skips a reference to a type: one byte, or an index.
func (c *cursor) skipValue() {
	begin := c.at
	i := c.u32()
	if primitive := c.at == begin+1 && i >= 0x40; c.depth == 0 && !primitive {
		c.replace(ctype.Types, begin, i, signed)
	}
}

func (c *cursor) skipOptional() {
	if c.byte() == 1 {
		c.skipValue()
	}
}

func (c *cursor) skipType() {
	switch c.byte() {
	case formFunc, formAsync:
		c.each(func() { c.bytes(); c.skipValue() })
		if c.byte() == 0 {
			c.skipValue()
		} else {
			c.byte()
		}
	case formComponent, formInstance:
		c.depth++
		c.each(c.skipDeclaration)
		c.depth--
	case 0x72: // record
		c.each(func() { c.bytes(); c.skipValue() })
	case 0x71: // variant
		c.each(func() { c.bytes(); c.skipOptional(); c.byte() })
	case 0x70, 0x6b: // list, option
		c.skipValue()
	case 0x69, 0x68: // own, borrow
		c.reference(ctype.Types)
	case 0x67: // list of a fixed length
		c.skipValue()
		c.u32()
	case 0x6f: // tuple
		c.each(c.skipValue)
	case 0x6e, 0x6d: // flags, enum
		c.each(func() { c.bytes() })
	case 0x6a: // result
		c.skipOptional()
		c.skipOptional()
	case 0x63: // map
		c.skipValue()
		c.skipValue()
	}
}

func (c *cursor) skipDeclaration() {
	switch c.byte() {
	case declaresType:
		c.skipType()
	case declaresAlias:
		c.skipAlias()
	case declaresImport, declaresExport:
		c.externName()
		c.skipExtern()
	default: // a core type, which nothing here has use for
		c.fail()
	}
}
