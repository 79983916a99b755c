// SPDX-License-Identifier: Apache-2.0

package scaffold_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/authortest"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/author/scaffold"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// TestEveryTemplate: what init makes builds, outside of the repository, and passes
// its cases; and nothing in it is longer than an author wants to read. The point that people
// begin with is tested in every language, the others in one each, by turns: a compiler takes seconds.
// WASMPLANE_ALL_TEMPLATES (make test-templates) has all of them tested.
func TestEveryTemplate(t *testing.T) {
	const everywhere = 1
	for i, l := range toolchain.Languages() {
		for j, point := range scaffold.Templates() {
			turn := j%len(toolchain.Languages()) == i && l != toolchain.Python // its compiler takes a quarter of a minute
			if j >= everywhere && !turn && os.Getenv("WASMPLANE_ALL_TEMPLATES") == "" {
				continue
			}
			t.Run(string(l)+"/"+point, func(t *testing.T) {
				if l == toolchain.Python && point == string(abi.SchedulingTable) {
					return // components have no node table; see TestWhatInitRefuses
				}
				begin := time.Now()
				cfg := authortest.Build(t, l, point)
				engine := cases.Both
				if l == toolchain.Go || l == toolchain.Python { // the interpreter takes seconds to start them; wasm-examples has some
					engine = cases.Compiled
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

// TestAPluginAsAComponent: the same source, answering through the component model.
func TestAPluginAsAComponent(t *testing.T) {
	for _, l := range toolchain.Languages() {
		if l == toolchain.Python { // a plugin in Python is nothing else
			continue
		}
		t.Run(string(l), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "my-own")
			if _, err := scaffold.Init(dir, "my-own", l, scaffold.Templates()[0]); err != nil {
				t.Fatal(err)
			}
			authortest.RebuildComponent(t, dir)
			module, err := os.ReadFile(filepath.Join(dir, "my-own.wasm"))
			if err != nil {
				t.Fatal(err)
			}
			if len(module) < 8 || module[4] != 0x0d { // a module has 1 there
				t.Errorf("%x is no component", module[:min(8, len(module))])
			}
			if results, failed := test(t, authortest.Open(t, dir), cases.Both); len(results) == 0 || failed > 0 {
				t.Errorf("%+v", results)
			}
		})
	}
}

// own counts the lines that say something: no comments, imports, blanks and brackets.
func own(source string) (n int) {
	for _, line := range strings.Split(source, "\n") {
		line = strings.TrimSpace(line)
		for _, prefix := range []string{
			"//", "/*", "import", "from ", `"""`, "#include", "package", "use ", "const wp =", "pub const panic", "export {",
			"export!",
		} {
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

// The template of postBind writes into the log, which is refused without the grant.
func TestATemplateHasTheGrantsThatItNeeds(t *testing.T) {
	for _, point := range scaffold.Templates() {
		dir := filepath.Join(t.TempDir(), "p")
		if _, err := scaffold.Init(dir, "p", toolchain.C, point); err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(filepath.Join(dir, toolchain.C.Main()))
		if err != nil {
			t.Fatal(err)
		}
		entry, err := os.ReadFile(filepath.Join(dir, author.EntryFile))
		if err != nil {
			t.Fatal(err)
		}
		if logs, granted := strings.Contains(string(source), "wp_log("),
			strings.Contains(string(entry), "\ngrants: {log: true}\n"); logs != granted {
			t.Errorf("%s: it logs: %t, and may: %t", point, logs, granted)
		}
	}
}

func TestWhatInitRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, language, point, says string }{
		{"My_Plugin", "go", "admission.validate", "lower-case letters"},
		{"p", "cobol", "admission.validate", "there is no SDK for \"cobol\""},
		{"p", "python", "scheduling.table", "whose modules are components"},
		{"p", "go", "nowhere", "there are templates for admission.validate"},
	} {
		_, err := scaffold.Init(filepath.Join(dir, "p"), c.name, toolchain.Language(c.language), c.point)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for range 2 {
		_, err := scaffold.Init(filepath.Join(dir, "p"), "p", toolchain.C, "authorization")
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
