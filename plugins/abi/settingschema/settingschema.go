// SPDX-License-Identifier: Apache-2.0

// Package settingschema holds the settings of a plugin's entry against the JSON schema that the plugin declares of them. Neither comes
// from somebody who is trusted: both are bounded.
package settingschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// Bounds, in bytes. What a check costs is at most their product.
const (
	LargestSchema   = 16 << 10
	LargestSettings = 64 << 10
)

// mostErrors that are told of.
const mostErrors = 10

// Schema is a JSON schema, with the keywords of draft 4 but $ref and uniqueItems. Values that it calls default are not filled in.
type Schema struct{ validator *validate.SchemaValidator }

// Read reads a schema. The error says what is wrong with it.
func Read(text []byte) (*Schema, error) {
	if len(text) > LargestSchema {
		return nil, fmt.Errorf("the schema has %d bytes: at most %d are allowed", len(text), LargestSchema)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	if _, ok := tree.(map[string]any); !ok {
		return nil, errors.New("expected an object")
	}
	if err := check(tree, ""); err != nil {
		return nil, err
	}
	s := &spec.Schema{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, err
	}
	return &Schema{validate.NewSchemaValidator(s, nil, "settings", strfmt.Default)}, nil
}

var types = sets.New("null", "boolean", "integer", "number", "string", "array", "object")

// check refuses what would be ignored, look something up or take long.
func check(v any, at string) error {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["$ref"].(string); ok {
			return fmt.Errorf("%s$ref: schemas refer to nothing", at)
		}
		if unique, _ := v["uniqueItems"].(bool); unique {
			return fmt.Errorf("%suniqueItems: it is not known here", at)
		}
		if t, ok := v["type"].(string); ok && !types.Has(t) {
			return fmt.Errorf("%stype: unknown type %q: expected one of %s", at, t, strings.Join(sets.List(types), ", "))
		}
		for _, key := range sets.List(sets.KeySet(v)) {
			if err := check(v[key], at+key+"."); err != nil {
				return err
			}
		}
	case []any:
		for i, item := range v {
			if err := check(item, fmt.Sprintf("%s%d.", at, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Check says what a schema has against settings, in JSON; nil settings are an empty object.
func (s *Schema) Check(settings []byte) error {
	if settings == nil {
		settings = []byte("{}")
	}
	if len(settings) > LargestSettings {
		return fmt.Errorf("the settings have %d bytes: at most %d are held against a schema", len(settings), LargestSettings)
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(settings))
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	var said []string
	for _, err := range s.validator.Validate(v).Errors {
		text := strings.Replace(err.Error(), " in body", "", 1)
		if !slices.Contains(said, text) {
			said = append(said, text)
		}
	}
	slices.Sort(said)
	if more := len(said) - mostErrors; more > 0 {
		said = append(said[:mostErrors], fmt.Sprintf("and %d more", more))
	}
	if len(said) == 0 {
		return nil
	}
	return errors.New(strings.Join(said, "; "))
}

// Check reads a schema and holds settings against it.
func Check(schema, settings []byte) error {
	s, err := Read(schema)
	if err != nil {
		return fmt.Errorf("the plugin's settingsSchema: %w", err)
	}
	return s.Check(settings)
}
