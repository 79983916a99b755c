// SPDX-License-Identifier: Apache-2.0

package cases_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/authortest"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/author/scaffold"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

func TestExamplesRunAsCasesToo(t *testing.T) {
	root := plugintest.Root(t)
	for _, name := range []string{"no-latest", "namespace-guard", "no-privileged"} {
		plugintest.Example(t, name)
		cfg := authortest.Open(t, filepath.Join(root, "wasm-examples", name))
		cfg.Dir = root // where the entry's source starts
		list, err := cases.Read(filepath.Join(root, "wasm-examples", name), nil)
		if err != nil {
			t.Fatal(err)
		}
		failed, err := cases.Test(t.Context(), cfg, list, cases.Both, func(r cases.Result) {
			if !r.Passed {
				t.Errorf("%s: %s: %s", name, r.Name, strings.Join(r.Problems, "\n"))
			}
		})
		if err != nil || failed > 0 {
			t.Errorf("%s: %d failed, %v", name, failed, err)
		}
	}
}

func TestAFailingCaseShowsWhatDiffers(t *testing.T) {
	cfg := authortest.Build(t, toolchain.C, "admission.mutate")
	authortest.Write(t, filepath.Join(cfg.Dir, author.CasesFile), `
- name: wrong
  object: {apiVersion: v1, kind: Pod, metadata: {name: a}}
  expect: {decision: allow, object: {metadata: {labels: {team: blue}}}}
- name: right, by a regular expression
  object: {apiVersion: v1, kind: Pod, metadata: {name: a}}
  expect: {decision: patch, patch: [{op: add, path: /metadata/labels/team, value: unassigned}]}
- name: nothing is expected
  object: {apiVersion: v1, kind: Pod, metadata: {name: a}}
- name: no such point
  point: authorization
  input: {user: jane}
  expect: {decision: allow}
`)
	results, failed := test(t, cfg, cases.Both)
	if failed != 3 || results[1].Passed != true {
		t.Fatalf("%d failed: %+v", failed, results)
	}
	said := strings.Join(results[0].Problems, "\n")
	for _, want := range []string{"decision:\n- allow\n+ patch", "-         team: blue", "+         team: unassigned"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing in:\n%s", want, said)
		}
	}
	if !strings.Contains(results[2].Problems[0], "expects nothing") || !strings.Contains(results[3].Problems[0],
		"takes no part at authorization") {
		t.Errorf("%q, %q", results[2].Problems, results[3].Problems)
	}
}

// TestAPanicIsShown: in every language what a plugin says as it ends is in the error, and what it
// printed is beside the case.
func TestAPanicIsShown(t *testing.T) {
	for _, c := range []struct {
		language      toolchain.Language
		before, after string // the source before which a panic is put, and the panic
		want          string
	}{
		{toolchain.Go, "if !in.Get", `panic("out of cheese")`, "it printed: panic: out of cheese"},
		{toolchain.Rust, "if !input.at", `panic!("out of {}", "cheese");`, "out of cheese"},
		{toolchain.C, "if (!wp_exists", `wp_panic("out of cheese");`, "it printed: panic: out of cheese"},
		{toolchain.Zig, "if (!in.get", `if (in.get("object.metadata.labels").get("x").exists() == false) @panic("out of cheese");`, "it printed: panic: out of cheese"},
		{toolchain.AssemblyScript, "if (!input.at", `throw new Error("out of cheese");`, "abort: out of cheese"},
	} {
		t.Run(string(c.language), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "my-own")
			if _, err := scaffold.Init(dir, "my-own", c.language, "admission.validate"); err != nil {
				t.Fatal(err)
			}
			main := filepath.Join(dir, c.language.Main())
			source, err := os.ReadFile(main)
			if err != nil || !strings.Contains(string(source), c.before) {
				t.Fatalf("no %q in %s: %v", c.before, source, err)
			}
			changed := strings.Replace(string(source), c.before, c.after+"\n"+c.before, 1)
			if c.language == toolchain.AssemblyScript { // what follows cannot be reached
				changed = strings.Replace(string(source), c.before, "if (input.at(0).exists || true) "+c.after+"\n"+c.before, 1)
			}
			authortest.Write(t, main, changed)
			authortest.Write(t, filepath.Join(dir, author.CasesFile), `
- name: it panics
  object: {apiVersion: v1, kind: Pod, metadata: {name: a}}
  expect: {decision: allow}
`)
			authortest.RebuildComponent(t, dir)
			results, failed := test(t, authortest.Open(t, dir), cases.Compiled)
			if failed != 1 || results[0].Decision == nil || !strings.Contains(results[0].Decision.Error, "out of cheese") {
				t.Errorf("as a component: %d failed: %+v", failed, results)
			}
			authortest.Rebuild(t, dir)
			results, failed = test(t, authortest.Open(t, dir), cases.Compiled)
			if failed != 1 || results[0].Decision == nil || !strings.Contains(results[0].Decision.Error, c.want) {
				t.Fatalf("%d failed: %+v", failed, results)
			}
			if c.language != toolchain.AssemblyScript && !strings.Contains(results[0].Decision.Printed, "out of cheese") {
				t.Errorf("printed %q", results[0].Decision.Printed)
			}
			if c.language == toolchain.Rust && !strings.Contains(results[0].Decision.Error, "lib.rs:") {
				t.Errorf("the error has no line: %s", results[0].Decision.Error)
			}
		})
	}
}

func TestMeasureCountsCallsAndFuel(t *testing.T) {
	cfg := authortest.Build(t, toolchain.C, "scheduling.table")
	list, err := cases.Read(cfg.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	results, err := cases.MeasureAll(t.Context(), cfg, list, 50*time.Millisecond)
	if err != nil || len(results) != 1 || results[0].Calls == 0 || results[0].P50 <= 0 || results[0].FuelMin == 0 {
		t.Errorf("%+v, %v", results, err)
	}
}

func test(t *testing.T, cfg author.Config, engine string) (results []cases.Result, failed int) {
	t.Helper()
	list, err := cases.Read(cfg.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	failed, err = cases.Test(t.Context(), cfg, list, engine, func(r cases.Result) { results = append(results, r) })
	if err != nil {
		t.Fatal(err)
	}
	return results, failed
}
