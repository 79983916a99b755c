// SPDX-License-Identifier: Apache-2.0

// Package leb128 reads the integers of WebAssembly's binary format, as the core specification has them (5.2.2): in groups of
// seven bits, the lowest first, in no more bytes than their width needs and with no bit set beyond it. Unsigned ones are written
// by encoding/binary (AppendUvarint), whose format is the same; signed ones by AppendSigned.
package leb128

import "errors"

// Errors say what is wrong with the bytes. Nothing else is.
var (
	ErrEnd   = errors.New("unexpected end")
	ErrLarge = errors.New("integer too large")
)

// Unsigned reads a number of at most so many bits, 64 at most. n is how many bytes were looked at, also where there is an error.
func Unsigned(b []byte, bits int) (v uint64, n int, err error) {
	if len(b) > 0 && b[0] < 0x80 && bits >= 7 { // nearly all
		return uint64(b[0]), 1, nil
	}
	for shift := 0; n < len(b); shift += 7 {
		c := b[n]
		n++
		if left := bits - shift; left < 7 && c>>max(left, 0) != 0 {
			return 0, n, ErrLarge
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v, n, nil
		}
	}
	return 0, n, ErrEnd
}

// Signed reads a number of at most so many bits in two's complement, 64 at most. n is as for Unsigned.
func Signed(b []byte, bits int) (v int64, n int, err error) {
	for shift := 0; n < len(b); shift += 7 {
		c := b[n]
		n++
		left := bits - shift
		if left < 7 {
			// The bits beyond the width repeat the sign, and no byte follows.
			if beyond := int8(c<<1) >> left; left < 1 || c >= 0x80 || beyond != 0 && beyond != -1 {
				return 0, n, ErrLarge
			}
		}
		v |= int64(c&0x7f) << shift
		if c < 0x80 {
			if shift += 7; c&0x40 != 0 && shift < 64 {
				v |= -1 << shift
			}
			return v, n, nil
		}
	}
	return 0, n, ErrEnd
}

// most is how many bytes a number of 64 bits may have.
const most = 10

// Length is how many bytes a number of at most 64 bits has whose value nobody needs.
func Length(b []byte) (n int, err error) {
	for n < min(len(b), most) {
		n++
		if b[n-1] < 0x80 {
			return n, nil
		}
	}
	if n == most {
		return n, ErrLarge
	}
	return n, ErrEnd
}

// AppendSigned writes a signed number in as few bytes as it needs.
func AppendSigned(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
