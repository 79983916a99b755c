// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/plugins/author/schema"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// validator is the recorded schema of a name.
func validator(t *testing.T, root, name string) *validate.SchemaValidator {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, schema.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	s := &spec.Schema{}
	if err := json.Unmarshal(b, s); err != nil {
		t.Fatal(err)
	}
	return validate.NewSchemaValidator(s, nil, "", strfmt.Default)
}

func problems(t *testing.T, v *validate.SchemaValidator, text []byte) string {
	t.Helper()
	var doc any
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, err := range v.Validate(doc).Errors {
		out = append(out, err.Error())
	}
	return strings.Join(out, "\n")
}

func TestTheSchemasAreAsRecorded(t *testing.T) {
	root := plugintest.Root(t)
	files, err := schema.Files(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, schema.Dir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s/%s is not what the types say: make gen (%v)", schema.Dir, name, err)
		}
	}
}

// TestEveryFileOfTheRepositoryIsValid by the schema of its kind.
func TestEveryFileOfTheRepositoryIsValid(t *testing.T) {
	root := plugintest.Root(t)
	for name, patterns := range map[string][]string{
		"plugin.json":  {"wasm-examples/*/plugin.yaml"},
		"cases.json":   {"wasm-examples/*/cases.yaml", "wasm-examples/*/cases/*.yaml", "plugins/author/scaffold/templates/cases/*.yaml"},
		"plugins.json": {"configs/*.yaml", "configs/*/*.yaml"},
	} {
		v, n := validator(t, root, name), 0
		for _, p := range patterns {
			found, err := filepath.Glob(filepath.Join(root, p))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				for _, doc := range strings.Split(string(text), "\n---\n") {
					if bad := problems(t, v, []byte(doc)); bad != "" {
						t.Errorf("%s: %s", f, bad)
					}
				}
				n++
			}
		}
		if n == 0 {
			t.Errorf("%s: nothing was checked", name)
		}
	}
}

func TestMistakesAreSeen(t *testing.T) {
	root := plugintest.Root(t)
	for _, c := range []struct{ schema, text, want string }{
		{"plugin.json", "name: a\nsorce: file:a.wasm", "sorce"},
		{"plugin.json", "name: a\nmode: Enforced", "mode"},
		{"plugin.json", "name: a\npoints: [admission.validating]", "points"},
		{"plugin.json", "name: a\nlimits: {deadline: 50}", "limits.deadline"},
		{"plugin.json", "name: a\nlimits: {deadline: soon}", "limits.deadline"},
		{"plugin.json", "name: a\ngrants: {read: [{resource: pods}]}", "resource"},
		{"plugins.json", "plugins: [{name: a, source: file:a.wasm, match: {rules: [{resources: pods}]}}]", "resources"},
		{"cases.json", "- {name: a, expects: {decision: deny}}", "expects"},
	} {
		if got := problems(t, validator(t, root, c.schema), []byte(c.text)); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.text, got, c.want)
		}
	}
	for _, good := range []string{"name: a\nsource: file:a.wasm\nsettings: [1]\nlimits: {deadline: 1m30s, memory: 32Mi, log: 64}", "name: a\nsettings: {a: {b: c}}"} {
		if got := problems(t, validator(t, root, "plugin.json"), []byte(good)); got != "" {
			t.Errorf("%s: %s", good, got)
		}
	}
}
