// SPDX-License-Identifier: Apache-2.0

// Package guests builds the plugins that benchmarks measure from one file of source each, as
// their authors would.
package guests

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/scaffold"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
	"github.com/wasmplane/wasmplane/sdk"
)

// Guest is a plugin.
type Guest struct {
	// Folder is where its source is, a file with the name that the language's template has.
	Folder string
	// Name is that of the folder in build/bench where it is built.
	Name     string
	Language toolchain.Language
	// Component: it is built as one, not as a module.
	Component bool
}

// Build builds a guest in a folder that `wasmplane plugin init` has made, outside of the
// sources, with the toolchain that `wasmplane plugin build` finds.
func Build(tb testing.TB, g Guest) ([]byte, error) {
	tb.Helper()
	builder, err := toolchain.New(toolchain.Config{
		Progress:  func(s string) { tb.Logf("%s: %s", g.Name, s) },
		Component: g.Component,
	})
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(plugintest.Root(tb), "build", "bench", g.Name)
	if err := g.prepare(dir); err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "out", "plugin.wasm")
	if err := builder.Build(tb.Context(), dir, out); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}

// prepare makes the folder, with this guest's source in the place of the template's.
func (g Guest) prepare(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, author.EntryFile)); errors.Is(err, os.ErrNotExist) {
		if _, err := scaffold.Init(dir, "image-policy", g.Language, "admission.validate"); err != nil {
			return err
		}
	}
	if err := sdk.Vendor(string(g.Language), filepath.Join(dir, "wasmplane")); err != nil {
		return err
	}
	main := g.Language.Main()
	source, err := os.ReadFile(filepath.Join(g.Folder, filepath.Base(main)))
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(filepath.Join(dir, main)); err == nil && string(old) == string(source) {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, main), source, 0o644)
}
