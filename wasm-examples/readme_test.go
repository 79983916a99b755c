// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/author/scaffold"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// block is the first block of a language in a README.
func block(t *testing.T, path, language string) string {
	t.Helper()
	return blocks(t, path, language)[0]
}

func blocks(t *testing.T, path, language string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, b := range strings.Split(string(b), "```"+language+"\n")[1:] {
		text, _, closed := strings.Cut(b, "```")
		if !closed {
			t.Fatalf("%s has a block that is not closed", path)
		}
		out = append(out, text)
	}
	if len(out) == 0 {
		t.Fatalf("%s has no block of %s", path, language)
	}
	return out
}

// proxied is an environment in which the go command finds one module, in a version of its
// own, and no other: a proxy in a folder.
func proxied(t *testing.T, dir string) []string {
	t.Helper()
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	v := module.Version{Path: modfile.ModulePath(gomod), Version: "v0.1.0"}
	proxy := t.TempDir()
	at := filepath.Join(proxy, v.Path, "@v", v.Version)
	write(t, at+".mod", string(gomod))
	write(t, at+".info", `{"Version": "`+v.Version+`"}`)
	write(t, filepath.Join(filepath.Dir(at), "list"), v.Version+"\n")
	var b bytes.Buffer
	if err := zip.CreateFromDir(&b, v, dir); err != nil {
		t.Fatal(err)
	}
	write(t, at+".zip", b.String())
	return []string{
		"GOPROXY=file://" + proxy, "GONOSUMDB=*", "GOMODCACHE=" + filepath.Join(proxy, "cache"), "GOTOOLCHAIN=local",
		"GOFLAGS=-modcacherw",
	}
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
		toolchain.JavaScript: "js", toolchain.TypeScript: "ts", toolchain.Python: "python",
	}
	for _, l := range toolchain.Languages() {
		t.Run(string(l), func(t *testing.T) {
			folder := string(l)
			if l == toolchain.TypeScript { // both have one SDK
				folder = string(toolchain.JavaScript)
			}
			page, err := os.ReadFile(filepath.Join(root, "sdk", folder, "README.md"))
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
				if _, err := scaffold.Init(dir, name, l, "admission.validate"); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, l.Main()), []byte(source), 0o600); err != nil {
					t.Fatal(err)
				}
				out := filepath.Join(dir, name+".wasm")
				if err := builder.Build(t.Context(), dir, out); err != nil {
					t.Fatal(err)
				}
				e, err := manifest.ParseBytes([]byte("name: " + name + "\nsource: file:" + name + ".wasm"))
				if err != nil {
					t.Fatal(err)
				}
				list, err := cases.Read(".", []string{"testdata/" + name + ".yaml"})
				if err != nil {
					t.Fatal(err)
				}
				passes(t, e, out, list)
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
	list, err := cases.Read(".", []string{"testdata/my-plugin.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, path string) {
		t.Helper()
		passes(t, e, path, list)
	}
	t.Run("go", func(t *testing.T) {
		dir, readme := t.TempDir(), filepath.Join(root, "sdk/go/README.md")
		write(t, filepath.Join(dir, "main.go"), block(t, readme, "go"))
		// What the page says to type, with the SDK from a proxy that has this tree's, and
		// no other module.
		env := append(proxied(t, filepath.Join(root, "sdk/go")), "CGO_ENABLED=0", "GOWORK=off")
		commands := blocks(t, readme, "sh")
		if len(commands) != 2 {
			t.Fatalf("the page has %d blocks of commands", len(commands))
		}
		for _, c := range commands {
			run(t, dir, env, "sh", "-euc", c)
		}
		check(t, filepath.Join(dir, "my-plugin.wasm"))
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(mod), "require "); n != 1 {
			t.Errorf("the plugin needs more than the SDK:\n%s", mod)
		}
	})
	t.Run("rust", func(t *testing.T) {
		dir := t.TempDir()
		readme := filepath.Join(root, "sdk/rust/README.md")
		write(t, filepath.Join(dir, "src/lib.rs"), block(t, readme, "rust"))
		write(t, filepath.Join(dir, "Cargo.toml"), strings.Replace(block(t, readme, "toml"), `git = "https://github.com/wasmplane/wasmplane"`,
			`path = "`+filepath.Join(root, "sdk/rust")+`"`, 1))
		run(t, dir, nil, "make", "-s", "-C", root, "-f", "wasm-examples/build.mk", "rust-cargo", "MANIFEST="+filepath.Join(dir, "Cargo.toml"))
		check(t, filepath.Join(dir, "target/wasm32-unknown-unknown/release/my_plugin.wasm"))
	})
}
