// SPDX-License-Identifier: Apache-2.0

// Package authortest makes plugins for tests as their authors do: from a template, with
// the tool's own builder.
package authortest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/scaffold"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// Build makes, builds and names a plugin as the tool does.
func Build(t *testing.T, l toolchain.Language, point string) author.Config {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "my-own")
	if _, err := scaffold.Init(dir, "my-own", l, point); err != nil {
		t.Fatal(err)
	}
	Rebuild(t, dir)
	cfg := Open(t, dir)
	if l == toolchain.Python { // what all of them have in common takes a third of a minute to compile
		cfg.CacheDir = filepath.Join(plugintest.Root(t), "build", "plugin-cache")
	}
	return cfg
}

// Rebuild builds the plugin of a folder.
func Rebuild(t *testing.T, dir string) {
	t.Helper()
	build(t, dir, toolchain.Config{})
}

// RebuildComponent makes a component of it.
func RebuildComponent(t *testing.T, dir string) {
	t.Helper()
	build(t, dir, toolchain.Config{Component: true})
}

func build(t *testing.T, dir string, cfg toolchain.Config) {
	t.Helper()
	cfg.Progress = func(s string) { t.Log(s) }
	b, err := toolchain.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Build(t.Context(), dir, filepath.Join(dir, "my-own.wasm")); err != nil {
		t.Fatal(err)
	}
}

// Open reads the entry of a plugin.
func Open(t *testing.T, path string) author.Config {
	t.Helper()
	e, dir, err := author.ReadEntry(path)
	if err != nil {
		t.Fatal(err)
	}
	return author.Config{InProcess: true, Entry: e, Dir: dir} // a test has no child of its own binary
}

// Write writes a file of a plugin.
func Write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
