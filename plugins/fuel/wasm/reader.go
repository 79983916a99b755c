// SPDX-License-Identifier: Apache-2.0

// Package wasm reads and writes the binary format of WebAssembly: integers, vectors,
// sections, and instructions with what they weigh in fuel.
//
// A reader bounds what it reads by what there is; it does not validate.
package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/leb128"
)

// ErrMalformed is wrapped by every error about bytes that are no valid module.
var ErrMalformed = errors.New("malformed module")

// Reader reads the binary format. The first failure sticks, so that callers may
// read a whole structure and look at Err once.
type Reader struct {
	B   []byte
	Pos int
	Err error
}

// Fail records what is wrong at the position, and ends the reading.
func (r *Reader) Fail(what string) {
	if r.Err == nil {
		r.Err = fmt.Errorf("%w: %s at offset %d", ErrMalformed, what, r.Pos)
	}
	r.Pos = len(r.B)
}

// Done says whether nothing is left.
func (r *Reader) Done() bool { return r.Pos >= len(r.B) }

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if r.Pos >= len(r.B) {
		r.Fail("unexpected end")
		return 0
	}
	c := r.B[r.Pos]
	r.Pos++
	return c
}

// Skip skips n bytes.
func (r *Reader) Skip(n int) {
	if n < 0 || n > len(r.B)-r.Pos {
		r.Fail("unexpected end")
		return
	}
	r.Pos += n
}

// Bytes reads n bytes, which are not copied.
func (r *Reader) Bytes(n uint32) []byte {
	start := r.Pos
	if uint64(n) > uint64(len(r.B)-r.Pos) {
		r.Fail("unexpected end")
		return nil
	}
	r.Pos += int(n)
	return r.B[start:r.Pos:r.Pos]
}

// U32 reads an unsigned LEB128 integer.
func (r *Reader) U32() uint32 {
	v, n, err := leb128.Unsigned(r.B[r.Pos:], 32)
	r.advance(n, err)
	return uint32(v)
}

// leb skips a LEB128 integer of any width up to 64 bits.
func (r *Reader) leb() {
	n, err := leb128.Length(r.B[r.Pos:])
	r.advance(n, err)
}

// S33 reads a signed LEB128 integer of 33 bits, as block types are.
func (r *Reader) S33() int64 {
	v, n, err := leb128.Signed(r.B[r.Pos:], 33)
	r.advance(n, err)
	return v
}

// advance goes on behind n bytes, or fails there.
func (r *Reader) advance(n int, err error) {
	if r.Pos += n; err != nil {
		r.Fail(err.Error())
	}
}

// Locals reads the declarations that a body begins with, and says how many locals there are: most of them at most.
func (r *Reader) Locals(most uint32) uint32 {
	var sum uint64
	for groups := r.U32(); groups > 0 && r.Err == nil; groups-- {
		sum += uint64(r.U32())
		r.Byte()
	}
	if sum > uint64(most) && r.Err == nil {
		r.Err = TooMany(sum, "locals in one function", int(most))
	}
	return uint32(sum)
}

// Name reads a text with its length.
func (r *Reader) Name() string { return string(r.Bytes(r.U32())) }

// Limits reads the limits of a table or memory; maximum is 0 where there is none.
func (r *Reader) Limits() (flags byte, minimum, maximum uint32) {
	flags = r.Byte()
	minimum = r.U32()
	if flags&1 != 0 {
		maximum = r.U32()
	}
	return flags, minimum, maximum
}

// AppendU32 writes an unsigned LEB128 integer.
func AppendU32(b []byte, v uint32) []byte { return binary.AppendUvarint(b, uint64(v)) }

// AppendS64 writes a signed one.
func AppendS64(b []byte, v int64) []byte { return leb128.AppendSigned(b, v) }

// AppendName writes a text with its length.
func AppendName(b []byte, s string) []byte { return append(AppendU32(b, uint32(len(s))), s...) }

// AppendLimits writes the limits of a table or memory.
func AppendLimits(b []byte, flags byte, minimum, maximum uint32) []byte {
	b = AppendU32(append(b, flags), minimum)
	if flags&1 != 0 {
		b = AppendU32(b, maximum)
	}
	return b
}

// AppendSection frames a section's content with its id and size.
func AppendSection(b []byte, id byte, content []byte) []byte {
	return append(AppendU32(append(b, id), uint32(len(content))), content...)
}

// TooMany is the error of a count above its bound.
func TooMany[N uint32 | uint64 | int](n N, what string, most int) error {
	return OverLimit(what, "%d %s: at most %d are allowed", n, what, most)
}

// LimitError is a module that is beyond a limit.
type LimitError struct{ name, text string }

func (e *LimitError) Error() string { return e.text }

// LimitName says which limit, in words that no module chooses.
func (e *LimitError) LimitName() string { return e.name }

// OverLimit is the error of a module that is beyond a limit of this name.
func OverLimit(name, format string, args ...any) error {
	return &LimitError{name, fmt.Sprintf(format, args...)}
}

// Count reads the length of a vector that is bounded.
func (r *Reader) Count(what string, most uint32) uint32 {
	n := r.U32()
	if r.Err == nil && n > most {
		r.Err = TooMany(n, what, int(most))
		r.Pos = len(r.B)
		return 0
	}
	return n
}
