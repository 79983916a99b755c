// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// document is a JSON text with the places of its values, which are read when somebody asks for them: of a whole object
// that a policy answers, most is what it was given.
type document struct {
	text  []byte
	nodes []node
}

// node is a value, behind all that contain it and before all that it contains. A member of an
// object is the node of its name and, behind it, that of its value.
type node struct {
	from, to int32 // in the text
	next     int32 // the node behind the value, with all that it contains
}

// deepest is how deeply values may be nested, as for encoding/json.
const deepest = 10_000

// documents keep the memory of nodes between calls.
var documents = sync.Pool{New: func() any { return new(document) }}

// parse reads a text; false where it is no JSON.
func parse(text []byte) (*document, bool) {
	d := documents.Get().(*document)
	d.text, d.nodes = text, d.nodes[:0]
	if len(text) > 1<<30 {
		return d, false
	}
	end, ok := d.value(d.space(0), 0)
	return d, ok && d.space(end) == len(text)
}

// release gives the memory of nodes back. What was read of the text stays.
func (d *document) release() {
	d.text = nil
	documents.Put(d)
}

func (d *document) space(at int) int {
	for at < len(d.text) && (d.text[at] == ' ' || d.text[at] == '\n' || d.text[at] == '\t' || d.text[at] == '\r') {
		at++
	}
	return at
}

// value reads the value that begins at a place, and answers where it ends.
func (d *document) value(at, depth int) (end int, ok bool) {
	if at >= len(d.text) {
		return at, false
	}
	own := len(d.nodes)
	d.nodes = append(d.nodes, node{from: int32(at)})
	switch c := d.text[at]; {
	case c == '"':
		end, ok = d.str(at)
	case c == '{':
		end, ok = d.members(at, depth, '}')
	case c == '[':
		end, ok = d.members(at, depth, ']')
	case c == '-' || c >= '0' && c <= '9':
		end, ok = d.number(at)
	default:
		for _, word := range []string{"true", "false", "null"} {
			if bytes.HasPrefix(d.text[at:], []byte(word)) {
				end, ok = at+len(word), true
			}
		}
	}
	d.nodes[own].to, d.nodes[own].next = int32(end), int32(len(d.nodes))
	return end, ok
}

// members reads an object or an array, up to its bracket.
func (d *document) members(at, depth int, bracket byte) (end int, ok bool) {
	if depth == deepest {
		return at, false
	}
	if at = d.space(at + 1); at < len(d.text) && d.text[at] == bracket {
		return at + 1, true
	}
	for {
		if bracket == '}' {
			own := len(d.nodes)
			d.nodes = append(d.nodes, node{from: int32(at), next: int32(own + 1)})
			if end, ok = d.str(at); !ok {
				return end, false
			}
			d.nodes[own].to = int32(end)
			if at = d.space(end); at >= len(d.text) || d.text[at] != ':' {
				return at, false
			}
			at = d.space(at + 1)
		}
		if at, ok = d.value(at, depth+1); !ok {
			return at, false
		}
		at = d.space(at)
		switch {
		case at < len(d.text) && d.text[at] == bracket:
			return at + 1, true
		case at >= len(d.text) || d.text[at] != ',':
			return at, false
		}
		at = d.space(at + 1)
	}
}

// str reads a text in quotes.
func (d *document) str(at int) (end int, ok bool) {
	if at >= len(d.text) || d.text[at] != '"' {
		return at, false
	}
	for at++; at < len(d.text); at++ {
		switch c := d.text[at]; {
		case c == '"':
			return at + 1, true
		case c < 0x20:
			return at, false
		case c == '\\':
			if at++; at >= len(d.text) || strings.IndexByte(`"\/bfnrtu`, d.text[at]) < 0 {
				return at, false
			}
			if d.text[at] != 'u' {
				continue
			}
			for range 4 {
				if at++; at >= len(d.text) || !isHex(d.text[at]) {
					return at, false
				}
			}
		}
	}
	return at, false
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// number reads a number.
func (d *document) number(at int) (end int, ok bool) {
	digits := func() bool {
		from := at
		for at < len(d.text) && d.text[at] >= '0' && d.text[at] <= '9' {
			at++
		}
		return at > from
	}
	is := func(c byte) bool {
		if at < len(d.text) && d.text[at] == c {
			at++
			return true
		}
		return false
	}
	is('-')
	if !is('0') && !digits() {
		return at, false
	}
	if is('.') && !digits() {
		return at, false
	}
	if is('e') || is('E') {
		if !is('+') {
			is('-')
		}
		if !digits() {
			return at, false
		}
	}
	return at, true
}

// raw is the text of a value.
func (d *document) raw(n int32) json.RawMessage { return d.text[d.nodes[n].from:d.nodes[n].to] }

// first is the first character of a value, which tells its kind.
func (d *document) first(n int32) byte { return d.text[d.nodes[n].from] }

func (d *document) null(n int32) bool { return d.first(n) == 'n' }

// plain is what a text in quotes says.
func (d *document) plain(n int32) []byte {
	raw := d.raw(n)
	if inside := raw[1 : len(raw)-1]; bytes.IndexByte(inside, '\\') < 0 && utf8.Valid(inside) {
		return inside
	}
	var s string
	_ = json.Unmarshal(raw, &s) // it was read
	return []byte(s)
}

// member is a member of an object.
type member struct {
	name  []byte
	value int32
}

// object are the members of an object, by name. Of several with one name the last counts.
func (d *document) object(n int32) []member {
	out := make([]member, 0, 16)
	sorted := true
	for at := n + 1; at < d.nodes[n].next; at = d.nodes[at+1].next {
		m := member{d.plain(at), at + 1}
		sorted = sorted && (len(out) == 0 || bytes.Compare(out[len(out)-1].name, m.name) < 0)
		out = append(out, m)
	}
	if sorted {
		return out
	}
	slices.SortStableFunc(out, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	kept := out[:0]
	for i, m := range out {
		if i+1 == len(out) || !bytes.Equal(out[i+1].name, m.name) {
			kept = append(kept, m)
		}
	}
	return kept
}

// member finds a member of an object by its name; ok is false where it has none.
func (d *document) member(n int32, name string) (value int32, ok bool) {
	if d.first(n) != '{' {
		return 0, false
	}
	for at := n + 1; at < d.nodes[n].next; at = d.nodes[at+1].next {
		if string(d.plain(at)) == name {
			value, ok = at+1, true
		}
	}
	return value, ok
}

// comparison is Diff of two values that were not decoded: its values are pieces of their text.
type comparison struct {
	from, to *document
	path     []byte // where it is
	out      []Change
	differs  bool // maybe only in a null, which is no change
}

func (c *comparison) diff(a, b int32) {
	x, y := c.from.raw(a), c.to.raw(b)
	switch {
	case bytes.Equal(x, y):
	case x[0] == '{' && y[0] == '{':
		c.object(a, b)
	case x[0] == '[' && y[0] == '[':
		c.array(a, b)
	case x[0] == '"' && y[0] == '"' && bytes.Equal(c.from.plain(a), c.to.plain(b)):
	default:
		c.change("replace", b)
	}
}

func (c *comparison) change(op string, value int32) {
	c.differs = true
	change := Change{Op: op, Path: string(c.path)}
	if op != "remove" {
		change.Value = c.to.raw(value)
	}
	c.out = append(c.out, change)
}

// below has f work on what is below a name.
func (c *comparison) below(name string, f func()) {
	at := len(c.path)
	c.path = append(append(c.path, '/'), name...)
	f()
	c.path = c.path[:at]
}

func (c *comparison) object(a, b int32) {
	from, to := c.from.object(a), c.to.object(b)
	for i, j := 0, 0; i < len(from); i++ {
		for j < len(to) && bytes.Compare(to[j].name, from[i].name) < 0 {
			j++
		}
		if j < len(to) && bytes.Equal(to[j].name, from[i].name) {
			continue
		}
		c.differs = true
		if !c.from.null(from[i].value) { // null and absent are the same to the API
			c.below(escape.Replace(string(from[i].name)), func() { c.change("remove", 0) })
		}
	}
	for i, j := 0, 0; j < len(to); j++ {
		for i < len(from) && bytes.Compare(from[i].name, to[j].name) < 0 {
			i++
		}
		had, value := i < len(from) && bytes.Equal(from[i].name, to[j].name), to[j].value
		switch {
		case had && bytes.Equal(c.from.raw(from[i].value), c.to.raw(value)):
		case had:
			c.below(escape.Replace(string(to[j].name)), func() { c.diff(from[i].value, value) })
		case c.to.null(value):
			c.differs = true
		default:
			c.below(escape.Replace(string(to[j].name)), func() { c.change("add", value) })
		}
	}
}

// array compares item by item, then appends or takes away at the end, last first.
func (c *comparison) array(a, b int32) {
	end, endOf := c.from.nodes[a].next, c.to.nodes[b].next
	x, y, both := a+1, b+1, 0
	for ; x < end && y < endOf; x, y = c.from.nodes[x].next, c.to.nodes[y].next {
		if !bytes.Equal(c.from.raw(x), c.to.raw(y)) {
			c.below(strconv.Itoa(both), func() { c.diff(x, y) })
		}
		both++
	}
	more := 0
	for ; x < end; x = c.from.nodes[x].next {
		more++
	}
	for i := both + more - 1; i >= both; i-- {
		c.below(strconv.Itoa(i), func() { c.change("remove", 0) })
	}
	for ; y < endOf; y = c.to.nodes[y].next {
		c.below("-", func() { c.change("add", y) })
	}
}
