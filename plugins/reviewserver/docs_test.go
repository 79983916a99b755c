// SPDX-License-Identifier: Apache-2.0

package reviewserver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// TestTheGuide loads every configuration of the guide, with the modules that it names.
func TestTheGuide(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(plugintest.Root(t), "docs", "plugins", "anywhere.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\n")[1:]
	if len(blocks) != 2 {
		t.Fatalf("%d configurations", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		file := filepath.Join(t.TempDir(), "plugins.yaml")
		if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.LoadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := manifest.ParseAll(c.Plugins)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			plugintest.Example(t, e.Name)
		}
		l, err := loader.New(t.Context(), loader.Config{
			InProcess: true,
			Dir:       filepath.Join(plugintest.Root(t), "build", "wasm"), CacheDir: filepath.Join(plugintest.Root(t), "build", "plugin-cache"),
			Entries: entries,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Load(t.Context()); err != nil {
			t.Error(err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
