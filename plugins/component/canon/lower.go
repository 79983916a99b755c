// SPDX-License-Identifier: Apache-2.0

package canon

import (
	"encoding/binary"
	"math"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// is asserts what a value is: the host's own answers are believed as little as a guest's.
func is[T any](v any, t *ctype.Type) T {
	out, ok := v.(T)
	if !ok {
		Fail("expected a value of %s, found %T", t, v)
	}
	return out
}

// store lowers a value to an address that is known to be in bounds and aligned.
func (c *Context) store(v any, t *ctype.Type, p uint32) {
	c.Account.Charge(perValue)
	switch t.Kind {
	case ctype.String:
		at, n := c.storeString(v, t)
		c.put(p, at, n)
	case ctype.List, ctype.Map:
		at, n := c.storeList(v, t)
		c.put(p, at, n)
	case ctype.FixedList:
		if length(v, t) != int(t.Len) {
			Fail("expected %d elements, found %d", t.Len, length(v, t))
		}
		c.storeElements(v, t, p)
	case ctype.Record, ctype.Tuple:
		fields := fieldsOf(v, t)
		for i := range t.Fields {
			c.store(fields[i], t.Fields[i].Type, p+t.Fields[i].Offset)
		}
	case ctype.Variant, ctype.Enum, ctype.Option, ctype.Result:
		x := is[Variant](v, t)
		of := caseOf(t, x.Case)
		c.number(p, uint64(x.Case), t.Tag)
		if of.Type != nil {
			c.store(x.Value, of.Type, p+t.Payload)
		}
	default:
		c.number(p, c.bits(v, t), t.Size)
	}
}

func fieldsOf(v any, t *ctype.Type) []any {
	fields := is[[]any](v, t)
	if len(fields) != len(t.Fields) {
		Fail("expected %d fields of a %s, found %d", len(t.Fields), t.Kind, len(fields))
	}
	return fields
}

// put writes address and length.
func (c *Context) put(p, at, n uint32) {
	m := c.Bytes()[p : p+8]
	binary.LittleEndian.PutUint32(m, at)
	binary.LittleEndian.PutUint32(m[4:], n)
}

func (c *Context) number(p uint32, v uint64, width uint32) {
	m := c.Bytes()[p:]
	switch width {
	case 1:
		m[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(m, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(m, uint32(v))
	default:
		binary.LittleEndian.PutUint64(m, v)
	}
}

// bits are the bits of a value that has no parts; those of 32 or fewer are zero above.
func (c *Context) bits(v any, t *ctype.Type) uint64 {
	switch t.Kind {
	case ctype.Bool:
		if is[bool](v, t) {
			return 1
		}
		return 0
	case ctype.S8:
		return uint64(uint32(int32(is[int8](v, t))))
	case ctype.U8:
		return uint64(is[uint8](v, t))
	case ctype.S16:
		return uint64(uint32(int32(is[int16](v, t))))
	case ctype.U16:
		return uint64(is[uint16](v, t))
	case ctype.S32:
		return uint64(uint32(is[int32](v, t)))
	case ctype.U32:
		return uint64(is[uint32](v, t))
	case ctype.S64:
		return uint64(is[int64](v, t))
	case ctype.U64:
		return is[uint64](v, t)
	case ctype.F32:
		return uint64(math.Float32bits(is[float32](v, t)))
	case ctype.F64:
		return math.Float64bits(is[float64](v, t))
	case ctype.Char:
		r := is[rune](v, t)
		if !utf8.ValidRune(r) {
			Fail("%#x is no character", r)
		}
		return uint64(r)
	case ctype.Flags:
		return uint64(flagsOf(t, uint32(is[Flags](v, t))))
	case ctype.Own, ctype.Borrow:
		return uint64(c.lowerHandle(c.Resource(t.Resource), t.Kind == ctype.Own, v))
	default:
	}
	Fail("a %s cannot be lowered", t)
	return 0
}

func length(v any, t *ctype.Type) int {
	if t.Elem.Kind == ctype.U8 {
		return len(is[[]byte](v, t))
	}
	if cells, ok := v.([]int64); ok && t.Elem.Kind == ctype.S64 {
		return len(cells)
	}
	return len(is[[]any](v, t))
}

func (c *Context) storeList(v any, t *ctype.Type) (p, n uint32) {
	count := uint64(length(v, t))
	size := count * uint64(t.Elem.Size)
	if size > maxBytes {
		Fail("list of %d bytes is too long", size)
	}
	p = c.allocate(t.Elem.Align, size)
	c.storeElements(v, t, p)
	return p, uint32(count)
}

func (c *Context) storeElements(v any, t *ctype.Type, p uint32) {
	if t.Elem.Kind == ctype.U8 {
		b := is[[]byte](v, t)
		c.Account.Charge(int64(len(b) / bytesPerUnit))
		copy(c.Bytes()[p:], b)
		return
	}
	if cells, ok := v.([]int64); ok && t.Elem.Kind == ctype.S64 {
		c.Account.Charge(8 * int64(len(cells)) / bytesPerUnit)
		to := c.Bytes()[p:]
		for i, cell := range cells {
			binary.LittleEndian.PutUint64(to[8*i:], uint64(cell))
		}
		return
	}
	for i, e := range is[[]any](v, t) {
		c.store(e, t.Elem, p+uint32(i)*t.Elem.Size)
	}
}

// storeString lowers a string. The steps in which room is asked for are those of the
// specification: guests can see them.
func (c *Context) storeString(v any, t *ctype.Type) (p, units uint32) {
	s, ok := v.(text)
	if !ok {
		plain := is[string](v, t)
		if !utf8.ValidString(plain) {
			Fail("a string of the host's is no UTF-8")
		}
		s = text{value: plain, units: uint32(min(len(plain), maxBytes+1))}
	}
	if len(s.value) > maxBytes || s.units > maxBytes {
		Fail("string of %d bytes is too long", len(s.value))
	}
	c.Account.Charge(int64(len(s.value) / bytesPerUnit))
	from := s.encoding
	if from == Latin1 && s.wide {
		from = UTF16
	}
	switch c.Encoding {
	case UTF8:
		if from == UTF8 {
			return c.copyString([]byte(s.value), 1)
		}
		worst := uint64(s.units) * 3
		if from == Latin1 {
			worst = uint64(s.units) * 2
		}
		return c.toUTF8(s.value, s.units, worst)
	case UTF16:
		b := toUTF16(s.value)
		if from == UTF8 {
			return c.shrunk(b, 2*uint64(s.units))
		}
		p, _ = c.copyString(b, 2)
		return p, uint32(len(b) / 2)
	default:
	}
	switch {
	case s.encoding != Latin1:
		return c.toLatin1(s.value, s.units)
	case s.wide:
		return c.probablyLatin1(s.value)
	}
	return c.copyString(toLatin1(s.value), 2)
}

func (c *Context) copyString(b []byte, align uint32) (p, n uint32) {
	p = c.allocate(align, uint64(len(b)))
	copy(c.Bytes()[p:], b)
	return p, uint32(len(b))
}

func (c *Context) toUTF8(s string, units uint32, worst uint64) (p, n uint32) {
	p = c.allocate(1, uint64(units))
	ascii := 0
	for ascii < len(s) && s[ascii] < utf8.RuneSelf {
		ascii++
	}
	copy(c.Bytes()[p:], s[:ascii])
	if ascii == len(s) {
		return p, units
	}
	p = c.grow(p, units, 1, worst)
	copy(c.Bytes()[uint64(p)+uint64(ascii):], s[ascii:])
	if worst > uint64(len(s)) {
		p = c.grow(p, uint32(worst), 1, uint64(len(s)))
	}
	return p, uint32(len(s))
}

// shrunk writes UTF-16 into room for the worst case, and gives the rest back.
func (c *Context) shrunk(b []byte, worst uint64) (p, units uint32) {
	p = c.allocate(2, worst)
	copy(c.Bytes()[p:], b)
	if uint64(len(b)) < worst {
		p = c.grow(p, uint32(worst), 2, uint64(len(b)))
	}
	return p, uint32(len(b) / 2)
}

func toUTF16(s string) []byte {
	b := make([]byte, 0, 2*len(s))
	for _, r := range s {
		if r < 0x10000 {
			b = binary.LittleEndian.AppendUint16(b, uint16(r))
			continue
		}
		high, low := utf16.EncodeRune(r)
		b = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, uint16(high)), uint16(low))
	}
	return b
}

// toLatin1 encodes the characters up to the first that Latin-1 has not.
func toLatin1(s string) []byte {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			break
		}
		b = append(b, byte(r))
	}
	return b
}

func narrow(s string) bool {
	for _, r := range s {
		if r > 0xff {
			return false
		}
	}
	return true
}

func (c *Context) toLatin1(s string, units uint32) (p, tagged uint32) {
	p = c.allocate(2, uint64(units))
	b := toLatin1(s)
	copy(c.Bytes()[p:], b)
	if narrow(s) {
		if uint32(len(b)) < units {
			p = c.grow(p, units, 2, uint64(len(b)))
		}
		return p, uint32(len(b))
	}
	worst := 2 * uint64(units)
	p = c.grow(p, units, 2, worst)
	wide := toUTF16(s)
	copy(c.Bytes()[p:], wide)
	if worst > uint64(len(wide)) {
		p = c.grow(p, uint32(worst), 2, uint64(len(wide)))
	}
	return p, uint32(len(wide)/2) | wideTag
}

func (c *Context) probablyLatin1(s string) (p, tagged uint32) {
	wide := toUTF16(s)
	p = c.allocate(2, uint64(len(wide)))
	if !narrow(s) {
		copy(c.Bytes()[p:], wide)
		return p, uint32(len(wide)/2) | wideTag
	}
	b := toLatin1(s)
	copy(c.Bytes()[p:], b)
	p = c.grow(p, uint32(len(wide)), 1, uint64(len(b)))
	return p, uint32(len(b))
}

// lowerFlat appends the core values of a value.
func (c *Context) lowerFlat(out []uint64, v any, t *ctype.Type) []uint64 {
	c.Account.Charge(perValue)
	switch t.Kind {
	case ctype.String:
		p, n := c.storeString(v, t)
		return append(out, uint64(p), uint64(n))
	case ctype.List, ctype.Map:
		p, n := c.storeList(v, t)
		return append(out, uint64(p), uint64(n))
	case ctype.FixedList:
		return c.lowerFixed(out, v, t)
	case ctype.Record, ctype.Tuple:
		fields := fieldsOf(v, t)
		for i := range t.Fields {
			out = c.lowerFlat(out, fields[i], t.Fields[i].Type)
		}
		return out
	case ctype.Variant, ctype.Enum, ctype.Option, ctype.Result:
		end := len(out) + len(t.Flat)
		x := is[Variant](v, t)
		of := caseOf(t, x.Case)
		out = append(out, uint64(x.Case))
		if of.Type != nil {
			out = c.lowerFlat(out, x.Value, of.Type)
		}
		for len(out) < end {
			out = append(out, 0)
		}
		return out
	default:
	}
	return append(out, c.bits(v, t))
}

func (c *Context) lowerFixed(out []uint64, v any, t *ctype.Type) []uint64 {
	if length(v, t) != int(t.Len) {
		Fail("expected %d elements, found %d", t.Len, length(v, t))
	}
	if t.Elem.Kind == ctype.U8 {
		for _, b := range is[[]byte](v, t) {
			out = append(out, uint64(b))
		}
		return out
	}
	for _, e := range is[[]any](v, t) {
		out = c.lowerFlat(out, e, t.Elem)
	}
	return out
}

// LowerParams lowers a call's arguments to core values. Where spilled is set, they go to memory as this tuple.
func (c *Context) LowerParams(out []uint64, args []any, params []ctype.Param, spilled *ctype.Type) []uint64 {
	if len(args) != len(params) {
		Fail("expected %d arguments, found %d", len(params), len(args))
	}
	if spilled != nil {
		p := c.allocate(spilled.Align, uint64(spilled.Size))
		c.store(args, spilled, p)
		return append(out, uint64(p))
	}
	for i := range params {
		out = c.lowerFlat(out, args[i], params[i].Type)
	}
	return out
}

// LowerResult lowers a call's result: to a core value, or to where the caller wants it.
func (c *Context) LowerResult(out []uint64, v any, t *ctype.Type, at uint64) []uint64 {
	if !inMemory(t) {
		return c.lowerFlat(out, v, t)
	}
	p := uint32(at)
	c.region(p, uint64(t.Size), t.Align, "a result's")
	c.store(v, t, p)
	return out
}

// ResultInMemory says whether a caller passes the place of the result.
func ResultInMemory(t *ctype.Type) bool { return t != nil && inMemory(t) }
