// SPDX-License-Identifier: Apache-2.0

package settingschema_test

import (
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi/settingschema"
)

const labels = `{
  "type": "object", "required": ["label"], "additionalProperties": false,
  "properties": {
    "label": {"type": "string", "minLength": 1, "pattern": "^[a-z]+$"},
    "most": {"type": "integer", "minimum": 1, "default": 3},
    "mode": {"enum": ["soft", "hard"]},
    "repos": {"type": "array", "maxItems": 2, "items": {"type": "object", "required": ["host"], "properties": {"host": {"type": "string"}}}},
    "uniqueItems": {"type": "object"}
  }
}`

// TestSettingsAreHeldAgainstTheirSchema: each complaint has the path of the field.
func TestSettingsAreHeldAgainstTheirSchema(t *testing.T) {
	for _, c := range []struct {
		settings string
		want     []string // nothing: they are right
	}{
		{`{"label": "team"}`, nil},
		{`{"label": "team", "most": 3, "mode": "hard", "repos": [{"host": "a"}, {"host": "b"}], "uniqueItems": {}}`, nil},
		{``, []string{"settings.label is required"}},
		{`{"label": 3}`, []string{`settings.label must be of type string: "number"`}},
		{`{"label": ""}`, []string{"settings.label should be at least 1 chars long"}},
		{`{"label": "A"}`, []string{"settings.label should match"}},
		{`{"label": "a", "most": 0}`, []string{"settings.most should be greater than or equal to 1"}},
		{`{"label": "a", "most": 1.5}`, []string{"settings.most must be of type integer"}},
		{`{"label": "a", "mode": "none"}`, []string{"settings.mode should be one of [soft hard]"}},
		{`{"label": "a", "repos": [{"host": "a"}, {}]}`, []string{"settings.repos[1].host is required"}},
		{`{"label": "a", "repos": [{"host": "a"}, {"host": "a"}, {"host": "a"}]}`, []string{"settings.repos should have at most 2 items"}},
		{`{"label": "a", "lable": "b"}`, []string{"settings.lable is a forbidden property"}},
		{`[]`, []string{"settings must be of type object"}},
		{`{"label": "` + strings.Repeat("a", settingschema.LargestSettings) + `"}`, []string{"at most 65536 are held against a schema"}},
	} {
		var settings []byte
		if c.settings != "" {
			settings = []byte(c.settings)
		}
		found := ""
		if err := settingschema.Check([]byte(labels), settings); err != nil {
			found = err.Error()
		}
		for _, want := range c.want {
			if !strings.Contains(found, want) {
				t.Errorf("%.60s: %q, expected %q", c.settings, found, want)
			}
		}
		if c.want == nil && found != "" {
			t.Errorf("%.60s: %q, expected nothing", c.settings, found)
		}
	}
}

// TestSchemasThatAreNone: the error says what is wrong with them.
func TestSchemasThatAreNone(t *testing.T) {
	for _, c := range []struct{ schema, want string }{
		{`{`, "unexpected end of JSON input"},
		{`[]`, "expected an object"},
		{`{"type": "text"}`, `type: unknown type "text"`},
		{`{"properties": {"a": {"$ref": "https://example.com/a"}}}`, "properties.a.$ref: schemas refer to nothing"},
		{`{"items": {"type": "array", "uniqueItems": true}}`, "items.uniqueItems: it is not known here"},
		{`{"properties": []}`, "unmarshal JSON array"},
		{`{"description": "` + strings.Repeat("a", settingschema.LargestSchema) + `"}`, "at most 16384 are allowed"},
	} {
		err := settingschema.Check([]byte(c.schema), nil)
		if err == nil || !strings.HasPrefix(err.Error(), "the plugin's settingsSchema: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: %v, expected %q", c.schema, err, c.want)
		}
	}
}

// FuzzCheck: whatever a plugin declares and an entry has, there is an answer.
func FuzzCheck(f *testing.F) {
	f.Add(labels, `{"label": "a", "repos": [{"host": 1}]}`)
	f.Add(`{"pattern": "(", "type": ["string", "null"]}`, `"a"`)
	f.Add(`{"not": {"anyOf": [{}, {"oneOf": []}]}, "dependencies": {"a": ["b"]}, "patternProperties": {"(": {}}}`, `{"a": 1e400}`)
	f.Add(`{"multipleOf": 0, "minimum": 1e308, "enum": [null], "items": [{}, {}], "additionalItems": {"format": "date"}}`, `[1, null]`)
	f.Fuzz(func(_ *testing.T, schema, settings string) {
		_ = settingschema.Check([]byte(schema), []byte(settings)) // it neither panics nor hangs
	})
}
