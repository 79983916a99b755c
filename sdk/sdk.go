// SPDX-License-Identifier: Apache-2.0

// Package sdk holds the sources of the SDKs, so that the tool can put the one of
// a plugin's language beside the plugin: what it was built with stays there, and
// building needs no network.
package sdk

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

// files are the SDKs' sources but that of Go, which is a module of its own and brings its own.
//
//go:embed rust/Cargo.toml rust/src/*.rs c/wasmplane.h zig/wasmplane.zig assemblyscript/package.json assemblyscript/index.ts javascript/package.json javascript/index.js javascript/index.d.ts javascript/glue.js python/__init__.py python/glue.py python/py.typed
var files embed.FS

// runtime is what plugins in JavaScript run on: its source, and runtime.wasm.gz where
// `make javascript-runtime` has built it.
//
//go:embed javascript/runtime
var runtime embed.FS

// wit is the world that plugins in Python export.
//
//go:embed wit/plugin.wit
var wit []byte

// world is the world of components that are made of the SDKs' modules: built of wit/built.wit, encoded as generators of
// bindings do it. A test of plugins/toolchain holds it against its text.
//
//go:embed wit/built.world
var world []byte

// World returns the encoded world that the SDKs' modules for components have the imports and exports of.
func World() []byte { return bytes.Clone(world) }

// JavaScriptRuntime returns the C source of the runtime of plugins in JavaScript and, where this
// binary was built with it, the module that was made of it, compressed by gzip.
func JavaScriptRuntime() (source, module []byte) {
	source, _ = runtime.ReadFile("javascript/runtime/runtime.c") // it is embedded, or nothing here compiles
	module, _ = runtime.ReadFile("javascript/runtime/runtime.wasm.gz")
	return source, module
}

// sources are the files of a language's SDK.
func sources(language string) (fs.FS, error) {
	switch language {
	case "go":
		return wasmplane.Sources, nil
	case "typescript":
		language = "javascript"
	}
	if _, err := fs.Stat(files, language); err != nil {
		return nil, err
	}
	return fs.Sub(files, language)
}

// Vendor writes the SDK of a language (its folder here) into dir, without its tests.
// Files that are there already and not the SDK's are left alone.
func Vendor(language, dir string) error {
	from, err := sources(language)
	if err != nil {
		return fmt.Errorf("there is no SDK for %s: %w", language, err)
	}
	err = fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || path == "src/tests.rs" {
			return err
		}
		content, err := fs.ReadFile(from, path)
		if err != nil {
			return err
		}
		return write(filepath.Join(dir, path), content)
	})
	if err == nil && language == "python" {
		err = write(filepath.Join(dir, "plugin.wit"), wit)
	}
	if err != nil {
		return fmt.Errorf("write the SDK for %s into %s: %w", language, dir, err)
	}
	return nil
}

func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if old, err := os.ReadFile(path); err == nil && string(old) == string(content) {
		return nil
	}
	return os.WriteFile(path, content, 0o644)
}
