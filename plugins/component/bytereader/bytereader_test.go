// SPDX-License-Identifier: Apache-2.0

package bytereader

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// TestNumbers: what is valid is read whole; what is too long, too large or cut off is an error with its place.
func TestNumbers(t *testing.T) {
	u32 := func(r *Reader) int64 { return int64(r.U32()) }
	s33 := func(r *Reader) int64 { return r.S33() }
	for name, c := range map[string]struct {
		bytes string
		read  func(*Reader) int64
		want  int64
		wrong string
	}{
		"zero":                     {"\x00", u32, 0, ""},
		"more bytes than needed":   {"\x80\x80\x00", u32, 0, ""},
		"the largest":              {"\xff\xff\xff\xff\x0f", u32, math.MaxUint32, ""},
		"one bit more":             {"\xff\xff\xff\xff\x1f", u32, 0, "integer too large (at byte 0x105)"},
		"six bytes":                {"\x80\x80\x80\x80\x80\x00", u32, 0, "integer too large"},
		"cut off":                  {"\x80", u32, 0, "unexpected end-of-file (at byte 0x101)"},
		"a negative one":           {"\x7f", s33, -1, ""},
		"the smallest of 33 bits":  {"\x80\x80\x80\x80\x70", s33, -1 << 32, ""},
		"an index of 32 bits":      {"\xff\xff\xff\xff\x0f", s33, math.MaxUint32, ""},
		"a signed one of six":      {"\x80\x80\x80\x80\x80\x00", s33, 0, "integer too large"},
		"a signed one, cut off":    {"\x80\x80", s33, 0, "unexpected end-of-file"},
		"nothing where one should": {"", u32, 0, "unexpected end-of-file (at byte 0x100)"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reader{B: []byte(c.bytes), Base: 0x100}
			got := c.read(r)
			switch {
			case c.wrong == "" && (r.Err != nil || got != c.want || !r.Done()):
				t.Errorf("%d (%v), want %d", got, r.Err, c.want)
			case c.wrong != "" && (r.Err == nil || !strings.Contains(r.Err.Error(), c.wrong)):
				t.Errorf("%d (%v), want %s", got, r.Err, c.wrong)
			}
		})
	}
}

func TestNames(t *testing.T) {
	r := &Reader{B: []byte("\x02hi\x02\xff\xfe")}
	if got := r.Name(); got != "hi" || r.Err != nil {
		t.Errorf("%q (%v)", got, r.Err)
	}
	if got := r.Name(); got != "" || r.Err == nil || !strings.Contains(r.Err.Error(), "malformed UTF-8") {
		t.Errorf("%q (%v)", got, r.Err)
	}
	long := &Reader{B: append([]byte("\x81\x20"), make([]byte, maxName+1)...)}
	if long.Name(); long.Err == nil || !strings.Contains(long.Err.Error(), "at most 4096") {
		t.Errorf("a name above the bound: %v", long.Err)
	}
}

// TestTheFirstErrorStays, and nothing is read after it.
func TestTheFirstErrorStays(t *testing.T) {
	r := &Reader{B: []byte("\x05ab")}
	part := r.Part()
	var limit *LimitError
	if part.Err == nil || part.Byte() != 0 || !part.Done() {
		t.Errorf("a part longer than its whole: %v", part.Err)
	}
	first := r.Err
	r.Fail("another")
	if !errors.Is(r.Err, ErrEnd) || r.Err != first { //nolint:errorlint // it is the same error
		t.Errorf("%v took the place of %v", r.Err, first)
	}
	many := &Reader{B: []byte("\x0a")}
	if n := many.Count("types", 9); n != 0 || !errors.As(many.Err, &limit) || limit.LimitName() != "component: types" {
		t.Errorf("%d (%v)", n, many.Err)
	}
}

func TestGet(t *testing.T) {
	if v, err := Get([]string{"a"}, 0, "type"); v != "a" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if _, err := Get([]string{"a"}, 1, "type"); err == nil || !strings.Contains(err.Error(), "unknown type 1") {
		t.Error(err)
	}
}
