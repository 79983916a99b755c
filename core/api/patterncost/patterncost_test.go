// SPDX-License-Identifier: Apache-2.0

package patterncost

import (
	"regexp/syntax"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
)

// What is estimated is what the compiler makes, give or take.
func TestSizesAreThoseOfCompiledPatterns(t *testing.T) {
	for _, pattern := range []string{
		"^a$", "", "abc", "[a-z0-9]([-a-z0-9]{0,252}[a-z0-9])?", "^(a|aa|a{1,50}|[a-z]{1,90})*$", "(a{0,30}){0,30}", "a{1000}", "(?i)abc|d+|e*?",
		"([a-z]{3,}){5}", `\pL\d\s.`, strings.Repeat("[a-z]{1,1000}", 50),
	} {
		re, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := syntax.Compile(re.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		got, want := Size(pattern), len(prog.Inst)
		if want > 3*got+10 || got > 3*want+10 {
			t.Errorf("%.50s: estimated %d, and it has %d", pattern, got, want)
		}
	}
	if n := Size("("); n != 0 {
		t.Errorf("what is no pattern has size %d", n)
	}
}

func TestTextsTimesPatternsAreBounded(t *testing.T) {
	text := func(pattern string) apiextensions.JSONSchemaProps {
		return apiextensions.JSONSchemaProps{Type: "string", Pattern: pattern}
	}
	object := func(p map[string]apiextensions.JSONSchemaProps) apiextensions.JSONSchemaProps {
		return apiextensions.JSONSchemaProps{Type: "object", Properties: p}
	}
	long := "^(a{1,50}|[a-z]{1,90})*$"
	list := func(s apiextensions.JSONSchemaProps) apiextensions.JSONSchemaProps {
		return apiextensions.JSONSchemaProps{Type: "array", Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &s}}
	}
	both := text(long)
	both.AllOf = []apiextensions.JSONSchemaProps{{Pattern: long}, {AnyOf: []apiextensions.JSONSchemaProps{{Pattern: long}}}}
	both.Not = &apiextensions.JSONSchemaProps{Pattern: long}
	values := apiextensions.JSONSchemaProps{Type: "object", AdditionalProperties: &apiextensions.JSONSchemaPropsOrBool{Schema: &both}}
	schema := object(map[string]apiextensions.JSONSchemaProps{"spec": object(map[string]apiextensions.JSONSchemaProps{
		"s": text(long), "l": list(text(long)), "m": values, "none": text(""), "short": text("^[a-z]+$"),
	})})
	c := Of(&schema)
	large := strings.Repeat("a", 2_000_000)
	half := strings.Repeat("a", 600_000)
	for name, tc := range map[string]struct {
		spec map[string]any
		err  string
	}{
		"a text":          {map[string]any{"s": large}, "spec.s: Forbidden: the texts of the object are too long for their patterns"},
		"several":         {map[string]any{"s": half, "l": []any{"a", half}}, "are too long for their patterns"},
		"a map":           {map[string]any{"m": map[string]any{"k": half}}, "spec.m[k]: Forbidden"},
		"half":            {map[string]any{"s": half}, ""},
		"a short pattern": {map[string]any{"short": large, "none": large, "unknown": large}, ""},
		"another type":    {map[string]any{"s": int64(1), "l": "a", "m": []any{large}}, ""},
		"nothing":         {nil, ""},
	} {
		value := map[string]any{"spec": tc.spec, "metadata": map[string]any{"name": large}}
		errs := c.Check(value, nil)
		if (tc.err == "") != (len(errs) == 0) || tc.err != "" && !strings.Contains(errs.ToAggregate().Error(), tc.err) {
			t.Errorf("%s: %v", name, errs)
		}
		if errs := c.Check(value, value); len(errs) > 0 {
			t.Errorf("%s, as it was: %v", name, errs)
		}
	}
	plain := object(map[string]apiextensions.JSONSchemaProps{"a": object(map[string]apiextensions.JSONSchemaProps{"b": {Type: "string"}})})
	if c := Of(&plain); c != nil || c.Total() != 0 || c.Check(map[string]any{"a": large}, nil) != nil {
		t.Errorf("a schema without patterns costs %v", c)
	}
	if n := c.Total(); n < 6*140 || n > 6*1000 {
		t.Errorf("all patterns have size %d", n)
	}
}
