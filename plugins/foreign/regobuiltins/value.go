// SPDX-License-Identifier: Apache-2.0

package regobuiltins

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Values of Rego: nil, bool, json.Number, string, []any, object and set. The
// last two are kept in Rego's order.
type (
	object []member
	set    []any
)

type member struct{ key, value any }

var errSyntax = errors.New("no value of Rego")

// depthLimit bounds how deep values may be nested: the reader calls itself.
const depthLimit = 256

// parse reads a ground value as opa_value_dump writes it: JSON, with sets, and
// with keys of any type.
func parse(text []byte) (any, error) {
	p := parser{text: text}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.at != len(text) {
		return nil, errSyntax
	}
	return v, nil
}

type parser struct {
	text []byte
	at   int
}

func (p *parser) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

// take skips a byte if it comes next.
func (p *parser) take(c byte) bool {
	p.space()
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) word(w string, v any) (any, error) {
	if bytes.HasPrefix(p.text[p.at:], []byte(w)) {
		p.at += len(w)
		return v, nil
	}
	return nil, errSyntax
}

func (p *parser) value(depth int) (any, error) {
	if p.space(); p.at >= len(p.text) || depth > depthLimit {
		return nil, errSyntax
	}
	switch c := p.text[p.at]; {
	case c == '"':
		return p.string()
	case c == '[':
		p.at++
		return p.items(']', depth)
	case c == '{':
		p.at++
		return p.braces(depth)
	case c == 'n':
		return p.word("null", nil)
	case c == 't':
		return p.word("true", true)
	case c == 'f':
		return p.word("false", false)
	case c == 's':
		return p.word("set()", set{})
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	return nil, errSyntax
}

func (p *parser) string() (any, error) {
	for end := p.at + 1; end < len(p.text); end++ {
		switch p.text[end] {
		case '\\':
			end++
		case '"':
			var s string
			if err := json.Unmarshal(p.text[p.at:end+1], &s); err != nil {
				return nil, err
			}
			p.at = end + 1
			return s, nil
		}
	}
	return nil, errSyntax
}

func (p *parser) number() (any, error) {
	end := p.at
	for end < len(p.text) && strings.IndexByte("+-.0123456789eE", p.text[end]) >= 0 {
		end++
	}
	n := string(p.text[p.at:end])
	if !json.Valid([]byte(n)) {
		return nil, errSyntax
	}
	p.at = end
	return json.Number(n), nil
}

func (p *parser) items(end byte, depth int) ([]any, error) {
	out := []any{}
	if p.take(end) {
		return out, nil
	}
	for {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		if p.take(end) {
			return out, nil
		}
		if !p.take(',') {
			return nil, errSyntax
		}
	}
}

// braces reads an object, or a set where no colon follows the first item.
func (p *parser) braces(depth int) (any, error) {
	if p.take('}') {
		return object{}, nil
	}
	first, err := p.value(depth + 1)
	if err != nil {
		return nil, err
	}
	if !p.take(':') {
		if p.take('}') {
			return set{first}, nil
		}
		if !p.take(',') {
			return nil, errSyntax
		}
		rest, err := p.items('}', depth)
		return newSet(append([]any{first}, rest...)), err
	}
	out := object{}
	for key := first; ; {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, member{key, v})
		if p.take('}') {
			return newObject(out), nil
		}
		if !p.take(',') {
			return nil, errSyntax
		}
		if key, err = p.value(depth + 1); err != nil {
			return nil, err
		}
		if !p.take(':') {
			return nil, errSyntax
		}
	}
}

func newSet(items []any) set {
	slices.SortFunc(items, compare)
	return slices.CompactFunc(items, func(a, b any) bool { return compare(a, b) == 0 })
}

func newObject(o object) object {
	slices.SortStableFunc(o, func(a, b member) int { return compare(a.key, b.key) })
	return o
}

// get finds a key.
func (o object) get(key any) (any, bool) {
	i, ok := slices.BinarySearchFunc(o, key, func(m member, k any) int { return compare(m.key, k) })
	if !ok {
		return nil, false
	}
	return o[i].value, true
}

func rank(v any) int {
	switch v.(type) {
	case nil:
		return 0
	case bool:
		return 1
	case json.Number:
		return 2
	case string:
		return 3
	case []any:
		return 4
	case object:
		return 5
	}
	return 6
}

// compare is Rego's order of values.
func compare(a, b any) int {
	if c := cmp.Compare(rank(a), rank(b)); c != 0 {
		return c
	}
	switch a := a.(type) {
	case bool:
		switch b := b.(bool); {
		case a == b:
			return 0
		case b:
			return -1
		}
		return 1
	case json.Number:
		return compareNumbers(a, b.(json.Number))
	case string:
		return strings.Compare(a, b.(string))
	case []any:
		return slices.CompareFunc(a, b.([]any), compare)
	case set:
		return slices.CompareFunc(a, b.(set), compare)
	case object:
		return slices.CompareFunc(a, b.(object), func(x, y member) int {
			return cmp.Or(compare(x.key, y.key), compare(x.value, y.value))
		})
	}
	return 0
}

func compareNumbers(a, b json.Number) int {
	x, err1 := strconv.ParseInt(string(a), 10, 64)
	y, err2 := strconv.ParseInt(string(b), 10, 64)
	if err1 == nil && err2 == nil {
		return cmp.Compare(x, y)
	}
	f, ok1 := float(a)
	g, ok2 := float(b)
	if !ok1 || !ok2 {
		return strings.Compare(string(a), string(b))
	}
	return f.Cmp(g)
}

// float reads a number unless its exponent would make it huge.
func float(n json.Number) (*big.Float, bool) {
	if len(n) > 1000 {
		return nil, false
	}
	f, _, err := big.ParseFloat(string(n), 10, 64, big.ToNearestEven)
	return f, err == nil
}

// write is a value as Rego writes it.
func write(b *strings.Builder, v any) {
	list := func(items []any) {
		for i, item := range items {
			if i > 0 {
				b.WriteString(", ")
			}
			write(b, item)
		}
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case json.Number:
		b.WriteString(string(v))
	case string:
		b.Write(quote(v))
	case []any:
		b.WriteByte('[')
		list(v)
		b.WriteByte(']')
	case set:
		if len(v) == 0 {
			b.WriteString("set()")
			return
		}
		b.WriteByte('{')
		list(v)
		b.WriteByte('}')
	case object:
		b.WriteByte('{')
		for i, m := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			write(b, m.key)
			b.WriteString(": ")
			write(b, m.value)
		}
		b.WriteByte('}')
	}
}

func quote(s string) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return []byte(`""`)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func text(v any) string {
	var b strings.Builder
	write(&b, v)
	return b.String()
}

// plain is a value as JSON has it: sets are lists, keys are strings.
func plain(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case set:
		return plain([]any(v))
	case object:
		out := map[string]any{}
		for _, m := range v {
			key, ok := m.key.(string)
			if !ok {
				key = text(m.key)
			}
			out[key] = plain(m.value)
		}
		return out
	}
	return v
}

// fromPlain is the value of decoded JSON or YAML.
func fromPlain(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, string, json.Number, object, set:
		return v, nil
	case int:
		return json.Number(strconv.Itoa(v)), nil
	case int64:
		return json.Number(strconv.FormatInt(v, 10)), nil
	case uint64:
		return json.Number(strconv.FormatUint(v, 10)), nil
	case float64:
		b, err := json.Marshal(v)
		return json.Number(b), err
	case []string:
		out := make([]any, len(v))
		for i := range v {
			out[i] = v[i]
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = fromPlain(v[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out := object{}
		for k, item := range v {
			value, err := fromPlain(item)
			if err != nil {
				return nil, err
			}
			out = append(out, member{k, value})
		}
		return newObject(out), nil
	}
	return nil, fmt.Errorf("a %T is no value of Rego", v)
}
