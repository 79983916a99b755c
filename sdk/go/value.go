// SPDX-License-Identifier: Apache-2.0

package wasmplane

import (
	"errors"
	"math"
	"sort"
	"strconv"
	"strings"
	"unsafe"
)

// Kinds of cells of the flat encoding (sdk/spec).
const (
	cellNull = iota
	cellFalse
	cellTrue
	cellInt
	cellFloat
	cellString
	cellArray
	cellObject
	cellAbsent

	cellTree // of this package alone: a value that was parsed from JSON
)

// Value is a value of the input: a view, nothing is copied or parsed. What is
// absent answers every method with the zero value. A Value and the strings it
// gives are valid until the hook returns.
//
// It is two words, which the compiler moves one by one; larger structs it has
// copied by an instruction that takes longer than most methods here.
type Value struct {
	// base is where the table begins that the cell's offset counts from. The host
	// has written the table: offsets are not looked at again. Of a tree, it is the *any.
	base unsafe.Pointer
	cell uint64
}

var absent = Value{cell: cellAbsent << 60}

// treeOf is a value that was parsed.
func treeOf(v any) Value { return Value{base: unsafe.Pointer(&v), cell: cellTree << 60} }

func (v Value) tree() any { return *(*any)(v.base) }

func u64(b []byte) uint64 { return load(unsafe.Pointer(unsafe.SliceData(b[:8]))) }

func (v Value) kind() int              { return int(v.cell >> 60) }
func (v Value) length() int            { return int(v.cell >> 32 & (1<<28 - 1)) }
func (v Value) place() unsafe.Pointer  { return unsafe.Add(v.base, int(uint32(v.cell))) }
func (v Value) child(offset int) Value { return Value{v.base, load(unsafe.Add(v.place(), offset))} }

// Exists says whether the value is there; null is.
func (v Value) Exists() bool { return v.base != nil && v.kind() != cellAbsent }

// IsNull says whether the value is there, and null.
func (v Value) IsNull() bool {
	if v.kind() == cellTree {
		return v.tree() == nil
	}
	return v.base != nil && v.kind() == cellNull
}

// String is a string's text.
func (v Value) String() string {
	if v.kind() == cellString {
		return unsafe.String((*byte)(v.place()), v.length())
	}
	if v.kind() == cellTree {
		s, _ := v.tree().(string)
		return s
	}
	return ""
}

// Bool is true for true.
func (v Value) Bool() bool {
	if v.kind() == cellTree {
		b, _ := v.tree().(bool)
		return b
	}
	return v.kind() == cellTrue
}

// Int is an integer, or the whole part of a number.
func (v Value) Int() int64 {
	switch v.kind() {
	case cellInt:
		return int64(load(v.place()))
	case cellTree:
		if i, ok := v.tree().(int64); ok {
			return i
		}
	}
	return int64(v.Float())
}

// Float is a number.
func (v Value) Float() float64 {
	switch v.kind() {
	case cellInt:
		return float64(int64(load(v.place())))
	case cellFloat:
		return math.Float64frombits(load(v.place()))
	case cellTree:
		if i, ok := v.tree().(int64); ok {
			return float64(i)
		}
		f, _ := v.tree().(float64)
		return f
	}
	return 0
}

// Len is the number of items of an array, or of keys of an object.
func (v Value) Len() int {
	switch v.kind() {
	case cellArray, cellObject:
		return v.length()
	case cellTree:
		return treeLen(v.tree())
	}
	return 0
}

func treeLen(tree any) int {
	switch t := tree.(type) {
	case []any:
		return len(t)
	case map[string]any:
		return len(t)
	}
	return 0
}

// At is an item of an array.
func (v Value) At(i int) Value {
	if v.kind() == cellArray && uint(i) < uint(v.length()) {
		return v.child(8 * i)
	}
	if v.kind() == cellTree {
		return treeAt(v.tree(), i)
	}
	return absent
}

func treeAt(tree any, i int) Value {
	if t, ok := tree.([]any); ok && i >= 0 && i < len(t) {
		return treeOf(t[i])
	}
	return absent
}

// Get is the value of a key of an object.
func (v Value) Get(key string) Value {
	switch v.kind() {
	case cellObject:
		for i := range v.length() {
			if v.child(16*i).String() == key {
				return v.child(16*i + 8)
			}
		}
	case cellTree:
		if t, ok := v.tree().(map[string]any); ok {
			if c, ok := t[key]; ok {
				return treeOf(c)
			}
		}
	}
	return absent
}

// Entry is the i-th key of an object, with its value. The keys of settings are sorted.
func (v Value) Entry(i int) (key string, value Value) {
	if v.kind() == cellTree {
		return treeEntry(v.tree(), i)
	}
	if v.kind() != cellObject || uint(i) >= uint(v.length()) {
		return "", absent
	}
	return v.child(16 * i).String(), v.child(16*i + 8)
}

func treeEntry(tree any, i int) (string, Value) {
	t, ok := tree.(map[string]any)
	if !ok || i < 0 || i >= len(t) {
		return "", absent
	}
	keys := make([]string, 0, len(t))
	for k := range t {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys[i], treeOf(t[keys[i]])
}

// Strings are the items of an array of strings.
func (v Value) Strings() []string {
	out := make([]string, v.Len())
	for i := range out {
		out[i] = v.At(i).String()
	}
	return out
}

// Input is what a hook is asked about.
type Input struct {
	root   Value
	fields *[]string // of the hook
}

func newInput(fields *[]string, data []byte) Input {
	if len(data) < 8 {
		return Input{root: absent, fields: fields}
	}
	return Input{root: Value{unsafe.Pointer(unsafe.SliceData(data)), u64(data)}, fields: fields}
}

// Get is the value of a field, by the path under which the hook declared it. A
// hook that declared none reads the whole input by paths of names and dots.
func (in Input) Get(path string) Value {
	if in.fields == nil {
		return absent
	}
	fields := *in.fields
	for i := range fields { // the same constant, most of the time
		if f := fields[i]; unsafe.StringData(f) == unsafe.StringData(path) && len(f) == len(path) {
			return in.root.At(i)
		}
	}
	for i, f := range fields {
		if f == path {
			return in.root.At(i)
		}
	}
	if len(fields) > 0 {
		return absent
	}
	v := in.root
	for path != "" {
		name, rest, _ := strings.Cut(path, ".")
		v, path = v.Get(name), rest
	}
	return v
}

// Root is the whole input of a hook that declared no fields.
func (in Input) Root() Value { return in.root }

// ParseJSON reads a JSON document, for settings and for answers of host functions.
func ParseJSON(data []byte) (Value, error) {
	p := parser{s: string(data)}
	tree, err := p.value(0)
	if err != nil {
		return absent, err
	}
	if p.space(); p.i != len(p.s) {
		return absent, errors.New("bytes behind the JSON document")
	}
	return treeOf(tree), nil
}

type parser struct {
	s string
	i int
}

var errJSON = errors.New("not a JSON document")

func (p *parser) space() {
	for p.i < len(p.s) && strings.IndexByte(" \t\r\n", p.s[p.i]) >= 0 {
		p.i++
	}
}

func (p *parser) value(depth int) (any, error) {
	p.space()
	if p.i >= len(p.s) || depth > 100 {
		return nil, errJSON
	}
	switch c := p.s[p.i]; c {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		return p.str()
	case 't', 'f', 'n':
		for word, v := range map[string]any{"true": true, "false": false, "null": nil} {
			if strings.HasPrefix(p.s[p.i:], word) {
				p.i += len(word)
				return v, nil
			}
		}
		return nil, errJSON
	}
	start := p.i
	for p.i < len(p.s) && strings.IndexByte("+-.eE0123456789", p.s[p.i]) >= 0 {
		p.i++
	}
	if i, err := strconv.ParseInt(p.s[start:p.i], 10, 64); err == nil {
		return i, nil
	}
	f, err := strconv.ParseFloat(p.s[start:p.i], 64)
	if err != nil {
		return nil, errJSON
	}
	return f, nil
}

func (p *parser) next(c byte) bool {
	p.space()
	if p.i < len(p.s) && p.s[p.i] == c {
		p.i++
		return true
	}
	return false
}

func (p *parser) object(depth int) (any, error) {
	p.i++
	out := map[string]any{}
	if p.next('}') {
		return out, nil
	}
	for {
		p.space()
		if p.i >= len(p.s) || p.s[p.i] != '"' {
			return nil, errJSON
		}
		k, err := p.str()
		if err != nil || !p.next(':') {
			return nil, errJSON
		}
		if out[k], err = p.value(depth + 1); err != nil {
			return nil, err
		}
		if p.next('}') {
			return out, nil
		}
		if !p.next(',') {
			return nil, errJSON
		}
	}
}

func (p *parser) array(depth int) (any, error) {
	p.i++
	out := []any{}
	if p.next(']') {
		return out, nil
	}
	for {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		if p.next(']') {
			return out, nil
		}
		if !p.next(',') {
			return nil, errJSON
		}
	}
}

func (p *parser) str() (string, error) {
	start := p.i
	p.i++
	plain := true
	for p.i < len(p.s) {
		switch p.s[p.i] {
		case '\\':
			plain = false
			p.i++
		case '"':
			p.i++
			if plain {
				return p.s[start+1 : p.i-1], nil
			}
			return unescape(p.s[start+1 : p.i-1])
		}
		p.i++
	}
	return "", errJSON
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i >= len(s) {
			return "", errJSON
		}
		switch s[i] {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			r, n, ok := escapedRune(s[i+1:])
			if !ok {
				return "", errJSON
			}
			b.WriteRune(r)
			i += n
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}

// escapedRune reads the four digits behind \u, and a second half of a surrogate pair.
func escapedRune(s string) (r rune, n int, ok bool) {
	if len(s) < 4 {
		return 0, 0, false
	}
	v, err := strconv.ParseUint(s[:4], 16, 16)
	if err != nil {
		return 0, 0, false
	}
	if v >= 0xd800 && v < 0xdc00 && len(s) >= 10 && s[4:6] == `\u` {
		low, err := strconv.ParseUint(s[6:10], 16, 16)
		if err == nil && low >= 0xdc00 && low < 0xe000 {
			return rune((v-0xd800)<<10 | (low - 0xdc00) + 0x10000), 10, true
		}
	}
	return rune(v), 4, true
}
