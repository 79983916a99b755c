// SPDX-License-Identifier: Apache-2.0

package javascript

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
	"github.com/wasmplane/wasmplane/sdk"
)

// The engine's sources, QuickJS-ng 0.16.2, as the registry of crates keeps them.
const (
	sourcesName   = "rquickjs-sys-0.14.0.crate"
	sourcesURL    = "https://static.crates.io/crates/rquickjs-sys/" + sourcesName
	sourcesSHA256 = "cee271d0eeba64f0915b846cb7ae02e16faf3dfdffdca91731101d9d30fe3423"
	sourcesBytes  = 8 << 20 // the most that is read
)

// flags are those of the C compiler. -Oz decides a tenth slower than -O3, and makes a module that is a third
// smaller, compiles in half the time, and whose interpreter has a frame of two thirds.
var flags = []string{
	"-target", "wasm32-wasi", "-mexec-model=reactor", "-Oz", "-s", "-DNDEBUG", "-D_GNU_SOURCE",
	"-D_WASI_EMULATED_SIGNAL", "-D_WASI_EMULATED_PROCESS_CLOCKS", "-Wl,-z,stack-size=147456", "-w",
}

var libraries = []string{"-lwasi-emulated-signal", "-lwasi-emulated-process-clocks"}

// Runtime returns the runtime of all plugins: the embedded one, else the one that was
// built before, else it is built.
func (b *Builder) Runtime(ctx context.Context) ([]byte, error) {
	source, packed := sdk.JavaScriptRuntime()
	name := b.name(source)
	if r, err := gzip.NewReader(bytes.NewReader(packed)); err == nil && r.Name == name { // none, or one of other sources
		return io.ReadAll(r)
	}
	file := filepath.Join(b.Cache, "javascript", name)
	if built, err := os.ReadFile(file); err == nil {
		return built, nil
	}
	built, err := b.compile(ctx, source)
	if err != nil {
		return nil, fmt.Errorf("build the runtime of JavaScript (a release of wasmplane brings it along): %w", err)
	}
	return built, keep(file, built)
}

// name tells runtimes of different sources apart.
func (b *Builder) name(source []byte) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", source, sourcesSHA256, b.CompilerVersion, strings.Join(flags, " ")))
	return "runtime-" + hex.EncodeToString(sum[:6]) + ".wasm"
}

// Pack writes the runtime into a file, as sdk embeds it, and beside it the licenses that are to be
// passed on with it.
func (b *Builder) Pack(ctx context.Context, file string) error {
	module, err := b.Runtime(ctx)
	if err != nil {
		return err
	}
	source, _ := sdk.JavaScriptRuntime()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	w.Name = b.name(source)
	if _, err := w.Write(module); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := keep(file, out.Bytes()); err != nil {
		return err
	}
	licenses, err := b.licenses(ctx)
	if err != nil {
		return err
	}
	return keep(filepath.Join(filepath.Dir(file), "LICENSES"), licenses)
}

// licenses are those of the engine and of the C library that it is linked with.
func (b *Builder) licenses(ctx context.Context) ([]byte, error) {
	archive, err := b.sources(ctx)
	if err != nil {
		return nil, err
	}
	engine, err := files(archive, func(name string) bool { return name == "LICENSE" })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sourcesName, err)
	}
	zig, err := b.Compiler(ctx)
	if err != nil {
		return nil, err
	}
	said, err := exec.CommandContext(ctx, zig, "env").Output()
	if err != nil {
		return nil, fmt.Errorf("%s env: %w", zig, err)
	}
	lib := regexp.MustCompile(`lib_dir"?\s*[:=]\s*"([^"]+)"`).FindSubmatch(said)
	if lib == nil {
		return nil, fmt.Errorf("%s env names no lib_dir:\n%s", zig, said)
	}
	library, err := os.ReadFile(filepath.Join(string(lib[1]), "libc", "wasi", "LICENSE-MIT"))
	if err != nil {
		return nil, fmt.Errorf("the license of wasi-libc: %w", err)
	}
	var out bytes.Buffer
	for _, l := range []struct {
		of   string
		text []byte
	}{{"QuickJS-ng (the engine of plugins in JavaScript)", engine["LICENSE"]}, {"wasi-libc (in the same)", library}} {
		out.WriteString("\n" + strings.Repeat("=", 80) + "\n" + l.of + "\n" + strings.Repeat("-", 80) + "\n")
		out.Write(bytes.TrimSpace(l.text))
		out.WriteString("\n")
	}
	return out.Bytes(), nil
}

// keep writes a file at once, never half. What is lost can be made again.
func keep(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return atomicfile.WriteVolatile(file, content, 0o644)
}

func (b *Builder) compile(ctx context.Context, source []byte) ([]byte, error) {
	archive, err := b.sources(ctx)
	if err != nil {
		return nil, err
	}
	zig, err := b.Compiler(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.Cache, ".new-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	unpacked, err := files(archive, func(name string) bool { return slices.Contains([]string{".c", ".h"}, path.Ext(name)) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sourcesName, err)
	}
	unpacked["runtime.c"] = source
	for name, content := range unpacked {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return nil, err
		}
	}
	b.Progress("building the JavaScript engine for all plugins (half a minute of a processor; once)")
	args := append([]string{"cc"}, flags...)
	args = append(args, "runtime.c", "libregexp.c", "libunicode.c", "dtoa.c")
	args = append(append(args, libraries...), "-o", "runtime.wasm")
	cmd := exec.CommandContext(ctx, zig, args...)
	cache := filepath.Join(b.Cache, "zig-cache")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "ZIG_LOCAL_CACHE_DIR="+cache, "ZIG_GLOBAL_CACHE_DIR="+cache)
	cmd.WaitDelay = 5 * time.Second
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("zig cc: %w\n%s", err, said)
	}
	return os.ReadFile(filepath.Join(dir, "runtime.wasm"))
}

// sources returns the engine's sources: what lies in the cache, else the registry's.
func (b *Builder) sources(ctx context.Context) ([]byte, error) {
	file := filepath.Join(b.Cache, "javascript", sourcesName)
	archive, missing := os.ReadFile(file)
	if missing != nil {
		b.Progress("fetching the sources of the JavaScript engine (" + sourcesURL + ", 2.1 MB; once)")
		var err error
		if archive, err = fetch(ctx, sourcesURL); err != nil {
			return nil, fmt.Errorf("%w (where this machine has no way there, put the file at %s)", err, file)
		}
	}
	if sum := sha256.Sum256(archive); hex.EncodeToString(sum[:]) != sourcesSHA256 {
		return nil, fmt.Errorf("%s has the digest %x, expected %s: it is not what was published, remove it", sourcesName, sum, sourcesSHA256)
	}
	if missing == nil {
		return archive, nil
	}
	return archive, keep(file, archive)
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, sourcesBytes))
}

// files are those of the engine's folder that are wanted, by name.
func files(archive []byte, wanted func(name string) bool) (map[string][]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		name := path.Base(h.Name)
		if path.Base(path.Dir(h.Name)) != "quickjs" || !wanted(name) {
			continue
		}
		if out[name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}
