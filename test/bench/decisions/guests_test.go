// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
	"github.com/wasmplane/wasmplane/test/internal/guests"
)

// guest is a plugin of testdata.
type guest struct {
	set, name string // the folder: testdata/SET/NAME
	language  toolchain.Language
	label     string
}

// asComponent is how the label of a guest ends that is built as a component.
const asComponent = ", component"

func (g guest) component() bool { return strings.HasSuffix(g.label, asComponent) }

// policies are the guests of the one table, in its order.
var policies = []guest{
	{"policy", "c", toolchain.C, "C SDK"},
	{"policy", "c", toolchain.C, "C SDK" + asComponent},
	{"policy", "rust", toolchain.Rust, "Rust SDK"},
	{"policy", "rust", toolchain.Rust, "Rust SDK" + asComponent},
	{"policy", "assemblyscript", toolchain.AssemblyScript, "AssemblyScript SDK"},
	{"policy", "zig", toolchain.Zig, "Zig SDK"},
	{"policy", "go", toolchain.Go, "Go SDK"},
	{"policy", "go", toolchain.Go, "Go SDK" + asComponent},
	{"policy", "javascript", toolchain.JavaScript, "JavaScript SDK"},
	{"policy", "javascript", toolchain.JavaScript, "JavaScript SDK" + asComponent},
	{"policy", "javascriptwhole", toolchain.JavaScript, "JavaScript SDK, whole object"},
	{"policy", "python", toolchain.Python, "Python SDK"},
	{"policy", "gojson", toolchain.Go, "Go, whole object, encoding/json"},
	{"policy", "wapc", toolchain.Rust, "waPC (Rust, whole object)"},
}

// builds makes that each guest is built once in a process.
var builds sync.Map

// build builds a guest as its author would.
func (g guest) build(tb testing.TB) ([]byte, error) {
	tb.Helper()
	once, _ := builds.LoadOrStore(g, sync.OnceValues(func() ([]byte, error) {
		as := guests.Guest{
			Folder: filepath.Join("testdata", g.set, g.name), Name: g.set + "-" + g.name, Language: g.language, Component: g.component(),
		}
		if g.component() {
			as.Name += "-component"
		}
		return guests.Build(tb, as)
	}))
	return once.(func() ([]byte, error))()
}

// loaded loads a module with the entry's more lines, which begin with a comma. Its limits
// are those of every plugin, but for a deadline that a busy machine meets too.
func loaded(tb testing.TB, wasm []byte, more string) *loader.Loader {
	tb.Helper()
	return loadedTimes(tb, wasm, more, 1)
}

// loadedTimes loads a module as so many plugins.
func loadedTimes(tb testing.TB, wasm []byte, more string, n int) *loader.Loader {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.wasm"), wasm, 0o600); err != nil {
		tb.Fatal(err)
	}
	var doc struct {
		Plugins []yaml.Node `yaml:"plugins"`
	}
	text := "plugins:\n"
	for i := range n {
		text += fmt.Sprintf("- {name: policy%d, source: \"file:p.wasm\", limits: {deadline: 30s}%s}\n", i, more)
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		tb.Fatal(err)
	}
	entries, err := manifest.ParseAll(doc.Plugins)
	if err != nil {
		tb.Fatal(err)
	}
	l, err := loader.New(tb.Context(),
		loader.Config{InProcess: true, Dir: dir, Entries: entries, CacheDir: filepath.Join(plugintest.Root(tb), "build", "plugin-cache")})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(tb.Context()); err != nil {
			tb.Error(err)
		}
	})
	if err := l.Load(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return l
}
