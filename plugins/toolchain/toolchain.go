// SPDX-License-Identifier: Apache-2.0

// Package toolchain builds plugins from their sources: it finds the compiler of
// each SDK's language or, where it comes as an npm package, installs it into a folder of its own.
//
// What a folder is written in is told by its files. The SDK that lies beside a
// plugin (the folder wasmplane/) is used; where there is none, the one of this
// version. Nothing is installed that was not said aloud, and versions are pinned: Go, Rust and
// clang are the user's own, Zig and AssemblyScript come from npm, Python's compiler from PyPI.
package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/sdk"
)

// Language is one that there is an SDK for; it is the name of the SDK's folder.
type Language string

// The languages.
const (
	Go             Language = "go"
	Rust           Language = "rust"
	C              Language = "c"
	Zig            Language = "zig"
	AssemblyScript Language = "assemblyscript"
	JavaScript     Language = "javascript"
	TypeScript     Language = "typescript"
	Python         Language = "python"
)

// Languages lists all of them.
func Languages() []Language {
	return []Language{Go, Rust, C, Zig, AssemblyScript, JavaScript, TypeScript, Python}
}

// Main is the file that a plugin's source begins with.
func (l Language) Main() string {
	return map[Language]string{
		Go: "main.go", Rust: filepath.Join("src", "lib.rs"), C: "plugin.c", Zig: "plugin.zig", AssemblyScript: "plugin.ts",
		JavaScript: "main.js", TypeScript: "main.ts", Python: "main.py",
	}[l]
}

// Detect tells the language of a plugin's folder.
func Detect(dir string) (Language, error) {
	var names []string
	for _, l := range Languages() {
		if _, err := os.Stat(filepath.Join(dir, l.Main())); err == nil {
			return l, nil
		}
		names = append(names, l.Main())
	}
	return "", fmt.Errorf("%s holds no plugin's source: one of %s was expected", dir, strings.Join(names, ", "))
}

// Config configures a Builder.
type Config struct {
	// Cache is the folder for toolchains and what they keep between builds;
	// default: Cache().
	Cache string
	// Progress is told, in a sentence, what takes longer than a moment.
	Progress func(string)
	// Debug keeps names and line tables, so that errors point at the source. The
	// module is larger, and no slower.
	Debug bool
	// Component makes a component of the world "plugin" of sdk/wit, instead of a module. Plugins in Python
	// always are one.
	Component bool
}

// Cache is where toolchains are kept: $WASMPLANE_TOOLCHAINS, or the user's cache folder.
func Cache() (string, error) {
	if dir := os.Getenv("WASMPLANE_TOOLCHAINS"); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for toolchains: %w; name one in WASMPLANE_TOOLCHAINS", err)
	}
	return filepath.Join(base, "wasmplane", "toolchains"), nil
}

// Builder builds plugins.
type Builder struct{ cfg Config }

// New makes a builder.
func New(cfg Config) (*Builder, error) {
	if cfg.Cache == "" {
		dir, err := Cache()
		if err != nil {
			return nil, err
		}
		cfg.Cache = dir
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	return &Builder{cfg: cfg}, nil
}

// Build builds the plugin in dir into the file out. What the compiler says of the
// source is the error.
func (b *Builder) Build(ctx context.Context, dir, out string) error {
	l, err := Detect(dir)
	if err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return fmt.Errorf("output %s: %w", out, err)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("output %s: %w", out, err)
	}
	tmp := out + ".new" // a module that is being served is replaced at once, never half
	defer func() { _ = os.Remove(tmp) }()
	build := map[Language]func(context.Context, string, string) error{
		Go: b.buildGo, Rust: b.buildRust, C: b.buildC, Zig: b.buildZig, AssemblyScript: b.buildAssemblyScript,
		JavaScript: b.buildJavaScript, TypeScript: b.buildTypeScript, Python: b.buildPython,
	}[l]
	if err := build(ctx, dir, tmp); err != nil {
		return fmt.Errorf("build %s (%s): %w", dir, l, err)
	}
	if b.cfg.Component && l != Python { // whose compiler makes one
		if err := componentOf(tmp); err != nil {
			return fmt.Errorf("build %s (%s): %w", dir, l, err)
		}
	}
	if err := os.Rename(tmp, out); err != nil {
		return fmt.Errorf("output %s: %w", out, err)
	}
	return nil
}

// Install installs what building in a language needs from npm or PyPI; it does nothing
// where there is nothing to install.
func (b *Builder) Install(ctx context.Context, l Language) error {
	var err error
	switch l {
	case Zig:
		_, err = b.zig(ctx)
	case AssemblyScript:
		_, err = b.asc(ctx, ".")
	case C:
		_, err = b.cc(ctx)
	case Rust:
		_, _, err = rustc(ctx)
	case JavaScript, TypeScript:
		_, err = b.javascript("").Runtime(ctx)
	case Python:
		_, err = b.componentize(ctx)
	case Go:
		_, err = exec.LookPath("go")
	}
	return err
}

// vendored is the folder of the SDK: the one beside the plugin, else this version's own.
func (b *Builder) vendored(l Language, dir string) (string, error) {
	beside := filepath.Join(dir, "wasmplane")
	if _, err := os.Stat(beside); err == nil {
		return filepath.Abs(beside)
	}
	own := filepath.Join(b.cfg.Cache, "sdk", string(l), "wasmplane")
	return own, sdk.Vendor(string(l), own)
}

// run runs a compiler in a folder. Its messages are the error.
func (b *Builder) run(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said // tsc says what is wrong on stdout
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, strings.TrimSpace(said.String()))
	}
	return nil
}

func (b *Builder) buildGo(ctx context.Context, dir, out string) error {
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("the go command is missing: install Go 1.24 or newer (https://go.dev/dl)")
	}
	flags := "-s -w"
	if b.cfg.Debug {
		flags = ""
	}
	b.cfg.Progress("building with go; the first time, its standard library is built too")
	return b.run(ctx, dir, []string{"CGO_ENABLED=0", "GOOS=wasip1", "GOARCH=wasm"},
		"go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags="+flags, "-o", out, ".")
}
