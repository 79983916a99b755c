// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// TestThePackagesOfTheSDKsAreWhole packs the SDKs for their registries, and builds the
// READMEs' plugin with nothing of the SDK but what is in the package.
func TestThePackagesOfTheSDKsAreWhole(t *testing.T) {
	root, packages := plugintest.Root(t), t.TempDir()
	builder, err := toolchain.New(toolchain.Config{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, root, nil, "sdk/package.sh", packages)
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
	one := func(t *testing.T, pattern string) string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(packages, pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: found %v, %v; expected one package", pattern, found, err)
		}
		return found[0]
	}
	// plugin is a folder with the README's plugin, and beside it what is in the package.
	plugin := func(t *testing.T, archive, main, readme, language string) string {
		t.Helper()
		dir := t.TempDir()
		write(t, filepath.Join(dir, main), block(t, filepath.Join(root, readme), language))
		write(t, filepath.Join(dir, "wasmplane/.keep"), "")
		run(t, dir, nil, "tar", "-xzf", archive, "-C", "wasmplane", "--strip-components=1")
		return dir
	}
	t.Run("rust", func(t *testing.T) {
		dir := plugin(t, one(t, "*.crate"), "src/lib.rs", "sdk/rust/README.md", "rust")
		toml := block(t, filepath.Join(root, "sdk/rust/README.md"), "toml")
		write(t, filepath.Join(dir, "Cargo.toml"), strings.Replace(toml, `git = "https://github.com/wasmplane/wasmplane"`, `path = "wasmplane"`,
			1))
		run(t, dir, nil, "make", "-s", "-C", root, "-f", "wasm-examples/build.mk", "rust-cargo", "MANIFEST="+filepath.Join(dir, "Cargo.toml"))
		check(t, filepath.Join(dir, "target/wasm32-unknown-unknown/release/my_plugin.wasm"))
	})
	t.Run("assemblyscript", func(t *testing.T) {
		dir := plugin(t, one(t, "wasmplane-assemblyscript-*.tgz"), "plugin.ts", "sdk/assemblyscript/README.md", "ts")
		out := filepath.Join(dir, "my-plugin.wasm")
		if err := builder.Build(t.Context(), dir, out); err != nil {
			t.Fatal(err)
		}
		check(t, out)
	})
	for language, fence := range map[string]string{"javascript": "js", "typescript": "ts"} {
		t.Run(language, func(t *testing.T) {
			dir := plugin(t, one(t, "wasmplane-javascript-*.tgz"), toolchain.Language(language).Main(), "sdk/javascript/README.md", fence)
			out := filepath.Join(dir, "my-plugin.wasm")
			if err := builder.Build(t.Context(), dir, out); err != nil {
				t.Fatal(err)
			}
			check(t, out)
		})
	}
	t.Run("zig", func(t *testing.T) {
		if err := builder.Install(t.Context(), toolchain.Zig); err != nil {
			t.Fatal(err)
		}
		cache, err := toolchain.Cache()
		if err != nil {
			t.Fatal(err)
		}
		zig := filepath.Join(cache, "zig-"+toolchain.ZigVersion, "node_modules/.bin/zig")
		if _, err := os.Stat(zig); err != nil {
			zig = "zig" // the user's own, which Install has found to be of that version
		}
		dir := t.TempDir()
		write(t, filepath.Join(dir, "plugin.zig"), block(t, filepath.Join(root, "sdk/zig/README.md"), "zig"))
		write(t, filepath.Join(dir, "build.zig"), consumer)
		write(t, filepath.Join(dir, "build.zig.zon"),
			".{ .name = .my_plugin, .version = \"0.1.0\", .fingerprint = 0x750be78f0c3c4017, .paths = .{\"\"}, .dependencies = .{} }\n")
		caches := []string{"ZIG_GLOBAL_CACHE_DIR=" + filepath.Join(cache, "zig-cache"), "ZIG_LOCAL_CACHE_DIR=" + t.TempDir()}
		run(t, dir, caches, zig, "fetch", "--save", one(t, "wasmplane-zig-*.tar.gz"))
		run(t, dir, caches, zig, "build")
		check(t, filepath.Join(dir, "zig-out/bin/my-plugin.wasm"))
	})
}

// consumer builds a plugin with the package as a dependency.
const consumer = `const std = @import("std");

pub fn build(b: *std.Build) void {
    const target = b.resolveTargetQuery(.{ .cpu_arch = .wasm32, .os_tag = .freestanding });
    const plugin = b.addExecutable(.{ .name = "my-plugin", .root_module = b.createModule(.{
        .root_source_file = b.path("plugin.zig"),
        .target = target,
        .optimize = .ReleaseFast,
        .strip = true,
    }) });
    plugin.root_module.addImport("wasmplane", b.dependency("wasmplane", .{}).module("wasmplane"));
    plugin.entry = .disabled;
    plugin.rdynamic = true;
    b.installArtifact(plugin);
}
`
