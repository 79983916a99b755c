package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// block is the first block of a language in a README.
func block(t *testing.T, path, language string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "```"+language+"\n")
	text, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("%s has no block of %s", path, language)
	}
	return text
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir string, env []string, command ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
}

// TestTheREADMEsPluginsWorkOutsideOfTheRepository takes the way of a newcomer: an
// empty folder, what the README says, and a plugin that decides.
func TestTheREADMEsPluginsWorkOutsideOfTheRepository(t *testing.T) {
	root := plugintest.Root(t)
	e, err := manifest.ParseBytes([]byte("name: my-plugin\nsource: file:my-plugin.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	cases, err := plugintest.ReadCases("testdata/my-plugin.yaml")
	if err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, path string) {
		t.Helper()
		wasm, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		plugintest.Run(t, wasm, e, cases)
	}
	t.Run("go", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "main.go"), block(t, filepath.Join(root, "sdk/go/README.md"), "go"))
		write(t, filepath.Join(dir, "go.mod"), "module example.com/my-plugin\n\ngo 1.26\n\nrequire github.com/wasmplane/wasmplane v0.0.0\n\nreplace github.com/wasmplane/wasmplane => "+root+"\n")
		run(t, dir, []string{"GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=-mod=mod", "GOPROXY=off", "CGO_ENABLED=0"},
			"go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o", "my-plugin.wasm")
		check(t, filepath.Join(dir, "my-plugin.wasm"))
	})
	t.Run("rust", func(t *testing.T) {
		dir := t.TempDir()
		readme := filepath.Join(root, "sdk/rust/README.md")
		write(t, filepath.Join(dir, "src/lib.rs"), block(t, readme, "rust"))
		write(t, filepath.Join(dir, "Cargo.toml"), strings.Replace(block(t, readme, "toml"), `git = "https://github.com/wasmplane/wasmplane"`, `path = "`+filepath.Join(root, "sdk/rust")+`"`, 1))
		run(t, dir, nil, "make", "-s", "-C", root, "-f", "wasm-examples/build.mk", "rust-cargo", "MANIFEST="+filepath.Join(dir, "Cargo.toml"))
		check(t, filepath.Join(dir, "target/wasm32-unknown-unknown/release/my_plugin.wasm"))
	})
}
