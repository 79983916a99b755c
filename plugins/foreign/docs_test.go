// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// TestTheGuide loads every entry of the guide with the module that it speaks of.
func TestTheGuide(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(plugintest.Root(t), "docs", "plugins", "foreign.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, wasm := range map[string][]byte{
		"safe-labels.wasm": section(wapcGuest(t), "io.kubewarden.metadata", mutating), "verify-image.wasm": wapcGuest(t),
		"policy.wasm": mainPolicy(t), "k8srequiredlabels.wasm": rego(t, "required.rego", "k8srequiredlabels/violation"),
		"guest.wasm": schedGuest(t), "bundle.tar.gz": signedBundle(t, filepath.Join(dir, "main.pub")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), wasm, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	blocks := strings.Split(string(text), "```yaml\n")[1:]
	if len(blocks) != 6 {
		t.Fatalf("%d blocks", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		var doc struct {
			Plugins []yaml.Node `yaml:"plugins"`
		}
		if err := yaml.Unmarshal([]byte(block), &doc); err != nil {
			t.Fatalf("%v in\n%s", err, block)
		}
		entries, err := manifest.ParseAll(doc.Plugins)
		if err != nil {
			t.Fatalf("%v in\n%s", err, block)
		}
		l, err := loader.New(t.Context(),
			loader.Config{
				InProcess: true, Dir: dir, CacheDir: filepath.Join(plugintest.Root(t), "build", "plugin-cache"), Entries: entries,
				Functions: functions(t),
			})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Load(t.Context()); err != nil {
			t.Errorf("%v in\n%s", err, block)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// signedBundle is a bundle whose public key is written into a file.
func signedBundle(t *testing.T, public string) []byte {
	t.Helper()
	private, open := plugintest.SigningKey(t)
	if err := os.WriteFile(public, []byte(open), 0o600); err != nil {
		t.Fatal(err)
	}
	return plugintest.Bundle(t, map[string]string{
		".manifest":  `{"roots": ["kubernetes"]}`,
		"admit.rego": "package kubernetes.admission\ndeny contains \"no\" if input.request.name == data.team\n",
	}, private, "rego")
}
