// SPDX-License-Identifier: Apache-2.0

// Package examples_test runs every example's cases.
package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

func TestExamples(t *testing.T) {
	entries, err := filepath.Glob("*/plugin.yaml")
	if err != nil || len(entries) < 8 {
		t.Fatalf("%d examples, %v", len(entries), err)
	}
	for _, path := range entries {
		name := filepath.Dir(path)
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			e, err := manifest.ParseBytes(b)
			if err != nil {
				t.Fatal(err)
			}
			if e.Name != name || e.Source != "file:build/wasm/"+name+".wasm" {
				t.Errorf("entry %s of %s", e.Name, e.Source)
			}
			readme, err := os.ReadFile(filepath.Join(name, "README.md"))
			if err != nil || !strings.HasPrefix(string(readme), "# "+name+"\n") {
				t.Errorf("the README does not begin with the name: %v", err)
			}
			list, err := cases.Read(name, nil)
			if err != nil {
				t.Fatal(err)
			}
			plugintest.Example(t, name)
			cfg := author.Config{InProcess: true, Entry: e, Dir: plugintest.Root(t)}
			if _, err := os.Stat(filepath.Join(name, toolchain.Python.Main())); err == nil { // CPython takes a third of a minute
				cfg.CacheDir = filepath.Join(cfg.Dir, "build", "plugin-cache")
			}
			_, err = cases.Test(t.Context(), cfg, list, cases.Both,
				func(r cases.Result) {
					if !r.Passed {
						t.Errorf("%s:\n%s", r.Name, strings.Join(r.Problems, "\n"))
					}
				})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// passes asks the module of a file its cases, compiled and interpreted.
func passes(t *testing.T, e manifest.Entry, path string, list []cases.Case) {
	t.Helper()
	e.Source = "file:" + path
	cfg := author.Config{
		InProcess: true, Entry: e, Dir: filepath.Dir(path), CacheDir: filepath.Join(plugintest.Root(t), "build", "plugin-cache"),
	}
	if _, err := cases.Test(t.Context(), cfg, list, cases.Both,
		func(r cases.Result) {
			if !r.Passed {
				t.Errorf("%s:\n%s", r.Name, strings.Join(r.Problems, "\n"))
			}
		}); err != nil {
		t.Fatal(err)
	}
}
