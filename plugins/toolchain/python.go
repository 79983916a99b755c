// SPDX-License-Identifier: Apache-2.0

package toolchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ComponentizePyVersion is the compiler of plugins in Python: CPython 3.14 as WebAssembly, from PyPI.
const ComponentizePyVersion = "0.25.1"

// startComponentize is what the script of the package does, which knows only the folder that it was installed in.
const startComponentize = `import sys; from componentize_py import script; sys.argv[0] = "componentize-py"; sys.exit(script())`

// errNoPython says what the compiler is installed with.
var errNoPython = errors.New("python3 is missing: install Python 3.10 or newer, with venv and pip (apt install python3-venv); " +
	"it runs the compiler only, plugins bring a Python of their own")

// componentize is the compiler of plugins in Python. It is installed once, in a folder that bears its version.
func (b *Builder) componentize(ctx context.Context) (python string, err error) {
	dir := filepath.Join(b.cfg.Cache, "componentize-py-"+ComponentizePyVersion)
	python = filepath.Join(dir, "bin", "python")
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		if _, err := os.Stat(python); err == nil {
			return python, nil
		}
		// The Python that it was made with has gone.
		if err := os.RemoveAll(dir); err != nil {
			return "", fmt.Errorf("renew %s: %w", dir, err)
		}
	}
	system, err := exec.LookPath("python3")
	if err != nil {
		return "", errNoPython
	}
	if err := os.MkdirAll(b.cfg.Cache, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of toolchains: %w", err)
	}
	b.cfg.Progress(fmt.Sprintf("installing componentize-py %s from PyPI into %s (17 MB, 70 MB unpacked; once)", ComponentizePyVersion, dir))
	tmp, err := os.MkdirTemp(b.cfg.Cache, ".new-")
	if err != nil {
		return "", fmt.Errorf("make the folder of toolchains: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := b.installPython(ctx, system, tmp); err != nil {
		return "", err
	}
	// Whoever was faster has installed the same. A virtual environment may be moved: nothing is started by its scripts.
	if err := os.Rename(tmp, dir); err != nil {
		if _, there := os.Stat(filepath.Join(dir, "complete")); there != nil {
			return "", fmt.Errorf("install componentize-py %s: %w", ComponentizePyVersion, err)
		}
	}
	return python, nil
}

func (b *Builder) installPython(ctx context.Context, system, dir string) error {
	if err := b.run(ctx, dir, nil, system, "-m", "venv", dir); err != nil {
		return fmt.Errorf("make a virtual environment for componentize-py (Debian: apt install python3-venv): %w", err)
	}
	python := filepath.Join(dir, "bin", "python")
	if err := b.run(ctx, dir, nil, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
		"--only-binary", ":all:", "componentize-py=="+ComponentizePyVersion); err != nil {
		return fmt.Errorf("install componentize-py %s (it is there for x86-64 and arm64): %w", ComponentizePyVersion, err)
	}
	said, err := exec.CommandContext(ctx, python, "-c", startComponentize, "--version").CombinedOutput()
	if err != nil || strings.TrimSpace(string(said)) != "componentize-py "+ComponentizePyVersion {
		return fmt.Errorf("componentize-py says that it is %q, expected version %s (%w)", strings.TrimSpace(string(said)),
			ComponentizePyVersion, err)
	}
	return os.WriteFile(filepath.Join(dir, "complete"), nil, 0o644)
}

// buildPython loads the plugin's modules into CPython and makes a component of its memory.
func (b *Builder) buildPython(ctx context.Context, dir, out string) error {
	library, err := b.vendored(Python, dir)
	if err != nil {
		return err
	}
	python, err := b.componentize(ctx)
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	paths := []string{"-p", dir}
	if beside := filepath.Dir(library); beside != dir {
		paths = append(paths, "-p", beside)
	}
	// Packages of others: pip install --target packages NAME.
	if packages := filepath.Join(dir, "packages"); isDir(packages) {
		paths = append(paths, "-p", packages)
	}
	b.cfg.Progress("building with componentize-py (15 s of a processor)")
	args := append([]string{"-c", startComponentize, "-d", filepath.Join(library, "plugin.wit"), "-w", "plugin", "componentize"},
		paths...)
	env := []string{"RUST_BACKTRACE=0", "VIRTUAL_ENV=" + filepath.Dir(filepath.Dir(python)), "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1"}
	err = b.run(ctx, dir, env, python, append(args, "wasmplane.glue", "-o", out)...)
	if err != nil && ctx.Err() == nil {
		return errors.New(authorsError(err.Error()))
	}
	return err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// authorsError is what the SDK's glue (sdk/python/glue.py) found wrong with the plugin, without what the compiler says
// around it.
func authorsError(said string) string {
	_, rest, ok := strings.Cut(said, "ImportError: \n")
	if !ok {
		return said
	}
	found, _, _ := strings.Cut(rest, "\n;")
	return found
}
