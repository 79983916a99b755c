// SPDX-License-Identifier: Apache-2.0

package schemacheck

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/common"
	celopenapi "k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"pgregory.net/rapid"
)

// someSchema has what schemas of definitions may have, at random.
func someSchema(t *rapid.T, depth int) spec.Schema {
	kinds := []string{"string", "integer", "enum", "choice"}
	if depth > 0 {
		kinds = append(kinds, "object", "array", "map", "keyed")
	}
	s := spec.Schema{}
	switch kind := rapid.SampledFrom(kinds).Draw(t, "kind"); kind {
	case "string":
		s.Type, s.MinLength = spec.StringOrArray{kind}, new(int64(1))
	case "integer":
		s.Type, s.Maximum = spec.StringOrArray{kind}, new(float64(2))
	case "enum":
		s.Type, s.Enum = spec.StringOrArray{"string"}, []any{"a", "b"}
	case "choice":
		s.AnyOf = []spec.Schema{someSchema(t, 0), someSchema(t, 0)}
	case "object":
		s.Type, s.Required, s.Properties = spec.StringOrArray{"object"}, []string{"a"}, map[string]spec.Schema{}
		for _, name := range []string{"a", "b", "kind"} {
			s.Properties[name] = someSchema(t, depth-1)
		}
	case "array":
		items := someSchema(t, depth-1)
		s.Type, s.Items, s.MaxItems = spec.StringOrArray{kind}, &spec.SchemaOrArray{Schema: &items}, new(int64(3))
	case "map":
		values := someSchema(t, depth-1)
		s.Type, s.AdditionalProperties = spec.StringOrArray{"object"}, &spec.SchemaOrBool{Allows: true, Schema: &values}
	case "keyed":
		items := spec.Schema{}
		items.Type = spec.StringOrArray{"object"}
		key := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"string"}}}
		items.Properties = map[string]spec.Schema{"a": key, "b": someSchema(t, depth-1)}
		s.Type, s.Items = spec.StringOrArray{"array"}, &spec.SchemaOrArray{Schema: &items}
		s.AddExtension("x-kubernetes-list-type", "map")
		s.AddExtension("x-kubernetes-list-map-keys", []any{"a"})
	}
	return s
}

func someValue(t *rapid.T, depth int) any {
	kinds := []string{"a", "", "number", "null"}
	if depth > 0 {
		kinds = append(kinds, "object", "array", "object", "array")
	}
	switch kind := rapid.SampledFrom(kinds).Draw(t, "value"); kind {
	case "number":
		return rapid.Int64Range(0, 4).Draw(t, "number")
	case "null":
		return nil
	case "object":
		out := map[string]any{}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "kind"}), 0, 4, rapid.ID).Draw(t, "names") {
			out[name] = someValue(t, depth-1)
		}
		return out
	case "array":
		out := make([]any, rapid.IntRange(0, 4).Draw(t, "n"))
		for i := range out {
			out[i] = someValue(t, depth-1)
		}
		return out
	default:
		return kind
	}
}

func words(errs field.ErrorList) (out []string) {
	for _, e := range errs {
		out = append(out, e.Error())
	}
	slices.Sort(out) // the properties of an object come in any order
	return out
}

// TestFewErrorsAreThoseOfUpstream, in its words: of objects that are new, that replace others, and that repeat what was wrong before.
func TestFewErrorsAreThoseOfUpstream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		schema := someSchema(t, 3)
		value, old := someValue(t, 4), someValue(t, 4)
		if rapid.Bool().Draw(t, "changed in one place only") {
			before, now := map[string]any{"a": old, "b": value}, map[string]any{"a": old, "b": someValue(t, 3)}
			object := spec.Schema{SchemaProps: spec.SchemaProps{
				Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{"a": schema, "b": someSchema(t, 3)},
			}}
			schema, value, old = object, now, before
		}
		ours, theirs := New(&schema), validation.NewSchemaValidatorFromOpenAPI(&schema)
		at := field.NewPath("at")
		got, want := words(validation.ValidateCustomResource(at, value, ours)), words(validation.ValidateCustomResource(at, value, theirs))
		if !slices.Equal(got, want) {
			t.Fatalf("created:\n%q\nupstream:\n%q", got, want)
		}
		for name, ratcheting := range map[string]func() []validation.ValidationOption{
			"replaced": func() []validation.ValidationOption { return nil },
			"ratcheted": func() []validation.ValidationOption {
				return []validation.ValidationOption{validation.WithRatcheting(nil)}
			},
			"correlated": func() []validation.ValidationOption {
				both := common.NewCorrelatedObject(value, old, &celopenapi.Schema{Schema: &schema})
				return []validation.ValidationOption{validation.WithRatcheting(both)}
			},
		} {
			got = words(validation.ValidateCustomResourceUpdate(at, value, old, ours, ratcheting()...))
			want = words(validation.ValidateCustomResourceUpdate(at, value, old, theirs, ratcheting()...))
			if !slices.Equal(got, want) {
				t.Fatalf("%s:\n%q\nupstream:\n%q", name, got, want)
			}
		}
	})
}

// wrongs is a list of n texts, where numbers are wanted, with one number at the end.
func wrongs(n int) (*spec.Schema, []any) {
	list := make([]any, n)
	for i := range list {
		list[i] = "x"
	}
	number := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"integer"}}}
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"array"}, Items: &spec.SchemaOrArray{Schema: &number}}}, list
}

// TestOfManyErrorsTheRestIsNotLookedAt: 100,000 wrong entries would be compared with each other, five billion times at each level.
func TestOfManyErrorsTheRestIsNotLookedAt(t *testing.T) {
	schema, list := wrongs(100_000)
	p := &place{walk: &walk{}, schema: schema}
	if n := len(p.Validate(list).Errors); n != MaxErrors || p.walk.places != MaxErrors+1 {
		t.Errorf("%d errors of %d places", n, p.walk.places)
	}
	if errs := validation.ValidateCustomResource(nil, list, New(schema)); len(errs) != MaxErrors {
		t.Errorf("%d errors", len(errs))
	}
}

// TestWhatWasWrongBeforeHidesNothing: errors that an update did not make do not count, however many they are, so that a new one
// behind them is found.
func TestWhatWasWrongBeforeHidesNothing(t *testing.T) {
	lists, list := wrongs(10 * MaxErrors)
	properties := map[string]spec.Schema{}
	old, value := map[string]any{}, map[string]any{}
	for i := range 20 {
		name := fmt.Sprint("list", i)
		properties[name], old[name], value[name] = *lists, list, list
	}
	properties["n"] = *lists.Items.Schema
	value["n"] = "x"
	schema := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: properties}}
	errs := validation.ValidateCustomResourceUpdate(field.NewPath("at"), value, old, New(schema), validation.WithRatcheting(nil))
	if len(errs) != 1 || errs[0].Field != "at.n" {
		t.Errorf("errors: %v", errs)
	}
	old["n"] = "x"
	if errs := validation.ValidateCustomResourceUpdate(nil, value, old, New(schema), validation.WithRatcheting(nil)); len(errs) > 0 {
		t.Errorf("what is as it was: %v", errs)
	}
}

// BenchmarkValid is an object without errors, upstream's validator beside this one.
func BenchmarkValid(b *testing.B) {
	schema, list := wrongs(1000)
	for i := range list {
		list[i] = int64(i)
	}
	for name, v := range map[string]validation.SchemaValidator{
		"upstream": validation.NewSchemaValidatorFromOpenAPI(schema), "here": New(schema),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !v.Validate(list).IsValid() {
					b.Fatal("it has errors")
				}
			}
		})
	}
}
