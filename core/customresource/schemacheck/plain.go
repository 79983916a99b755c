// SPDX-License-Identifier: Apache-2.0

package schemacheck

import (
	"math"
	"slices"
	"unicode/utf8"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// plain is upstream's result for a value that is right by its type, a length, an enumeration or a limit, and has no others in it, as most
// values of an object; nil = ask upstream. It takes a tenth of the time. It has as many matches as upstream counts, by which alternatives
// are told apart.
func plain(s *spec.Schema, value any) *validate.Result {
	if s.Format != "" || s.Pattern != "" || s.MultipleOf != nil || hasAlternatives(s) || len(s.Dependencies) > 0 {
		return nil
	}
	matches := 4 // what upstream counts of any value
	if len(s.Type) > 0 {
		matches += 2
	}
	switch v := value.(type) {
	case string:
		if !is(s, "string") || !among(s.Enum, v) || !fits(s, v) {
			return nil
		}
		matches++
	case bool:
		if !is(s, "boolean") || len(s.Enum) > 0 {
			return nil
		}
	case int64:
		if !is(s, "integer") || len(s.Enum) > 0 || !limited(s, v) {
			return nil
		}
		matches += 2
	case map[string]any:
		if !is(s, "object") || len(v) > 0 || len(s.Enum)+len(s.Required) > 0 || s.MinProperties != nil || s.MaxProperties != nil {
			return nil
		}
		matches++
	case []any:
		if !is(s, "array") || len(v) > 0 || len(s.Enum) > 0 || s.MinItems != nil || s.MaxItems != nil || s.AdditionalItems != nil {
			return nil
		}
		matches += 2
	default:
		return nil
	}
	return &validate.Result{MatchCount: matches}
}

// is says whether a schema is for values of a type, among others.
func is(s *spec.Schema, kind string) bool { return len(s.Type) == 0 || slices.Contains(s.Type, kind) }

// among says whether a text is one of an enumeration, which there may not be.
func among(enum []any, text string) bool {
	for _, v := range enum {
		if s, ok := v.(string); ok && s == text {
			return true
		}
	}
	return len(enum) == 0
}

// fits says whether a text is as long as it may be.
func fits(s *spec.Schema, text string) bool {
	if s.MaxLength == nil && s.MinLength == nil {
		return true
	}
	n := int64(utf8.RuneCountInString(text))
	return (s.MaxLength == nil || n <= *s.MaxLength) && (s.MinLength == nil || n >= *s.MinLength)
}

// limited says whether a number is within limits that are whole numbers; of others upstream has its own opinion.
func limited(s *spec.Schema, n int64) bool {
	const exact = 1 << 53
	for _, limit := range []*float64{s.Minimum, s.Maximum} {
		if limit != nil && (*limit != math.Trunc(*limit) || math.Abs(*limit) > exact) {
			return false
		}
	}
	if s.Minimum != nil && (n < int64(*s.Minimum) || s.ExclusiveMinimum && n == int64(*s.Minimum)) {
		return false
	}
	return s.Maximum == nil || n < int64(*s.Maximum) || !s.ExclusiveMaximum && n == int64(*s.Maximum)
}
