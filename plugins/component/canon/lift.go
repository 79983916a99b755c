// SPDX-License-Identifier: Apache-2.0

package canon

import (
	"encoding/binary"
	"math"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// Load lifts a value from memory at an address that is known to be in bounds and aligned.
func (c *Context) load(p uint32, t *ctype.Type) any {
	c.Account.Charge(perValue)
	m := c.Bytes()[p:]
	switch t.Kind {
	case ctype.Bool:
		return m[0] != 0
	case ctype.S8:
		return int8(m[0])
	case ctype.U8:
		return m[0]
	case ctype.S16:
		return int16(binary.LittleEndian.Uint16(m))
	case ctype.U16:
		return binary.LittleEndian.Uint16(m)
	case ctype.S64, ctype.U64, ctype.F64:
		return scalar(t.Kind, binary.LittleEndian.Uint64(m))
	case ctype.String:
		return c.loadString(binary.LittleEndian.Uint32(m), binary.LittleEndian.Uint32(m[4:]))
	case ctype.List, ctype.Map:
		return c.loadList(binary.LittleEndian.Uint32(m), uint64(binary.LittleEndian.Uint32(m[4:])), t.Elem)
	case ctype.FixedList:
		return c.loadElements(p, uint64(t.Len), t.Elem)
	case ctype.Record, ctype.Tuple:
		c.Account.Hold(24 + 16*int64(len(t.Fields)))
		out := make([]any, len(t.Fields))
		for i := range t.Fields {
			out[i] = c.load(p+t.Fields[i].Offset, t.Fields[i].Type)
		}
		return out
	case ctype.Flags:
		return flagsOf(t, number(m, t.Size))
	case ctype.Variant, ctype.Enum, ctype.Option, ctype.Result:
		return c.loadVariant(p, number(m, t.Tag), t)
	default:
	}
	return c.scalar32(t, binary.LittleEndian.Uint32(m))
}

func number(m []byte, width uint32) uint32 {
	switch width {
	case 1:
		return uint32(m[0])
	case 2:
		return uint32(binary.LittleEndian.Uint16(m))
	}
	return binary.LittleEndian.Uint32(m)
}

func flagsOf(t *ctype.Type, v uint32) Flags {
	return Flags(v & uint32(uint64(1)<<len(t.Labels)-1))
}

func (c *Context) loadVariant(p, which uint32, t *ctype.Type) any {
	of := caseOf(t, which)
	c.Account.Hold(32)
	if of.Type == nil {
		return Variant{Case: which}
	}
	return Variant{Case: which, Value: c.load(p+t.Payload, of.Type)}
}

func caseOf(t *ctype.Type, which uint32) *ctype.Case {
	if int64(which) >= int64(len(t.Cases)) {
		Fail("invalid variant discriminant %d: %s has %d cases", which, t, len(t.Cases))
	}
	return &t.Cases[which]
}

// scalar is a value of 64 bits, or one that a flat slot carries.
func scalar(k ctype.Kind, v uint64) any {
	switch k {
	case ctype.S64:
		return int64(v)
	case ctype.F64:
		f := math.Float64frombits(v)
		if f != f {
			f = math.Float64frombits(0x7ff8000000000000)
		}
		return f
	default:
	}
	return v
}

// scalar32 is a value of 32 bits, a handle among them.
func (c *Context) scalar32(t *ctype.Type, v uint32) any {
	switch t.Kind {
	case ctype.S32:
		return int32(v)
	case ctype.U32:
		return v
	case ctype.F32:
		f := math.Float32frombits(v)
		if f != f {
			f = math.Float32frombits(0x7fc00000)
		}
		return f
	case ctype.Char:
		if v >= 0x110000 || v >= 0xd800 && v <= 0xdfff {
			Fail("integer %#x is no valid character: it is a surrogate, or too large (converted integer out of range for `char`)", v)
		}
		return rune(v)
	case ctype.Own:
		c.Account.Charge(perHandle)
		return c.liftOwn(c.Resource(t.Resource), v)
	case ctype.Borrow:
		c.Account.Charge(perHandle)
		return c.liftBorrow(c.Resource(t.Resource), v)
	default:
	}
	Fail("a %s cannot be lifted", t)
	return nil
}

// By the specification, so that a copy in another encoding fits into 32 bits too.
const maxBytes = 1<<28 - 1

const wideTag = 1 << 31

func (c *Context) loadString(p, tagged uint32) any {
	out := text{encoding: c.Encoding, units: tagged}
	align, size := uint32(1), uint64(tagged)
	switch c.Encoding {
	case UTF8:
	case UTF16:
		align, size = 2, 2*uint64(tagged)
	case Latin1:
		align = 2
		if tagged&wideTag != 0 {
			out.wide, out.units = true, tagged&^wideTag
			size = 2 * uint64(out.units)
		}
	}
	if size > maxBytes {
		Fail("string of %d bytes is too long: content out of bounds", size)
	}
	b := c.region(p, size, align, "string")
	c.bytes(size + 24)
	switch {
	case c.Encoding == UTF8:
		if !utf8.Valid(b) {
			Fail("invalid utf-8 in a string")
		}
		out.value = string(b)
	case c.Encoding == UTF16 || out.wide:
		c.bytes(size)
		out.value = fromUTF16(b)
	default:
		c.bytes(size)
		out.value = fromLatin1(b)
	}
	if c.Keep {
		return out
	}
	return out.value
}

func fromUTF16(b []byte) string {
	var s strings.Builder
	s.Grow(len(b) / 2)
	for i := 0; i < len(b); i += 2 {
		u := rune(binary.LittleEndian.Uint16(b[i:]))
		if utf16.IsSurrogate(u) {
			var low rune
			if i+3 < len(b) {
				low = rune(binary.LittleEndian.Uint16(b[i+2:]))
			}
			if u = utf16.DecodeRune(u, low); u == utf8.RuneError {
				Fail("unpaired surrogate in a string: invalid utf-16")
			}
			i += 2
		}
		s.WriteRune(u)
	}
	return s.String()
}

func fromLatin1(b []byte) string {
	var s strings.Builder
	s.Grow(len(b))
	for _, u := range b {
		s.WriteRune(rune(u))
	}
	return s.String()
}

func (c *Context) loadList(p uint32, n uint64, of *ctype.Type) any {
	size := n * uint64(of.Size)
	if size > maxBytes {
		Fail("list of %d bytes is too long: content out of bounds", size)
	}
	c.region(p, size, of.Align, "list")
	return c.loadElements(p, n, of)
}

func (c *Context) loadElements(p uint32, n uint64, of *ctype.Type) any {
	if of.Kind == ctype.U8 {
		c.bytes(n + 24)
		return append([]byte(nil), c.Bytes()[p:uint64(p)+n]...)
	}
	// An element is an interface, and most have something behind it.
	c.Account.Hold(24 + 24*int64(n))
	out := make([]any, n)
	for i := range out {
		out[i] = c.load(p+uint32(i)*of.Size, of)
	}
	return out
}

// Flat are the core values of a call, read from the front.
type flat struct {
	values []uint64
	at     int
}

func (f *flat) next() uint64 {
	f.at++
	return f.values[f.at-1]
}

// liftFlat lifts a value from core values. What joins of types have widened arrives in the low bits.
func (c *Context) liftFlat(f *flat, t *ctype.Type) any {
	c.Account.Charge(perValue)
	switch t.Kind {
	case ctype.Bool:
		return uint32(f.next()) != 0
	case ctype.S8:
		return int8(f.next())
	case ctype.U8:
		return uint8(f.next())
	case ctype.S16:
		return int16(f.next())
	case ctype.U16:
		return uint16(f.next())
	case ctype.S64, ctype.U64, ctype.F64:
		return scalar(t.Kind, f.next())
	case ctype.String:
		p, n := f.next(), f.next()
		return c.loadString(uint32(p), uint32(n))
	case ctype.List, ctype.Map:
		p, n := f.next(), f.next()
		return c.loadList(uint32(p), uint64(uint32(n)), t.Elem)
	case ctype.FixedList:
		return c.liftFixed(f, t)
	case ctype.Record, ctype.Tuple:
		c.Account.Hold(24 + 16*int64(len(t.Fields)))
		out := make([]any, len(t.Fields))
		for i := range t.Fields {
			out[i] = c.liftFlat(f, t.Fields[i].Type)
		}
		return out
	case ctype.Flags:
		return flagsOf(t, uint32(f.next()))
	case ctype.Variant, ctype.Enum, ctype.Option, ctype.Result:
		end := f.at + len(t.Flat)
		which := uint32(f.next())
		v := Variant{Case: which}
		if of := caseOf(t, which); of.Type != nil {
			v.Value = c.liftFlat(f, of.Type)
		}
		f.at = end
		return v
	default:
	}
	return c.scalar32(t, uint32(f.next()))
}

func (c *Context) liftFixed(f *flat, t *ctype.Type) any {
	if t.Elem.Kind == ctype.U8 {
		out := make([]byte, t.Len)
		for i := range out {
			out[i] = uint8(f.next())
		}
		return out
	}
	out := make([]any, t.Len)
	for i := range out {
		out[i] = c.liftFlat(f, t.Elem)
	}
	return out
}

// LiftParams lifts a call's arguments. Where spilled is set they lie in memory, as this tuple.
func (c *Context) LiftParams(values []uint64, params []ctype.Param, spilled *ctype.Type) []any {
	if spilled != nil {
		return c.liftAt(uint32(values[0]), spilled).([]any) //nolint:forcetypeassert // a tuple's value
	}
	f := &flat{values: values}
	out := make([]any, len(params))
	for i := range params {
		out[i] = c.liftFlat(f, params[i].Type)
	}
	return out
}

// LiftResult lifts a call's result: from core values, or from where the one value points.
func (c *Context) LiftResult(values []uint64, t *ctype.Type) any {
	if inMemory(t) {
		return c.liftAt(uint32(values[0]), t)
	}
	return c.liftFlat(&flat{values: values}, t)
}

func inMemory(t *ctype.Type) bool { return t.TooFlat || len(t.Flat) > ctype.MaxFlatResults }

func (c *Context) liftAt(p uint32, t *ctype.Type) any {
	c.region(p, uint64(t.Size), t.Align, "a value's")
	return c.load(p, t)
}
