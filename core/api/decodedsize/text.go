// SPDX-License-Identifier: Apache-2.0

package decodedsize

import (
	"bytes"
	"encoding/json"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/jsonscan"
)

// shortest is how many bytes an entry has at least, in any media type.
const shortest = 2

// levels is how deep a count goes; nothing deeper is decoded.
const levels = 1100

// JSON refuses an object in JSON that would take more than Max.
func (s *Shape) JSON(data []byte) error {
	if s.fits(len(data)/shortest) && !s.rereads {
		return nil
	}
	r := &textOf{data: data}
	r.value(s, 0)
	return r.refusal()
}

// YAML refuses an object in YAML that would take more than Max. What cannot be read is left to who decodes it.
func (s *Shape) YAML(data []byte) error {
	if s.fits(separators(data)) && !bytes.ContainsRune(data, '*') { // an alias is as short as an entry, and unfolds
		return nil
	}
	if converted, err := yaml.YAMLToJSON(data); err == nil {
		return s.JSON(converted)
	}
	return nil
}

// separators is how many characters of a YAML text may begin an entry: more than there are entries, as texts have them too.
func separators(data []byte) (n int) {
	for _, c := range data {
		switch c {
		case ',', '[', '{', '\n', '-', ':', '?':
			n++
		}
	}
	return n
}

// textOf is JSON that is being counted.
type textOf struct {
	count
	data []byte
	at   int
}

func (r *textOf) space() {
	for r.at < len(r.data) && (r.data[r.at] == ' ' || r.data[r.at] == '\n' || r.data[r.at] == '\t' || r.data[r.at] == '\r') {
		r.at++
	}
}

// next is the byte that stands next, behind spaces; 0 = the end, or it was counted enough.
func (r *textOf) next() byte {
	if r.space(); r.at >= len(r.data) || r.over() {
		return 0
	}
	return r.data[r.at]
}

// value counts the value that stands next, which goes into a shape; nil = nothing of it is kept.
func (r *textOf) value(s *Shape, depth int) {
	began := r.at
	if depth > levels {
		r.at = len(r.data)
		return
	}
	switch r.next() {
	case '{':
		r.object(s, depth)
	case '[':
		r.list(s, depth)
	case '"':
		r.scalar(s)
		r.quoted()
	case 0:
		r.at = len(r.data)
	default: // a number or a word
		if r.data[r.at] != 'n' { // null
			r.scalar(s)
		}
		for r.at < len(r.data) && !bytes.ContainsRune([]byte(",]} \n\t\r"), rune(r.data[r.at])) {
			r.at++
		}
		if r.at == began {
			r.at++ // what belongs to nothing
		}
	}
	if s != nil && (s.own || s.kind == reflect.Pointer && s.elem.own) {
		r.read += r.at - began
	}
}

// through counts what pointers lead to, and is its shape.
func (c *count) through(s *Shape) *Shape {
	for s != nil && s.kind == reflect.Pointer {
		s = s.elem
		c.size += s.size
	}
	return s
}

// scalar counts what a number, a word or a text is decoded into.
func (c *count) scalar(s *Shape) {
	if s != nil && s.kind == reflect.Pointer {
		c.size += s.elem.size
	}
}

// quoted reads a text.
func (r *textOf) quoted() []byte {
	began, end := r.at, jsonscan.Closing(r.data, r.at)
	if end == len(r.data) {
		r.at = end
		return nil
	}
	r.at = end + 1
	return r.data[began:r.at]
}

func (r *textOf) object(s *Shape, depth int) {
	s = r.through(s)
	if s != nil && s.own {
		s = r.through(s.object)
	}
	r.at++
	for {
		switch r.next() {
		case '"':
			name := r.quoted()
			if r.next() == ':' {
				r.at++
			}
			r.value(r.member(s, name), depth+1)
		case '}':
			r.at++
			return
		case 0:
			r.at = len(r.data)
			return
		default:
			r.at++ // a comma
		}
	}
}

// member is what a member of an object is decoded into.
func (r *textOf) member(s *Shape, name []byte) *Shape {
	switch {
	case s == nil:
		return nil
	case s.kind == reflect.Map:
		r.size += s.entry()
		return s.elem
	case s.kind != reflect.Struct || len(name) < 2:
		return nil
	}
	if bytes.ContainsRune(name, '\\') {
		var plain string
		_ = json.Unmarshal(name, &plain)
		return s.members[plain]
	}
	return s.members[string(name[1:len(name)-1])]
}

func (r *textOf) list(s *Shape, depth int) {
	s = r.through(s)
	if s != nil && s.own {
		s = s.array
	}
	if s != nil && s.kind != reflect.Slice {
		s = nil
	}
	r.at++
	for {
		switch r.next() {
		case ']':
			r.at++
			return
		case ',':
			r.at++
		case 0:
			r.at = len(r.data)
			return
		default:
			if s == nil {
				r.value(nil, depth+1)
				continue
			}
			r.size += s.elem.size
			r.value(s.elem, depth+1)
		}
	}
}

// Protobuf refuses a message in its envelope that would take more than Max.
func (s *Shape) Protobuf(data []byte) error {
	if s.fits(len(data) / shortest) {
		return nil
	}
	c := &count{}
	// The envelope is a message, whose second field is the object: the last one counts, and here all do.
	c.message(&Shape{fields: map[uint64]*Shape{2: s}}, bytes.TrimPrefix(data, []byte(envelope.Prefix)), 0)
	return c.refusal()
}

func (c *count) message(s *Shape, data []byte, depth int) {
	for len(data) > 0 && depth <= levels && !c.over() {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return
		}
		within := s.fields[uint64(number)]
		data = data[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
				return
			}
			if within != nil && within.elem != nil {
				c.size += within.elem.size
			}
			data = data[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return
		}
		data = data[n:]
		if within != nil {
			c.field(within, value, depth+1)
		}
	}
}

// field counts a field of a message: a message, an entry of a list or map, or bytes.
func (c *count) field(s *Shape, value []byte, depth int) {
	switch {
	case s.kind == reflect.Map:
		c.size += s.entry()
		// The entry is a message of its own, whose second field is the value.
		c.message(&Shape{fields: map[uint64]*Shape{2: s.elem}}, value, depth)
		return
	case s.kind == reflect.Slice && s.elem.kind != reflect.Uint8:
		if s = s.elem; packed(s.kind) {
			c.size += int64(len(value)) * s.size // of a byte each, at worst
			return
		}
		c.size += s.size
	default:
	}
	if s = c.through(s); s.kind == reflect.Struct {
		c.message(s, value, depth)
	}
}

func packed(k reflect.Kind) bool { return k >= reflect.Bool && k <= reflect.Float64 }

// Tree refuses an object that is yet a tree of JSON's values, if it would take more than Max as a struct.
func (s *Shape) Tree(tree map[string]any) error {
	if s.fits(entries(tree)) {
		return nil
	}
	c := &count{}
	c.tree(s, tree)
	return c.refusal()
}

func entries(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		n = len(v)
		for _, within := range v {
			n += entries(within)
		}
	case []any:
		n = len(v)
		for _, within := range v {
			n += entries(within)
		}
	}
	return n
}

func (c *count) tree(s *Shape, v any) {
	if s == nil || c.over() {
		return
	}
	if v != nil {
		s = c.through(s)
	}
	switch v := v.(type) {
	case map[string]any:
		if s.own {
			c.tree(s.object, v)
			return
		}
		for name, within := range v {
			switch s.kind {
			case reflect.Map:
				c.size += s.entry()
				c.tree(s.elem, within)
			case reflect.Struct:
				c.tree(s.members[name], within)
			default: // not what the type has there
			}
		}
	case []any:
		if s.own {
			c.tree(s.array, v)
			return
		}
		if s.kind != reflect.Slice {
			return
		}
		for _, within := range v {
			c.size += s.elem.size
			c.tree(s.elem, within)
		}
	}
}
