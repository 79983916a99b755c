// SPDX-License-Identifier: Apache-2.0

package schemacheck

import (
	"fmt"

	"k8s.io/kube-openapi/pkg/validation/errors"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// fewErrors is MaxErrors of an alternative: of most of them nobody is told what is wrong, only that something is.
const fewErrors = 10

func hasAlternatives(s *spec.Schema) bool {
	return len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) > 0 || s.Not != nil
}

// alternatives holds a value against the alternatives of its schema, and merges what comes of it into the result of the schema itself.
// Upstream does the same, but of an alternative it finds all errors, and compares each with all others: for every entry of a list that is
// not meant for the alternative. What is told is upstream's, up to fewErrors of one alternative.
func (p *place) alternatives(value any, into *validate.Result) {
	s := p.schema
	if len(s.AnyOf) > 0 {
		p.anyOf(value, into)
	}
	if len(s.OneOf) > 0 {
		p.oneOf(value, into)
	}
	if len(s.AllOf) > 0 {
		p.allOf(value, into)
	}
	if s.Not != nil && p.against(s.Not, value).IsValid() {
		into.AddErrors(composite(validate.MustNotValidateSchemaError, p.path))
	}
}

// against holds the value of the place against another schema. There upstream does not look at what the value was before.
func (p *place) against(s *spec.Schema, value any) *validate.Result {
	return (&place{walk: &walk{counts: p.walk.counts, most: fewErrors}, schema: s, root: p.root, path: p.path}).Validate(value)
}

func composite(format string, args ...any) error {
	return errors.New(errors.CompositeErrorCode, format, args...)
}

func (p *place) anyOf(value any, into *validate.Result) {
	var best *validate.Result
	for i := range p.schema.AnyOf {
		result := p.against(&p.schema.AnyOf[i], value)
		if result.IsValid() {
			into.Merge(result)
			return
		}
		best = better(best, result)
	}
	into.AddErrors(composite(validate.MustValidateAtLeastOneSchemaError, p.path))
	into.Merge(best)
}

// better is the result of two whose schema is more likely meant: that of which more is right.
func better(a, b *validate.Result) *validate.Result {
	if a == nil || b.MatchCount > a.MatchCount {
		return b
	}
	return a
}

func (p *place) oneOf(value any, into *validate.Result) {
	var best, first *validate.Result
	valid := 0
	for i := range p.schema.OneOf {
		result := p.against(&p.schema.OneOf[i], value)
		switch {
		case !result.IsValid():
			best = better(best, result)
		case valid == 0:
			first = result
			fallthrough
		default:
			valid++
		}
	}
	switch valid {
	case 0:
		into.AddErrors(composite(validate.MustValidateOnlyOneSchemaError, p.path, "Found none valid"))
		into.Merge(best)
	case 1:
		into.Merge(first)
	default:
		into.AddErrors(composite(validate.MustValidateOnlyOneSchemaError, p.path, fmt.Sprintf("Found %d valid alternatives", valid)))
	}
}

func (p *place) allOf(value any, into *validate.Result) {
	valid, began := 0, len(into.Errors)
	for i := range p.schema.AllOf {
		result := p.against(&p.schema.AllOf[i], value)
		if result.IsValid() {
			valid++
		}
		if into.Merge(result); len(into.Errors)-began >= MaxErrors {
			break
		}
	}
	if valid != len(p.schema.AllOf) {
		none := ""
		if valid == 0 {
			none = ". None validated"
		}
		into.AddErrors(composite(validate.MustValidateAllSchemasError, p.path, none))
	}
}

// alone is a schema without its alternatives, without required names that would be errors beyond the limit, and, where the value has but
// a few of its properties, without the others, which upstream looks at one by one; it is s where it has none.
func (w *walk) alone(s *spec.Schema, value any) *spec.Schema {
	required, few := s.Required, s.Properties
	if m, ok := value.(map[string]any); ok {
		if len(required) > w.most-w.errors {
			required = missing(m, required, w.most-w.errors)
		}
		if len(few) > 2*len(m) {
			few = make(map[string]spec.Schema, len(m))
			for name := range m {
				if p, ok := s.Properties[name]; ok {
					few[name] = p
				}
			}
		}
	}
	if !hasAlternatives(s) && len(required) == len(s.Required) && len(few) == len(s.Properties) {
		return s
	}
	c := *s
	c.AllOf, c.AnyOf, c.OneOf, c.Not, c.Required, c.Properties = nil, nil, nil, nil, required, few
	return &c
}

// missing are the first names that a map does not have.
func missing(m map[string]any, names []string, most int) (out []string) {
	for _, name := range names {
		if _, ok := m[name]; !ok {
			if out = append(out, name); len(out) == most {
				return out
			}
		}
	}
	return out
}
