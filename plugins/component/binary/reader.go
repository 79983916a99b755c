// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Bounds of what a component may declare.
const (
	maxNesting     = 32      // components in components, and types of them
	maxDefinitions = 1 << 18 // of all index spaces and scopes together
	maxName        = 4096    // bytes
	maxArgs        = 1 << 12 // of one instantiation, exports of one instance, declarations of one type
	maxModules     = 1000    // core modules and components, of the whole
	maxArity       = 1000    // of one core function type
	maxCoreItems   = 1 << 17 // types, imports, functions, exports of one core module
)

// reader reads bytes that begin at an offset of the file.
type reader struct {
	b    []byte
	pos  int
	base int
	err  error
}

var errEnd = errors.New("unexpected end-of-file")

func (r *reader) at() int { return r.base + r.pos }

// fail keeps the first error, with its place.
func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = &placed{at: r.at(), err: fmt.Errorf(format, args...)}
	}
	r.pos = len(r.b)
}

// placed is an error with the byte at which it was found.
type placed struct {
	at  int
	err error
}

func (p *placed) Error() string { return fmt.Sprintf("%s (at byte %#x)", p.err, p.at) }

func (p *placed) Unwrap() error { return p.err }

func (r *reader) done() bool { return r.pos >= len(r.b) }

func (r *reader) byte() byte {
	if r.pos >= len(r.b) {
		r.fail("%w", errEnd)
		return 0
	}
	r.pos++
	return r.b[r.pos-1]
}

func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.b)-r.pos) {
		r.fail("%w", errEnd)
		return nil
	}
	r.pos += int(n)
	return r.b[r.pos-int(n) : r.pos]
}

func (r *reader) u32() uint32 { return uint32(r.unsigned(32)) }

// unsigned reads a number of so many bits.
func (r *reader) unsigned(bits int) uint64 {
	var v uint64
	for shift := 0; ; shift += 7 {
		b := r.byte()
		if r.err != nil {
			return 0
		}
		if left := bits - shift; left < 7 && b >= 1<<max(left, 0) {
			r.fail("integer too large")
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
}

// s33 reads a signed number of 33 bits: a type or its index.
func (r *reader) s33() int64 {
	var v int64
	for shift := 0; shift < 35; shift += 7 {
		b := r.byte()
		v |= int64(b&0x7f) << shift
		if b < 0x80 {
			if b&0x40 != 0 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	r.fail("integer too large")
	return 0
}

func (r *reader) name() string {
	n := r.u32()
	if n > maxName {
		r.fail("a name of %d bytes: at most %d are allowed", n, maxName)
		return ""
	}
	b := r.bytes(n)
	if !utf8.Valid(b) {
		r.pos -= len(b)
		r.fail("malformed UTF-8 encoding")
		return ""
	}
	return string(b)
}

// count reads the length of a vector that is bounded.
func (r *reader) count(what string, most uint32) uint32 {
	n := r.u32()
	if r.err == nil && n > most {
		r.fail("%w", &LimitError{what, n, most})
		return 0
	}
	return n
}

// LimitError is a component that has more of something than is allowed.
type LimitError struct {
	what    string
	n, most uint32
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%d %s: at most %d are allowed", e.n, e.what, e.most)
}

// LimitName says which limit, in words that no component chooses.
func (e *LimitError) LimitName() string { return "component: " + e.what }

// expect reads a byte that has to have one value.
func (r *reader) expect(b byte, what string) {
	if got := r.byte(); r.err == nil && got != b {
		r.invalid(got, what)
	}
}

// invalid refuses a byte that says what follows.
func (r *reader) invalid(b byte, what string) {
	r.pos--
	r.fail("invalid leading byte (%#x) for %s", b, what)
}

// part reads a part of the bytes by its length.
func (r *reader) part() *reader {
	n := r.u32()
	at := r.at()
	return &reader{b: r.bytes(n), base: at, err: r.err}
}
