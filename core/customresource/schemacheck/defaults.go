// SPDX-License-Identifier: Apache-2.0

package schemacheck

import structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

// MaxDefaults is how many values the defaults of a schema may add to an object. So many have some 50 MB.
const MaxDefaults = 200_000

// MaxDefaultBytes is how long the texts and names in these values are together. In memory an object shares the texts of its schema's
// defaults, but encoded it has each of them again: entries of three bytes with a default of 100 KB became gigabytes. No store takes so
// much.
const MaxDefaultBytes = 4 << 20

// Multiplies says whether a schema has defaults for the entries of lists or maps: one object may have any number of these.
func Multiplies(s *structuralschema.Structural) bool {
	return s != nil && multiplies(s, false)
}

func multiplies(s *structuralschema.Structural, entry bool) bool {
	if entry && s.Default.Object != nil {
		return true
	}
	for name := range s.Properties {
		p := s.Properties[name]
		if multiplies(&p, entry) {
			return true
		}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil && multiplies(s.AdditionalProperties.Structural, true) {
		return true
	}
	return s.Items != nil && multiplies(s.Items, true)
}

// TooManyDefaults says whether the defaults of a schema would add more than MaxDefaults values, or MaxDefaultBytes, to an object.
func TooManyDefaults(object map[string]any, s *structuralschema.Structural) bool {
	var a added
	a.walk(object, s)
	return a.over()
}

// MaxVisits is how many properties of schemas are looked at to fill in the defaults of one object. It is half a second of a processor.
const MaxVisits = 10_000_000

// TooManyVisits says whether more than MaxVisits properties would be looked at: for each map of the object upstream looks at all
// properties that the schema has for it, so that a list of 20,000 empty maps whose schema has 10,000 properties is 200 million.
func TooManyVisits(object map[string]any, s *structuralschema.Structural) bool {
	n := 0
	visit(&n, object, s)
	return n > MaxVisits
}

func visit(n *int, value any, s *structuralschema.Structural) {
	if s == nil || *n > MaxVisits {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		*n += len(s.Properties)
		for name, within := range v {
			if p, ok := s.Properties[name]; ok {
				visit(n, within, &p)
			} else if s.AdditionalProperties != nil {
				visit(n, within, s.AdditionalProperties.Structural)
			}
		}
	case []any:
		for _, within := range v {
			visit(n, within, s.Items)
		}
	}
}

// added counts what defaults add.
type added struct{ count, bytes int }

func (a *added) over() bool { return a.count > MaxDefaults || a.bytes > MaxDefaultBytes }

func (a *added) walk(value any, s *structuralschema.Structural) {
	if s == nil || a.over() {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		for name := range s.Properties {
			p := s.Properties[name]
			within, ok := v[name]
			if d := p.Default.Object; d != nil && (!ok || within == nil && !p.Nullable) {
				a.bytes += len(name)
				a.values(d)
				within = d
			}
			a.walk(within, &p)
		}
		if s.AdditionalProperties == nil || s.AdditionalProperties.Structural == nil {
			return
		}
		for name, within := range v {
			if _, ok := s.Properties[name]; !ok {
				a.entry(within, s.AdditionalProperties.Structural)
			}
		}
	case []any:
		for _, within := range v {
			a.entry(within, s.Items)
		}
	}
}

// entry is a value of a list or a map, where a default stands for null.
func (a *added) entry(value any, s *structuralschema.Structural) {
	if s != nil && value == nil && !s.Nullable {
		value = s.Default.Object
		a.values(value)
	}
	a.walk(value, s)
}

// values counts a default with all that is in it.
func (a *added) values(d any) {
	if a.count++; a.over() {
		return
	}
	switch d := d.(type) {
	case string:
		a.bytes += len(d)
	case map[string]any:
		for name, within := range d {
			a.bytes += len(name)
			a.values(within)
		}
	case []any:
		for _, within := range d {
			a.values(within)
		}
	}
}
