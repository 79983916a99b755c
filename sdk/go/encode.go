// SPDX-License-Identifier: Apache-2.0

package wasmplane

import (
	"sort"
	"strconv"
	"unicode/utf8"
)

// Object is a JSON object to be written.
type Object map[string]any

func (o Object) append(b []byte) []byte {
	keys := make([]string, 0, len(o))
	for k := range o {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, k), ':')
		b = appendValue(b, o[k])
	}
	return append(b, '}')
}

// rawJSON is written as it is.
type rawJSON string

// JSON writes a value as JSON: an Object, a Value, or what may stand in one
// (strings, numbers, booleans, nil, slices and maps of them).
func JSON(v any) []byte { return appendValue(nil, v) }

func appendInt(b []byte, v int64) []byte { return strconv.AppendInt(b, v, 10) }

// appendValue writes a value as JSON. Types that it does not know become null.
func appendValue(b []byte, v any) []byte {
	switch x := v.(type) {
	case rawJSON:
		return append(b, x...)
	case string:
		return appendString(b, x)
	case bool:
		return strconv.AppendBool(b, x)
	case int:
		return appendInt(b, int64(x))
	case int32:
		return appendInt(b, int64(x))
	case int64:
		return appendInt(b, x)
	case float64:
		return strconv.AppendFloat(b, x, 'g', -1, 64)
	case Object:
		return x.append(b)
	case map[string]any:
		return Object(x).append(b)
	case map[string]string:
		o := Object{}
		for k, s := range x {
			o[k] = s
		}
		return o.append(b)
	case []string:
		return appendList(b, len(x), func(b []byte, i int) []byte { return appendString(b, x[i]) })
	case []any:
		return appendList(b, len(x), func(b []byte, i int) []byte { return appendValue(b, x[i]) })
	case []Object:
		return appendList(b, len(x), func(b []byte, i int) []byte { return x[i].append(b) })
	case []int64:
		return appendList(b, len(x), func(b []byte, i int) []byte { return appendInt(b, x[i]) })
	case []int:
		return appendList(b, len(x), func(b []byte, i int) []byte { return appendInt(b, int64(x[i])) })
	case *Patch:
		return x.append(b)
	case Value:
		return appendTree(b, x)
	}
	return append(b, "null"...)
}

func appendList(b []byte, n int, item func([]byte, int) []byte) []byte {
	b = append(b, '[')
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = item(b, i)
	}
	return append(b, ']')
}

// appendTree writes a value of the input.
func appendTree(b []byte, v Value) []byte {
	switch v.kind() {
	case cellTree:
		return appendValue(b, v.tree())
	case cellFalse, cellTrue:
		return strconv.AppendBool(b, v.Bool())
	case cellInt:
		return appendInt(b, v.Int())
	case cellFloat:
		return strconv.AppendFloat(b, v.Float(), 'g', -1, 64)
	case cellString:
		return appendString(b, v.String())
	case cellArray:
		return appendList(b, v.Len(), func(b []byte, i int) []byte { return appendTree(b, v.At(i)) })
	case cellObject:
		b = append(b, '{')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			k, child := v.Entry(i)
			b = appendTree(append(appendString(b, k), ':'), child)
		}
		return append(b, '}')
	}
	return append(b, "null"...)
}

const hexDigits = "0123456789abcdef"

func appendString(b []byte, s string) []byte {
	begin := len(b)
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(append(b, s[start:i]...), '\\')
		switch c {
		case '"', '\\':
			b = append(b, c)
		case '\n':
			b = append(b, 'n')
		default:
			b = append(b, 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		start = i + 1
	}
	b = append(append(b, s[start:]...), '"')
	if !utf8.ValidString(s) {
		return append(b[:begin], `"(not UTF-8)"`...)
	}
	return b
}
