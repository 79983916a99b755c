package author_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// build makes, builds and names a plugin as the tool does.
func build(t *testing.T, l toolchain.Language, point string) author.Config {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "my-own")
	if _, err := author.Init(dir, "my-own", l, point); err != nil {
		t.Fatal(err)
	}
	b, err := toolchain.New(toolchain.Config{Progress: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Build(t.Context(), dir, filepath.Join(dir, "my-own.wasm")); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

func open(t *testing.T, path string) author.Config {
	t.Helper()
	e, dir, err := author.ReadEntry(path)
	if err != nil {
		t.Fatal(err)
	}
	return author.Config{InProcess: true, Entry: e, Dir: dir}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func test(t *testing.T, cfg author.Config, engine string) (results []author.Result, failed int) {
	t.Helper()
	cases, err := author.ReadCases(cfg.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	failed, err = author.Test(t.Context(), cfg, cases, engine, func(r author.Result) { results = append(results, r) })
	if err != nil {
		t.Fatal(err)
	}
	return results, failed
}

// TestEveryTemplate: what init makes builds, outside of the repository, and passes
// its cases; and nothing in it is longer than an author wants to read. The points that people
// begin with are tested in every language, the others in one each, by turns: a compiler takes seconds.
// WASMPLANE_ALL_TEMPLATES (make test-templates) has all of them tested.
func TestEveryTemplate(t *testing.T) {
	const everywhere = 5
	for i, l := range toolchain.Languages() {
		for j, point := range author.Templates() {
			if j >= everywhere && j%len(toolchain.Languages()) != i && os.Getenv("WASMPLANE_ALL_TEMPLATES") == "" {
				continue
			}
			t.Run(string(l)+"/"+point, func(t *testing.T) {
				begin := time.Now()
				cfg := build(t, l, point)
				engine := author.Both
				if l == toolchain.Go { // the interpreter takes seconds to start a Go module; wasm-examples has some
					engine = author.Compiled
				}
				results, failed := test(t, cfg, engine)
				if len(results) == 0 || failed > 0 {
					t.Errorf("%+v", results)
				}
				t.Logf("from nothing to tested: %.1f s", time.Since(begin).Seconds())
				source, err := os.ReadFile(filepath.Join(cfg.Dir, l.Main()))
				if err != nil {
					t.Fatal(err)
				}
				if n := own(string(source)); n > 20 {
					t.Errorf("the author's own part has %d lines", n)
				}
			})
		}
	}
}

// own counts the lines that say something: no comments, imports, blanks and brackets.
func own(source string) (n int) {
	for _, line := range strings.Split(source, "\n") {
		line = strings.TrimSpace(line)
		for _, prefix := range []string{"//", "/*", "import", "#include", "package", "use ", "const wp =", "export {", "export!"} {
			if strings.HasPrefix(line, prefix) {
				line = ""
			}
		}
		if strings.Trim(line, "{}[]();,") != "" {
			n++
		}
	}
	return n
}

func TestExamplesRunAsCasesToo(t *testing.T) {
	root := plugintest.Root(t)
	for _, name := range []string{"no-latest", "namespace-guard", "no-privileged"} {
		plugintest.Example(t, name)
		cfg := open(t, filepath.Join(root, "wasm-examples", name))
		cfg.Dir = root // where the entry's source starts
		cases, err := author.ReadCases(filepath.Join(root, "wasm-examples", name), nil)
		if err != nil {
			t.Fatal(err)
		}
		failed, err := author.Test(t.Context(), cfg, cases, author.Both, func(r author.Result) {
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
	cfg := build(t, toolchain.C, "admission.mutate")
	write(t, filepath.Join(cfg.Dir, author.CasesFile), `
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
	results, failed := test(t, cfg, author.Both)
	if failed != 3 || results[1].Passed != true {
		t.Fatalf("%d failed: %+v", failed, results)
	}
	said := strings.Join(results[0].Problems, "\n")
	for _, want := range []string{"decision:\n- allow\n+ patch", "-         team: blue", "+         team: unassigned"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing in:\n%s", want, said)
		}
	}
	if !strings.Contains(results[2].Problems[0], "expects nothing") || !strings.Contains(results[3].Problems[0], "takes no part at authorization") {
		t.Errorf("%q, %q", results[2].Problems, results[3].Problems)
	}
}

func TestInspectAndMeasure(t *testing.T) {
	cfg := build(t, toolchain.C, "scheduling.table")
	about, err := author.Inspect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if about.Name != "my-own" || about.ABI != "wasmplane" || len(about.Hooks) != 1 || len(about.Hooks[0].Columns) != 2 || about.Problem != "" {
		t.Errorf("%+v", about)
	}
	cases, err := author.ReadCases(cfg.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	results, err := author.MeasureAll(t.Context(), cfg, cases, 50*time.Millisecond)
	if err != nil || len(results) != 1 || results[0].Calls == 0 || results[0].P50 <= 0 || results[0].FuelMin == 0 {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestWhatInitRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, language, point, says string }{
		{"My_Plugin", "go", "admission.validate", "lower-case letters"},
		{"p", "cobol", "admission.validate", "there is no SDK for \"cobol\""},
		{"p", "go", "nowhere", "there are templates for admission.validate"},
	} {
		_, err := author.Init(filepath.Join(dir, "p"), c.name, toolchain.Language(c.language), c.point)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for range 2 {
		_, err := author.Init(filepath.Join(dir, "p"), "p", toolchain.C, "authorization")
		if err == nil {
			continue
		}
		if !strings.Contains(err.Error(), "there already") {
			t.Error(err)
		}
		return
	}
	t.Error("a plugin was made where there is one")
}
