// SPDX-License-Identifier: Apache-2.0

// Package bytereader reads the numbers, names and vectors of WebAssembly's binary format, each within its bound. The
// first error stays, with the byte at which it was found, and everything after it reads as zero.
package bytereader

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/wasmplane/wasmplane/plugins/leb128"
)

// Bounds of what a component may declare.
const (
	MaxNesting     = 32      // components in components, and types of them
	MaxDefinitions = 1 << 18 // of all index spaces and scopes together
	maxName        = 4096    // bytes
	MaxArgs        = 1 << 12 // of one instantiation, exports of one instance, declarations of one type
	MaxModules     = 1000    // core modules and components, of the whole
	MaxArity       = 1000    // of one core function type
	MaxCoreItems   = 1 << 17 // types, imports, functions, exports of one core module
)

// Reader reads bytes that begin at an offset of the file.
type Reader struct {
	B    []byte
	Pos  int // of the next byte in B
	Base int // offset of B in the file
	Err  error
}

// ErrEnd is wrapped where bytes are missing.
var ErrEnd = errors.New("unexpected end-of-file")

// At is the offset of the next byte in the file.
func (r *Reader) At() int { return r.Base + r.Pos }

// Fail keeps the first error, with its place.
func (r *Reader) Fail(format string, args ...any) {
	if r.Err == nil {
		r.Err = &Placed{At: r.At(), Err: fmt.Errorf(format, args...)}
	}
	r.Pos = len(r.B)
}

// Placed is an error with the byte at which it was found.
type Placed struct {
	At  int
	Err error
}

// Error implements error.
func (p *Placed) Error() string { return fmt.Sprintf("%s (at byte %#x)", p.Err, p.At) }

// Unwrap returns the error without its place.
func (p *Placed) Unwrap() error { return p.Err }

// Done says whether all bytes are read.
func (r *Reader) Done() bool { return r.Pos >= len(r.B) }

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if r.Pos >= len(r.B) {
		r.Fail("%w", ErrEnd)
		return 0
	}
	r.Pos++
	return r.B[r.Pos-1]
}

// Bytes reads n bytes, which are not copied.
func (r *Reader) Bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.B)-r.Pos) {
		r.Fail("%w", ErrEnd)
		return nil
	}
	r.Pos += int(n)
	return r.B[r.Pos-int(n) : r.Pos]
}

// U32 reads a number of at most 32 bits.
func (r *Reader) U32() uint32 { return uint32(r.Unsigned(32)) }

// Unsigned reads a number of so many bits.
func (r *Reader) Unsigned(bits int) uint64 {
	v, n, err := leb128.Unsigned(r.B[r.Pos:], bits)
	r.advance(n, err)
	return v
}

// S33 reads a signed number of 33 bits: a type or its index.
func (r *Reader) S33() int64 {
	v, n, err := leb128.Signed(r.B[r.Pos:], 33)
	r.advance(n, err)
	return v
}

// Signed skips a signed number of at most 64 bits.
func (r *Reader) Signed() {
	n, err := leb128.Length(r.B[r.Pos:])
	r.advance(n, err)
}

// advance goes on behind n bytes, or fails there.
func (r *Reader) advance(n int, err error) {
	r.Pos += n
	switch {
	case errors.Is(err, leb128.ErrEnd):
		r.Fail("%w", ErrEnd)
	case err != nil:
		r.Fail("%w", err)
	}
}

// Name reads a name: text in UTF-8 with its length before it.
func (r *Reader) Name() string {
	n := r.U32()
	if n > maxName {
		r.Fail("a name of %d bytes: at most %d are allowed", n, maxName)
		return ""
	}
	b := r.Bytes(n)
	if !utf8.Valid(b) {
		r.Pos -= len(b)
		r.Fail("malformed UTF-8 encoding")
		return ""
	}
	return string(b)
}

// Count reads the length of a vector that is bounded.
func (r *Reader) Count(what string, most uint32) uint32 {
	n := r.U32()
	if r.Err == nil && n > most {
		r.Fail("%w", &LimitError{what, n, most})
		return 0
	}
	return n
}

// LimitError is a component that has more of something than is allowed.
type LimitError struct {
	what    string
	n, most uint32
}

// Error implements error.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%d %s: at most %d are allowed", e.n, e.what, e.most)
}

// LimitName says which limit, in words that no component chooses.
func (e *LimitError) LimitName() string { return "component: " + e.what }

// Expect reads a byte that has to have one value.
func (r *Reader) Expect(b byte, what string) {
	if got := r.Byte(); r.Err == nil && got != b {
		r.Invalid(got, what)
	}
}

// Invalid refuses a byte that says what follows.
func (r *Reader) Invalid(b byte, what string) {
	r.Pos--
	r.Fail("invalid leading byte (%#x) for %s", b, what)
}

// Part reads a part of the bytes by its length.
func (r *Reader) Part() *Reader {
	n := r.U32()
	at := r.At()
	return &Reader{B: r.Bytes(n), Base: at, Err: r.Err}
}

// Get finds an entry of an index space.
func Get[T any](space []T, i uint32, what string) (T, error) {
	if int64(i) >= int64(len(space)) {
		var none T
		return none, fmt.Errorf("unknown %s %d: %s index out of bounds (there are %d)", what, i, what, len(space))
	}
	return space[i], nil
}
