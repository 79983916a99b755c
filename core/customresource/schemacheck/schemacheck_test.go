// SPDX-License-Identifier: Apache-2.0

package schemacheck

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/common"
	celopenapi "k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
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
		choices := make([]spec.Schema, rapid.IntRange(1, 3).Draw(t, "alternatives"))
		for i := range choices {
			choices[i] = someSchema(t, max(0, depth-1))
		}
		switch rapid.IntRange(0, 3).Draw(t, "of them") {
		case 0:
			s.AnyOf = choices
		case 1:
			s.OneOf = choices
		case 2:
			s.AllOf = choices
		default:
			s.Not = &choices[0]
		}
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
	p := &place{walk: newWalk(), schema: schema}
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

// TestAlternativesAndEnumerationsAreCounted: of objects that a definition may have, and of ones that would take minutes.
func TestAlternativesAndEnumerationsAreCounted(t *testing.T) {
	text := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"string"}}}
	list := func(items spec.Schema) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"array"}, Items: &spec.SchemaOrArray{Schema: &items}}}
	}
	of := func(values int) spec.Schema {
		s := text
		for i := range values {
			s.Enum = append(s.Enum, fmt.Sprint(i))
		}
		return s
	}
	any3, all100, inner := text, text, list(text)
	any3.AnyOf, all100.AllOf = []spec.Schema{text, text, text}, slices.Repeat([]spec.Schema{text}, 100)
	inner.AllOf = []spec.Schema{list(text)}
	entries := slices.Repeat([]any{"0"}, 30_000)
	for name, c := range map[string]struct {
		schema  spec.Schema
		refused bool
	}{
		"texts":                           {list(text), false},
		"a short enumeration":             {list(of(40)), false},
		"a long one":                      {list(of(5_000)), true},
		"a few alternatives":              {list(any3), false},
		"many":                            {list(all100), true},
		"an alternative for a whole list": {inner, false},
	} {
		p := &place{walk: newWalk(), schema: &c.schema}
		errs := p.all(entries).Errors
		if most := MaxWork + 1 + len(c.schema.Items.Schema.Enum); p.walk.work > most || (len(errs) == 1) != c.refused {
			t.Errorf("%s: counted %d, errors %v", name, p.walk.work, errs)
		}
		same := New(&c.schema).ValidateUpdate(entries, slices.Clone(entries), validation.WithRatcheting(nil))
		if len(same.Errors) > 0 {
			t.Errorf("%s, as it was: %v", name, same.Errors)
		}
	}
}

// TestOfAnAlternativeFewErrorsAreFound: of most alternatives nobody is told what is wrong, and errors are compared with each other.
func TestOfAnAlternativeFewErrorsAreFound(t *testing.T) {
	wanting := spec.Schema{}
	for i := range 10_000 {
		wanting.Required = append(wanting.Required, fmt.Sprint("r", i))
	}
	lists, list := wrongs(10_000)
	p := &place{walk: newWalk(), schema: &spec.Schema{}}
	if n := len(p.against(&wanting, map[string]any{}).Errors); n != fewErrors {
		t.Errorf("%d errors for names that are missing", n)
	}
	if n := len(p.against(lists, list).Errors); n != fewErrors || p.walk.places > 2*fewErrors {
		t.Errorf("%d errors in a list, of %d places", n, p.walk.places)
	}
	if errs := validation.ValidateCustomResource(nil, map[string]any{}, New(&wanting)); len(errs) != MaxErrors {
		t.Errorf("%d errors of a schema that is no alternative", len(errs))
	}
	all := &spec.Schema{SchemaProps: spec.SchemaProps{AllOf: slices.Repeat([]spec.Schema{*lists}, 1000)}}
	if errs := validation.ValidateCustomResource(nil, list, New(all)); len(errs) > MaxErrors+fewErrors {
		t.Errorf("%d errors of schemas that all hold", len(errs))
	}
}

// TestLongTextsAreCounted: those of objects, which schemas look at, and those of schemas, of which errors are made.
func TestLongTextsAreCounted(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	in := func(s spec.Schema) *spec.Schema {
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"array"}, Items: &spec.SchemaOrArray{Schema: &s}}}
	}
	of := func(s spec.SchemaProps) spec.Schema { return spec.Schema{SchemaProps: s} }
	alternatives := func(n int, s spec.SchemaProps) spec.Schema {
		return of(spec.SchemaProps{AnyOf: append(slices.Repeat([]spec.Schema{of(s)}, n), spec.Schema{})}) // the last one is right
	}
	deep := any(map[string]any{"a": long})
	for range 300 {
		deep = map[string]any{"a": deep}
	}
	var composites []any
	for range 1000 {
		composites = append(composites, deep)
	}
	below := *in(of(spec.SchemaProps{Type: spec.StringOrArray{"integer"}}))
	below = of(spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{long[:10_000]: below}})
	for name, c := range map[string]struct {
		schema *spec.Schema
		value  any
		want   error
	}{
		"formats":              {in(alternatives(50, spec.SchemaProps{Format: "hostname"})), slices.Repeat([]any{long}, 10), errTooMuch},
		"lengths":              {in(alternatives(1000, spec.SchemaProps{MaxLength: new(int64(1))})), slices.Repeat([]any{long}, 20), errTooMuch},
		"a long enumeration":   {in(alternatives(1, spec.SchemaProps{Enum: []any{long}})), slices.Repeat([]any{"y"}, 100_000), errTooMuch},
		"values in values":     {in(alternatives(1, spec.SchemaProps{Enum: composites})), slices.Repeat([]any{deep}, 1000), errTooMuch},
		"a long pattern":       {in(alternatives(1, spec.SchemaProps{Pattern: long})), slices.Repeat([]any{""}, 100_000), errTooMuch},
		"errors below a name":  {&below, map[string]any{long[:10_000]: slices.Repeat([]any{"x"}, 300)}, errLongTexts},
		"errors that name":     {in(of(spec.SchemaProps{MinLength: new(int64(200_000))})), slices.Repeat([]any{long}, 20), errLongTexts},
		"a text and a format":  {in(of(spec.SchemaProps{Format: "byte"})), []any{strings.Repeat("QUJD", 100_000)}, nil},
		"a short enumeration":  {in(of(spec.SchemaProps{Enum: []any{"a", "b", "c"}})), slices.Repeat([]any{"b"}, 100_000), nil},
		"alternatives of that": {in(alternatives(1, spec.SchemaProps{Enum: []any{"a", "b", "c"}})), slices.Repeat([]any{"b"}, 100_000), nil},
	} {
		p := &place{walk: newWalk(), schema: c.schema}
		errs := p.all(c.value).Errors
		if c.want == nil && len(errs) > 0 || c.want != nil && !slices.Contains(errs, c.want) {
			t.Errorf("%s: counted %d, %d errors: %.300s", name, p.walk.work, len(errs), fmt.Sprint(errs))
		}
	}
}

// TestWhatIsPlainIsWhatUpstreamFinds: with as many matches, by which alternatives are told apart.
func TestWhatIsPlainIsWhatUpstreamFinds(t *testing.T) {
	asked := 0
	numbers := []*float64{nil, new(float64(-1)), new(float64(0)), new(0.5), new(float64(1)), new(float64(1 << 60))}
	types := []spec.StringOrArray{nil, {"string"}, {"integer"}, {"number"}, {"boolean"}, {"integer", "string"}, {"object"}, {"array"}}
	lengths := []*int64{nil, new(int64(0)), new(int64(1)), new(int64(2))}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SampledFrom([]any{"x", "", "xyz", "\xffÄ", int64(-1), int64(0), int64(1), int64(1) << 62, 1.5, true, nil, []any{}, []any{"x"}, map[string]any{}, map[string]any{"a": "b"}}).Draw(t, "value")
		s := &spec.Schema{SchemaProps: spec.SchemaProps{
			Type: rapid.SampledFrom(types).Draw(t, "type"),
			Enum: rapid.SampledFrom([][]any{nil, nil, {"x"}, {int64(1), ""}, {true}}).Draw(t, "enum"), Nullable: rapid.Bool().Draw(t, "nullable"),
			Minimum: rapid.SampledFrom(numbers).Draw(t, "minimum"), Maximum: rapid.SampledFrom(numbers).Draw(t, "maximum"),
			ExclusiveMinimum: rapid.Bool().Draw(t, "exclusive minimum"), ExclusiveMaximum: rapid.Bool().Draw(t, "exclusive maximum"),
			MinLength: rapid.SampledFrom(lengths).Draw(t, "min length"), MaxLength: rapid.SampledFrom(lengths).Draw(t, "max length"),
			MinItems: rapid.SampledFrom(lengths).Draw(t, "min items"), MaxProperties: rapid.SampledFrom(lengths).Draw(t, "max properties"),
			Required: rapid.SampledFrom([][]string{nil, {"a"}}).Draw(t, "required"), Properties: map[string]spec.Schema{"a": {}},
		}}
		result := plain(s, value)
		if result == nil {
			return
		}
		asked++
		want := validate.NewSchemaValidator(s, nil, "at", strfmt.Default).Validate(value)
		if !want.IsValid() || want.MatchCount != result.MatchCount {
			t.Errorf("%T: %d matches, upstream %d, %v", value, result.MatchCount, want.MatchCount, want.Errors)
		}
	})
	if asked == 0 {
		t.Error("nothing is plain")
	}
}

// TestPropertiesOfSchemasAreCounted: for each map upstream looks at all properties that the schema has for it, whether the map has them
// or not.
func TestPropertiesOfSchemasAreCounted(t *testing.T) {
	const properties = 1000
	wide := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{}}}
	structural := &structuralschema.Structural{Properties: map[string]structuralschema.Structural{}}
	for i := range properties {
		name := fmt.Sprint("p", i)
		wide.Properties[name] = spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"string"}}}
		structural.Properties[name] = structuralschema.Structural{}
	}
	for name, in := range map[string]struct {
		schema     spec.Schema
		structural structuralschema.Structural
		put        func(v []any) any
	}{
		"in a list": {
			spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"array"}, Items: &spec.SchemaOrArray{Schema: &wide}}},
			structuralschema.Structural{Items: structural},
			func(v []any) any { return v },
		},
		"in a map": {
			spec.Schema{SchemaProps: spec.SchemaProps{
				Type: spec.StringOrArray{"object"}, AdditionalProperties: &spec.SchemaOrBool{Allows: true, Schema: &wide},
			}},
			structuralschema.Structural{AdditionalProperties: &structuralschema.StructuralOrBool{Structural: structural}},
			func(v []any) any {
				m := map[string]any{}
				for i, v := range v {
					m[fmt.Sprint(i)] = v
				}
				return m
			},
		},
	} {
		object := spec.Schema{SchemaProps: spec.SchemaProps{
			Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{"spec": in.schema},
		}}
		whole := &structuralschema.Structural{Properties: map[string]structuralschema.Structural{"spec": in.structural}}
		for n, much := range map[int]bool{1000: false, 2 * MaxVisits / properties: true} {
			entries := make([]any, n)
			for i := range entries {
				entries[i] = map[string]any{}
			}
			value := map[string]any{"spec": in.put(entries)}
			if got := TooManyVisits(value, whole); got != much {
				t.Errorf("%s, %d maps: too many visits: %v", name, n, got)
			}
			p := &place{walk: newWalk(), schema: &object}
			if errs := p.all(value).Errors; len(errs) > 0 || p.walk.work > perValue*(n+2) {
				t.Errorf("%s, %d maps: counted %d, %v", name, n, p.walk.work, errs)
			}
		}
	}
}

// TestDefaultsOfEntriesAreCounted: a default of 100 values in each of 100,000 entries would take gigabytes.
func TestDefaultsOfEntriesAreCounted(t *testing.T) {
	hundred := make([]any, 99)
	empty := func(n int) map[string]any { return map[string]any{"l": slices.Repeat([]any{map[string]any{}}, n)} }
	object := func(d any) *structuralschema.Structural {
		return &structuralschema.Structural{Properties: map[string]structuralschema.Structural{
			"d": {Generic: structuralschema.Generic{Default: structuralschema.JSON{Object: d}}}, "e": {},
		}}
	}
	in := func(items *structuralschema.Structural) *structuralschema.Structural {
		return &structuralschema.Structural{Properties: map[string]structuralschema.Structural{"l": {Items: items}}}
	}
	values := &structuralschema.Structural{AdditionalProperties: &structuralschema.StructuralOrBool{Structural: object(hundred)}}
	for name, c := range map[string]struct {
		schema   *structuralschema.Structural
		value    map[string]any
		multiply bool
		tooMany  bool
	}{
		"one":                 {object(hundred), map[string]any{}, false, false},
		"a list":              {in(object(hundred)), empty(3000), true, true},
		"a list, filled":      {in(object(hundred)), map[string]any{"l": slices.Repeat([]any{map[string]any{"d": "x"}}, 3000)}, true, false},
		"a short list":        {in(object(hundred)), empty(1000), true, false},
		"a map":               {values, map[string]any{"a": map[string]any{}}, true, false},
		"a list in a default": {in(object(slices.Repeat([]any{hundred}, 100))), empty(30), true, true},
		"a long text":         {in(object(strings.Repeat("x", 100_000))), empty(50), true, true},
		"a long text, twice":  {in(object(strings.Repeat("x", 100_000))), empty(2), true, false},
		"a long name":         {in(&structuralschema.Structural{Properties: map[string]structuralschema.Structural{strings.Repeat("x", 100_000): {Generic: structuralschema.Generic{Default: structuralschema.JSON{Object: ""}}}}}), empty(50), true, true},
		"without defaults":    {in(&structuralschema.Structural{}), empty(3000), false, false},
	} {
		if got := Multiplies(c.schema); got != c.multiply {
			t.Errorf("%s: multiplies %v", name, got)
		}
		if got := TooManyDefaults(c.value, c.schema); got != c.tooMany {
			t.Errorf("%s: too many %v", name, got)
		}
	}
}

// TestWhatIsCountedIsWhatDefaultsAdd.
func TestWhatIsCountedIsWhatDefaultsAdd(t *testing.T) {
	schema := &structuralschema.Structural{Properties: map[string]structuralschema.Structural{
		"l": {Items: &structuralschema.Structural{
			Generic: structuralschema.Generic{Default: structuralschema.JSON{Object: map[string]any{"b": int64(1)}}},
			Properties: map[string]structuralschema.Structural{
				"a": {Generic: structuralschema.Generic{Default: structuralschema.JSON{Object: map[string]any{"x": []any{"y"}}}}},
				"b": {Generic: structuralschema.Generic{Default: structuralschema.JSON{Object: int64(2)}}},
			},
		}},
		"m": {AdditionalProperties: &structuralschema.StructuralOrBool{Structural: &structuralschema.Structural{
			Generic: structuralschema.Generic{Default: structuralschema.JSON{Object: "z"}},
		}}},
	}}
	object := map[string]any{"l": []any{map[string]any{}, map[string]any{"b": nil}, nil, "other"}, "m": map[string]any{"n": nil, "o": "p"}}
	count := func() int {
		var a added
		a.values(object)
		return a.count
	}
	before := count()
	var a added
	a.walk(object, schema)
	defaulting.Default(object, schema)
	// Three nulls became values: they were counted before, too.
	if got, want := a.count, count()-before+3; got != want || got == 0 {
		t.Errorf("%d are counted, %d were added", got, want)
	}
	if TooManyDefaults(object, schema) {
		t.Error("what is filled gets more")
	}
}

// BenchmarkHostile are objects and schemas that cost as much as they can, just below the limits or refused.
func BenchmarkHostile(b *testing.B) {
	of := func(s spec.SchemaProps) spec.Schema { return spec.Schema{SchemaProps: s} }
	in := func(s spec.Schema) *spec.Schema {
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"array"}, Items: &spec.SchemaOrArray{Schema: &s}}}
	}
	oneOf := func(n int, s spec.SchemaProps) spec.Schema {
		return of(spec.SchemaProps{AnyOf: append(slices.Repeat([]spec.Schema{of(s)}, n), spec.Schema{})})
	}
	names := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint("name", i))
		}
		return out
	}
	anys := func(list []string) (out []any) {
		for _, s := range list {
			out = append(out, s)
		}
		return out
	}
	properties := func(n int) map[string]spec.Schema {
		out := map[string]spec.Schema{}
		for _, name := range names(n) {
			out[name] = of(spec.SchemaProps{Type: spec.StringOrArray{"integer"}})
		}
		return out
	}
	full := map[string]any{}
	for _, name := range names(200) {
		full[name] = "x"
	}
	nested := func(depth int, s spec.Schema, value any) (*spec.Schema, any) {
		for range depth {
			s = of(spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{"a": s}})
			value = map[string]any{"a": value}
		}
		return &s, value
	}
	type shape struct {
		schema *spec.Schema
		value  any
	}
	ofDepth := func(depth int, s *spec.Schema, value any) shape {
		schema, v := nested(depth, *s, value)
		return shape{schema, v}
	}
	text := strings.Repeat("x", 1<<20)
	wrong, list := wrongs(10_000)
	for name, c := range map[string]shape{
		"numbers":                         {in(of(spec.SchemaProps{Type: spec.StringOrArray{"integer"}})), slices.Repeat([]any{int64(1)}, 700_000)},
		"numbers with a limit":            {in(of(spec.SchemaProps{Type: spec.StringOrArray{"integer"}, Maximum: new(float64(9))})), slices.Repeat([]any{int64(1)}, 700_000)},
		"texts":                           {in(of(spec.SchemaProps{Type: spec.StringOrArray{"string"}})), slices.Repeat([]any{"x"}, 700_000)},
		"texts with a length":             {in(of(spec.SchemaProps{Type: spec.StringOrArray{"string"}, MaxLength: new(int64(9))})), slices.Repeat([]any{"x"}, 700_000)},
		"empty maps":                      {in(of(spec.SchemaProps{Type: spec.StringOrArray{"object"}})), slices.Repeat([]any{map[string]any{}}, 700_000)},
		"one of some that require":        {in(oneOf(50, spec.SchemaProps{Required: names(100)})), slices.Repeat([]any{map[string]any{}}, 100_000)},
		"one of some that require few":    {in(oneOf(50, spec.SchemaProps{Required: names(20)})), slices.Repeat([]any{map[string]any{}}, 100_000)},
		"one of some with properties":     {in(oneOf(50, spec.SchemaProps{Properties: properties(200)})), slices.Repeat([]any{full}, 2000)},
		"one of many enumerations":        {in(oneOf(50, spec.SchemaProps{Enum: anys(names(100))})), slices.Repeat([]any{"x"}, 100_000)},
		"one of small enumerations":       {in(oneOf(50, spec.SchemaProps{Enum: []any{"a", "b"}})), slices.Repeat([]any{"x"}, 100_000)},
		"none of formats, short":          {in(oneOf(50, spec.SchemaProps{Format: "hostname"})), slices.Repeat([]any{"_"}, 100_000)},
		"none of formats, long":           {in(oneOf(50, spec.SchemaProps{Format: "hostname"})), slices.Repeat([]any{text}, 20)},
		"none of lengths, long":           {in(oneOf(1000, spec.SchemaProps{MaxLength: new(int64(1))})), slices.Repeat([]any{text}, 20)},
		"nothing of alternatives in them": {in(oneOf(7, spec.SchemaProps{OneOf: slices.Repeat([]spec.Schema{oneOf(7, spec.SchemaProps{Minimum: new(float64(5))})}, 7)})), slices.Repeat([]any{int64(1)}, 100_000)},
		"alternatives of lists":           {in(oneOf(50, spec.SchemaProps{Items: &spec.SchemaOrArray{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Minimum: new(float64(5))}}}})), slices.Repeat([]any{slices.Repeat([]any{int64(1)}, 20)}, 30_000)},
		"not a list of numbers":           {in(of(spec.SchemaProps{Not: in(of(spec.SchemaProps{Maximum: new(float64(1))}))})), slices.Repeat([]any{slices.Repeat([]any{int64(1)}, 100)}, 7_000)},
		"requires many":                   {&spec.Schema{SchemaProps: spec.SchemaProps{Required: names(100_000)}}, map[string]any{}},
		"wrong in depth":                  ofDepth(400, wrong, list),
		"wrong below a long name":         ofDepth(400, &spec.Schema{SchemaProps: spec.SchemaProps{Properties: map[string]spec.Schema{text[:16_000]: *wrong}}}, map[string]any{text[:16_000]: list}),
		"wrong in depth in alternatives":  ofDepth(3, in(oneOf(10, nestedProps(nested(100, *wrong, nil)))), slices.Repeat([]any{second(nested(100, *wrong, list[:25]))}, 400)),
		"wide schemas of empty maps":      {in(of(spec.SchemaProps{Properties: properties(1000)})), slices.Repeat([]any{map[string]any{}}, 100_000)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var before, after syscall.Rusage
				_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
				p := &place{walk: newWalk(), schema: c.schema}
				result := p.all(c.value)
				_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
				b.ReportMetric(float64(after.Utime.Nano()-before.Utime.Nano())/1e6, "ms-cpu")
				b.ReportMetric(float64(p.walk.work), "work")
				b.ReportMetric(float64(len(result.Errors)), "errors")
			}
		})
	}
}

func nestedProps(s *spec.Schema, _ any) spec.SchemaProps { return s.SchemaProps }
func second(_ *spec.Schema, v any) any                   { return v }

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
