// Package sdk holds the sources of the SDKs, so that the tool can put the one of
// a plugin's language beside the plugin: what it was built with stays there, and
// building needs no network.
package sdk

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Files are the SDKs' sources, without their tests.
//
//go:embed go/*.go rust/Cargo.toml rust/src/*.rs c/wasmplane.h zig/wasmplane.zig assemblyscript/package.json assemblyscript/index.ts
var Files embed.FS

// Vendor writes the SDK of a language (its folder here) into dir. Files that are
// there already and not the SDK's are left alone.
func Vendor(language, dir string) error {
	found := false
	err := fs.WalkDir(Files, language, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "/tests.rs") {
			return err
		}
		content, err := Files.ReadFile(path)
		if err != nil {
			return err
		}
		found = true
		return write(filepath.Join(dir, strings.TrimPrefix(path, language+"/")), content)
	})
	if err != nil || !found {
		return fmt.Errorf("write the SDK for %s into %s: %w", language, dir, err)
	}
	if language == "go" {
		return write(filepath.Join(dir, "go.mod"), []byte("module github.com/wasmplane/wasmplane/sdk/go\n\ngo 1.24\n"))
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
