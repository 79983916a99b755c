// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf8"
)

// Cell kinds of the flat encoding.
const (
	cellNull   = 0
	cellFalse  = 1
	cellTrue   = 2
	cellInt    = 3
	cellFloat  = 4
	cellString = 5
	cellArray  = 6
	cellObject = 7
	cellAbsent = 8
)

// Writer writes one document, as JSON or flat. Callers say how long arrays and
// objects are before they fill them; only the flat form needs it.
//
// The flat form is a tree of cells of eight bytes, little endian: bits 60-63 kind, bits
// 32-59 length, bits 0-31 offset from the start. The root's cell is at 0. Numbers and
// strings lie at their offset; an array is its cells, an object pairs of key and value cell.
type Writer struct {
	buf   []byte
	flat  bool
	comma bool
	slot  int
	outer []int
}

// Reset begins a new document in the same memory.
func (w *Writer) Reset(e Encoding) {
	w.buf, w.flat, w.comma, w.slot, w.outer = w.buf[:0], e == Flat, false, 0, w.outer[:0]
	if w.flat {
		w.buf = append(w.buf, 0, 0, 0, 0, 0, 0, 0, 0)
	}
}

// Bytes is the document; it is valid until the next Reset.
func (w *Writer) Bytes() []byte { return w.buf }

func (w *Writer) put(kind, n, offset int) {
	binary.LittleEndian.PutUint64(w.buf[w.slot:], uint64(kind)<<60|uint64(n&(1<<28-1))<<32|uint64(uint32(offset)))
	w.slot += 8
}

func (w *Writer) separate() {
	if w.comma {
		w.buf = append(w.buf, ',')
	}
	w.comma = true
}

func (w *Writer) align() int {
	for len(w.buf)%8 != 0 {
		w.buf = append(w.buf, 0)
	}
	return len(w.buf)
}

func (w *Writer) begin(kind, n, cells int) {
	at := w.align()
	for range cells {
		w.buf = append(w.buf, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	w.put(kind, n, at)
	w.outer = append(w.outer, w.slot)
	w.slot = at
}

// BeginArray opens an array of n items, End closes it.
func (w *Writer) BeginArray(n int) {
	if w.flat {
		w.begin(cellArray, n, n)
		return
	}
	w.separate()
	w.buf, w.comma = append(w.buf, '['), false
}

// EndArray closes an array.
func (w *Writer) EndArray() { w.end(']') }

// BeginObject opens an object of n keys.
func (w *Writer) BeginObject(n int) {
	if w.flat {
		w.begin(cellObject, n, 2*n)
		return
	}
	w.separate()
	w.buf, w.comma = append(w.buf, '{'), false
}

// EndObject closes an object.
func (w *Writer) EndObject() { w.end('}') }

func (w *Writer) end(bracket byte) {
	if w.flat {
		w.slot = w.outer[len(w.outer)-1]
		w.outer = w.outer[:len(w.outer)-1]
		return
	}
	w.buf, w.comma = append(w.buf, bracket), true
}

// Key writes a key; its value follows.
func (w *Writer) Key(k string) {
	if w.flat {
		w.String(k)
		return
	}
	w.separate()
	w.buf = append(appendJSONString(w.buf, k), ':')
	w.comma = false
}

// String writes a string.
func (w *Writer) String(s string) {
	if w.flat {
		at := len(w.buf)
		w.buf = append(w.buf, s...)
		w.put(cellString, len(s), at)
		return
	}
	w.separate()
	w.buf = appendJSONString(w.buf, s)
}

// Int writes an integer.
func (w *Writer) Int(v int64) {
	if w.flat {
		at := w.align()
		w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(v))
		w.put(cellInt, 8, at)
		return
	}
	w.separate()
	w.buf = strconv.AppendInt(w.buf, v, 10)
}

// Float writes a number.
func (w *Writer) Float(v float64) {
	if w.flat {
		at := w.align()
		w.buf = binary.LittleEndian.AppendUint64(w.buf, math.Float64bits(v))
		w.put(cellFloat, 8, at)
		return
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		w.Null()
		return
	}
	w.separate()
	w.buf = strconv.AppendFloat(w.buf, v, 'g', -1, 64)
}

// Bool writes a boolean.
func (w *Writer) Bool(v bool) {
	switch {
	case w.flat && v:
		w.put(cellTrue, 0, 0)
	case w.flat:
		w.put(cellFalse, 0, 0)
	default:
		w.separate()
		w.buf = strconv.AppendBool(w.buf, v)
	}
}

// Null writes a null.
func (w *Writer) Null() {
	if w.flat {
		w.put(cellNull, 0, 0)
		return
	}
	w.separate()
	w.buf = append(w.buf, "null"...)
}

// Absent marks, in a flat table, a field that is not there.
func (w *Writer) Absent() {
	if w.flat {
		w.put(cellAbsent, 0, 0)
		return
	}
	w.Null()
}

const hexDigits = "0123456789abcdef"

// appendJSONString quotes s; what is not valid UTF-8 becomes U+FFFD.
func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[start:i]...), "\uFFFD"...)
				i++
				start = i
				continue
			}
			i += n
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}
