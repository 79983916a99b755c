package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
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

// TestEveryPluginInTheREADMEs builds each block of source in the SDKs' pages with
// the tool, in a folder outside of the repository, and asks it what the page says that it decides.
func TestEveryPluginInTheREADMEs(t *testing.T) {
	root := plugintest.Root(t)
	builder, err := toolchain.New(toolchain.Config{Progress: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	fences := map[toolchain.Language]string{
		toolchain.Go: "go", toolchain.Rust: "rust", toolchain.C: "c", toolchain.Zig: "zig", toolchain.AssemblyScript: "ts",
	}
	for _, l := range toolchain.Languages() {
		t.Run(string(l), func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join(root, "sdk", string(l), "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			blocks := strings.Split(string(page), "```"+fences[l]+"\n")[1:]
			if len(blocks) != 2 {
				t.Fatalf("the page has %d plugins", len(blocks))
			}
			for i, name := range []string{"my-plugin", "gated"} {
				source, _, closed := strings.Cut(blocks[i], "```")
				if !closed {
					t.Fatal("a block is not closed")
				}
				dir := filepath.Join(t.TempDir(), name)
				if _, err := author.Init(dir, name, l, "admission.validate"); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, l.Main()), []byte(source), 0o600); err != nil {
					t.Fatal(err)
				}
				out := filepath.Join(dir, name+".wasm")
				if err := builder.Build(t.Context(), dir, out); err != nil {
					t.Fatal(err)
				}
				wasm, err := os.ReadFile(out)
				if err != nil {
					t.Fatal(err)
				}
				e, err := manifest.ParseBytes([]byte("name: " + name + "\nsource: file:" + name + ".wasm"))
				if err != nil {
					t.Fatal(err)
				}
				cases, err := plugintest.ReadCases("testdata/" + name + ".yaml")
				if err != nil {
					t.Fatal(err)
				}
				plugintest.Run(t, wasm, e, cases)
			}
		})
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
