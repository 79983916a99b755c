// SPDX-License-Identifier: Apache-2.0

// Package configs tests that every sample configuration is what it says: it loads,
// it is complete, and the modules that it names can be built here.
package configs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

func files(t *testing.T) []string {
	t.Helper()
	top, err := filepath.Glob("*.yaml")
	if err != nil || len(top) < 4 {
		t.Fatalf("found %v, %v", top, err)
	}
	return append(top, "demo/config.yaml", "simulate/default.yaml", "simulate/packed.yaml", "simulate/carbon-aware.yaml")
}

func TestEverySampleLoads(t *testing.T) {
	for _, file := range files(t) {
		t.Run(file, func(t *testing.T) {
			c, err := config.LoadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Complete(); err != nil {
				t.Fatal(err)
			}
			entries, err := manifest.ParseAll(c.Plugins)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				source := filepath.Join(filepath.Dir(file), strings.TrimPrefix(e.Source, "file:"))
				name := strings.TrimSuffix(filepath.Base(source), ".wasm")
				if _, err := os.Stat(filepath.Join("..", "wasm-examples", name)); err != nil {
					t.Errorf("plugin %s: no example makes %s", e.Name, source)
				}
				if want := filepath.Join("..", "build", "wasm", name+".wasm"); source != want {
					t.Errorf("plugin %s: the source is %s; `make examples` makes %s", e.Name, source, want)
				}
			}
		})
	}
}

// TestSingleListsEveryFieldWithItsDefault: single.yaml is the reference of fields.
func TestSingleListsEveryFieldWithItsDefault(t *testing.T) {
	c, err := config.LoadFile("single.yaml")
	if err != nil {
		t.Fatal(err)
	}
	def := config.Default()
	def.File = c.File
	for _, cfg := range []*config.Configuration{c, def} {
		if err := cfg.Complete(); err != nil {
			t.Fatal(err)
		}
	}
	// As documents: there an empty list and no list are the same.
	if got, want := text(t, c), text(t, def); got != want {
		t.Errorf("single.yaml differs from the defaults:\n%s\n%s", got, want)
	}
	var doc map[string]any
	data, err := os.ReadFile("single.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	missing(t, doc, reflect.TypeFor[config.Configuration](), "")
}

func text(t *testing.T, c *config.Configuration) string {
	t.Helper()
	out, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func missing(t *testing.T, doc map[string]any, typ reflect.Type, path string) {
	t.Helper()
	for i := range typ.NumField() {
		name := typ.Field(i).Tag.Get("yaml")
		if name == "-" || name == "" {
			continue
		}
		value, ok := doc[name]
		if !ok {
			t.Errorf("single.yaml doesn't explain %s%s", path, name)
			continue
		}
		if sub, ok := value.(map[string]any); ok && typ.Field(i).Type.Kind() == reflect.Struct {
			missing(t, sub, typ.Field(i).Type, path+name+".")
		}
	}
}
