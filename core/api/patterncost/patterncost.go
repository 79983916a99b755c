// SPDX-License-Identifier: Apache-2.0

// Package patterncost bounds what the patterns of custom resources cost: to be compiled, and to be held against texts.
//
// A regular expression of Go never takes longer than the text times the pattern, which is no bound where both are long:
// a text of a MiB and a pattern of a hundred kilobytes would take a processor for an hour, and no deadline ends it. A
// pattern that was compiled once is kept for as long as the server runs. The sizes are read off what was parsed, where
// {1,1000} is still one operation.
package patterncost

import (
	"fmt"
	"math"
	"regexp/syntax"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// MaxWork is the sum over the texts of an object of bytes times the sizes of their patterns: about a second of a processor.
	MaxWork = 200_000_000
	// MaxSize is how large the patterns of one definition are together: of 40 bytes each, 40 MB.
	MaxSize = 1_000_000
)

// Size is about how many instructions a pattern has once it is compiled; 0 for what is no pattern, which validation tells.
func Size(pattern string) int {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	return size(re)
}

func size(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n = add(n, size(sub))
	}
	if re.Op == syntax.OpRepeat {
		times := re.Max
		if times < 0 {
			times = re.Min + 1
		}
		return multiply(n, times)
	}
	return n
}

// Schema is what the patterns of a schema cost; nil = there are none.
type Schema struct {
	size       int // of the patterns for the text itself
	properties map[string]*Schema
	items      *Schema
	others     *Schema // values of a map
}

// Of is the schema's; nil = there is none.
func Of(s *apiextensions.JSONSchemaProps) *Schema {
	out := &Schema{}
	if s == nil || !out.add(s) {
		return nil
	}
	return out
}

// add adds a schema that holds for the same value; false: it has no patterns.
func (c *Schema) add(s *apiextensions.JSONSchemaProps) (has bool) {
	if s.Pattern != "" {
		c.size, has = add(c.size, Size(s.Pattern)), true
	}
	below := func(to *Schema, s *apiextensions.JSONSchemaProps) *Schema {
		if to == nil {
			to = &Schema{}
		}
		if !to.add(s) && to.empty() {
			return nil
		}
		has = true
		return to
	}
	for name := range s.Properties {
		p := s.Properties[name]
		if sub := below(c.properties[name], &p); sub != nil {
			if c.properties == nil {
				c.properties = map[string]*Schema{}
			}
			c.properties[name] = sub
		}
	}
	if a := s.AdditionalProperties; a != nil && a.Schema != nil {
		c.others = below(c.others, a.Schema)
	}
	if s.Items != nil && s.Items.Schema != nil {
		c.items = below(c.items, s.Items.Schema)
	}
	for _, list := range [][]apiextensions.JSONSchemaProps{s.AllOf, s.AnyOf, s.OneOf} {
		for i := range list {
			has = c.add(&list[i]) || has
		}
	}
	if s.Not != nil {
		has = c.add(s.Not) || has
	}
	return has
}

func (c *Schema) empty() bool {
	return c.size == 0 && c.properties == nil && c.items == nil && c.others == nil
}

// Total is the size of all patterns.
func (c *Schema) Total() (n int) {
	if c == nil {
		return 0
	}
	n = add(add(c.size, c.items.Total()), c.others.Total())
	for _, p := range c.properties {
		n = add(n, p.Total())
	}
	return n
}

// Check refuses a value whose texts would take too long to be held against their patterns. One of which an update
// leaves as much work as old had is not refused; nil = there is no old one.
func (c *Schema) Check(value, old map[string]any) field.ErrorList {
	if c == nil {
		return nil
	}
	n := c.work(value)
	if n <= MaxWork || old != nil && n <= c.work(old) {
		return nil
	}
	path, most := c.worst(value, nil)
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf("the texts of the object are too long for their patterns: bytes times "+
		"the sizes of patterns are %d together, %d of them here, and the limit is %d", n, most, MaxWork))}
}

func (c *Schema) work(value any) (n int) {
	if c == nil {
		return 0
	}
	switch v := value.(type) {
	case string:
		return multiply(len(v), c.size)
	case []any:
		for _, item := range v {
			n = add(n, c.items.work(item))
		}
	case map[string]any:
		for name, p := range c.properties {
			n = add(n, p.work(v[name]))
		}
		if c.others != nil {
			for _, item := range v {
				n = add(n, c.others.work(item))
			}
		}
	}
	return n
}

// worst is where the most work is.
func (c *Schema) worst(value any, at *field.Path) (path *field.Path, most int) {
	path = at
	if c == nil {
		return path, 0
	}
	take := func(p *field.Path, n int) {
		if n > most {
			path, most = p, n
		}
	}
	switch v := value.(type) {
	case string:
		return at, multiply(len(v), c.size)
	case []any:
		for i, item := range v {
			take(c.items.worst(item, at.Index(i)))
		}
	case map[string]any:
		for name, p := range c.properties {
			take(p.worst(v[name], at.Child(name)))
		}
		if c.others != nil {
			for name, item := range v {
				take(c.others.worst(item, at.Key(name)))
			}
		}
	}
	return path, most
}

// add and multiply stay at the largest number.
func add(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

func multiply(a, b int) int {
	if b != 0 && a > math.MaxInt/b {
		return math.MaxInt
	}
	return a * b
}
