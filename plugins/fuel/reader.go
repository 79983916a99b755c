// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"errors"
	"fmt"
)

// ErrMalformed is wrapped by every error about bytes that are no valid module.
var ErrMalformed = errors.New("malformed module")

// reader reads the binary format. The first failure sticks, so that callers may
// read a whole structure and look at err once.
type reader struct {
	b   []byte
	pos int
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s at offset %d", ErrMalformed, what, r.pos)
	}
	r.pos = len(r.b)
}

func (r *reader) done() bool { return r.pos >= len(r.b) }

func (r *reader) byte() byte {
	if r.pos >= len(r.b) {
		r.fail("unexpected end")
		return 0
	}
	c := r.b[r.pos]
	r.pos++
	return c
}

func (r *reader) skip(n int) {
	if n < 0 || n > len(r.b)-r.pos {
		r.fail("unexpected end")
		return
	}
	r.pos += n
}

func (r *reader) bytes(n uint32) []byte {
	start := r.pos
	if uint64(n) > uint64(len(r.b)-r.pos) {
		r.fail("unexpected end")
		return nil
	}
	r.pos += int(n)
	return r.b[start:r.pos:r.pos]
}

func (r *reader) u32() uint32 {
	var v uint64
	for shift := uint(0); shift < 35; shift += 7 {
		c := r.byte()
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			if v > 1<<32-1 {
				break
			}
			return uint32(v)
		}
	}
	r.fail("integer too large")
	return 0
}

// leb skips a LEB128 integer of any width up to 64 bits.
func (r *reader) leb() {
	for i := 0; i < 10; i++ {
		if r.byte() < 0x80 {
			return
		}
	}
	r.fail("integer too long")
}

func (r *reader) s33() int64 {
	var v int64
	for shift := uint(0); shift < 35; shift += 7 {
		c := r.byte()
		v |= int64(c&0x7f) << shift
		if c < 0x80 {
			if c&0x40 != 0 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	r.fail("integer too large")
	return 0
}

func (r *reader) name() string { return string(r.bytes(r.u32())) }

// limits reads the limits of a table or memory; max is meaningful where hasMax.
func (r *reader) limits() (flags byte, minimum, maximum uint32) {
	flags = r.byte()
	minimum = r.u32()
	if flags&1 != 0 {
		maximum = r.u32()
	}
	return flags, minimum, maximum
}

func appendU32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendS64(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func appendName(b []byte, s string) []byte { return append(appendU32(b, uint32(len(s))), s...) }

func appendLimits(b []byte, flags byte, minimum, maximum uint32) []byte {
	b = appendU32(append(b, flags), minimum)
	if flags&1 != 0 {
		b = appendU32(b, maximum)
	}
	return b
}

// appendSection frames a section's content with its id and size.
func appendSection(b []byte, id byte, content []byte) []byte {
	return append(appendU32(append(b, id), uint32(len(content))), content...)
}
