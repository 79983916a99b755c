// SPDX-License-Identifier: Apache-2.0

package schemacheck

import structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

// MaxDefaults is how many values the defaults of a schema may add to an object. So many have some 50 MB.
const MaxDefaults = 200_000

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

// TooManyDefaults says whether the defaults of a schema would add more than MaxDefaults values to an object.
func TooManyDefaults(object map[string]any, s *structuralschema.Structural) bool {
	var a added
	a.walk(object, s)
	return a > MaxDefaults
}

// added counts the values that defaults add.
type added int

func (a *added) walk(value any, s *structuralschema.Structural) {
	if s == nil || *a > MaxDefaults {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		for name := range s.Properties {
			p := s.Properties[name]
			within, ok := v[name]
			if d := p.Default.Object; d != nil && (!ok || within == nil && !p.Nullable) {
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
	if *a++; *a > MaxDefaults {
		return
	}
	switch d := d.(type) {
	case map[string]any:
		for _, within := range d {
			a.values(within)
		}
	case []any:
		for _, within := range d {
			a.values(within)
		}
	}
}
