// SPDX-License-Identifier: Apache-2.0

package leb128_test

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/plugins/leb128"
)

// What is too long, too large or cut off is refused, after no more bytes than it took to see that.
func TestUnsigned(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		bits  int
		want  uint64
		n     int
		err   error
	}{
		"zero":                          {"\x00", 32, 0, 1, nil},
		"more bytes than needed":        {"\x80\x80\x00", 32, 0, 3, nil},
		"the largest of 32 bits":        {"\xff\xff\xff\xff\x0f!", 32, math.MaxUint32, 5, nil},
		"the largest of 64 bits":        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 64, math.MaxUint64, 10, nil},
		"one bit more than 32":          {"\xff\xff\xff\xff\x1f", 32, 0, 5, leb128.ErrLarge},
		"one bit more than 64":          {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 64, 0, 10, leb128.ErrLarge},
		"six bytes for 32 bits":         {"\x80\x80\x80\x80\x80\x00", 32, 0, 5, leb128.ErrLarge},
		"eleven bytes for 64 bits":      {"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 64, 0, 10, leb128.ErrLarge},
		"one bit, and two of them":      {"\x02", 1, 0, 1, leb128.ErrLarge},
		"cut off":                       {"\x80", 32, 0, 1, leb128.ErrEnd},
		"nothing where a number should": {"", 32, 0, 0, leb128.ErrEnd},
	} {
		if v, n, err := leb128.Unsigned([]byte(c.bytes), c.bits); v != c.want || n != c.n || !errors.Is(err, c.err) {
			t.Errorf("%s: %d of %d bytes (%v), want %d of %d (%v)", name, v, n, err, c.want, c.n, c.err)
		}
	}
}

func TestSigned(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		bits  int
		want  int64
		n     int
		err   error
	}{
		"a negative one":             {"\x7f", 33, -1, 1, nil},
		"more bytes than needed":     {"\xff\xff\x7f", 32, -1, 3, nil},
		"the smallest of 33 bits":    {"\x80\x80\x80\x80\x70", 33, -1 << 32, 5, nil},
		"the largest of 33 bits":     {"\xff\xff\xff\xff\x0f", 33, math.MaxUint32, 5, nil},
		"the smallest of 32 bits":    {"\x80\x80\x80\x80\x78", 32, math.MinInt32, 5, nil},
		"the smallest of 64 bits":    {"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f", 64, math.MinInt64, 10, nil},
		"one more than 33 bits":      {"\x80\x80\x80\x80\x10", 33, 0, 5, leb128.ErrLarge},
		"one less than 33 bits":      {"\xff\xff\xff\xff\x6f", 33, 0, 5, leb128.ErrLarge},
		"one more than 32 bits":      {"\x80\x80\x80\x80\x08", 32, 0, 5, leb128.ErrLarge},
		"six bytes for 33 bits":      {"\x80\x80\x80\x80\x80\x00", 33, 0, 5, leb128.ErrLarge},
		"eight bits in the last one": {"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x3f", 64, 0, 10, leb128.ErrLarge},
		"cut off":                    {"\x80\x80", 33, 0, 2, leb128.ErrEnd},
	} {
		if v, n, err := leb128.Signed([]byte(c.bytes), c.bits); v != c.want || n != c.n || !errors.Is(err, c.err) {
			t.Errorf("%s: %d of %d bytes (%v), want %d of %d (%v)", name, v, n, err, c.want, c.n, c.err)
		}
	}
}

func TestLength(t *testing.T) {
	for bytes, want := range map[string]error{
		"\x00": nil, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f": nil,
		"": leb128.ErrEnd, "\x80": leb128.ErrEnd, "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00": leb128.ErrLarge,
	} {
		if _, err := leb128.Length([]byte(bytes)); !errors.Is(err, want) {
			t.Errorf("%x: %v, want %v", bytes, err, want)
		}
	}
}

// What was written is read, by each width that holds it and by no other.
func TestReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u, s, bits := rapid.Uint64().Draw(t, "unsigned"), rapid.Int64().Draw(t, "signed"), rapid.IntRange(1, 64).Draw(t, "bits")
		u, s = u>>rapid.IntRange(0, 63).Draw(t, "shift"), s>>rapid.IntRange(0, 63).Draw(t, "sign's shift")
		b := binary.AppendUvarint(nil, u)
		fits := bits == 64 || u < 1<<bits
		if v, n, err := leb128.Unsigned(b, bits); fits != (err == nil) || fits && (v != u || n != len(b)) {
			t.Errorf("%d in %d bits is read as %d, %v", u, bits, v, err)
		}
		b = leb128.AppendSigned(nil, s)
		fits = s>>(bits-1) == 0 || s>>(bits-1) == -1
		if v, n, err := leb128.Signed(b, bits); fits != (err == nil) || fits && (v != s || n != len(b)) {
			t.Errorf("%d in %d bits with a sign is read as %d, %v", s, bits, v, err)
		}
		if n, err := leb128.Length(b); n != len(b) || err != nil {
			t.Errorf("%d has %d bytes, %v", s, n, err)
		}
	})
}
