// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/tetratelabs/wazero"
	"golang.org/x/sys/unix"
)

// Bounds of a compilation beside containers. A module that needs more is compiled within its container, by
// whose limits that is bounded then.
const (
	compileCPU     = 60      // seconds
	compileAddress = 3 << 30 // bytes of addresses, of which Go takes one for itself
	compileMemory  = 1 << 30 // bytes, from which on the collector works harder
	compileFile    = 1 << 30 // bytes of a file
)

const nobody = 65534

// Compile compiles the module that it reads and writes the native code, as an archive of the files that Run
// finds in Config.Cache. It is the only thing that its process does: it locks itself into the directory, and gives up its user,
// before it reads a byte. It wants a network namespace of its own from who starts it.
func Compile(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
	if err := confine(dir); err != nil {
		return fmt.Errorf("give up what compiling doesn't need: %w", err)
	}
	wasm, err := io.ReadAll(io.LimitReader(in, MostModule))
	if err != nil {
		return fmt.Errorf("read the module: %w", err)
	}
	if err := check("module", wasm); err != nil {
		return err
	}
	return compile(ctx, "/cache", wasm, out)
}

func compile(ctx context.Context, dir string, wasm []byte, out io.Writer) error {
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return fmt.Errorf("make a directory for native code: %w", err)
	}
	r := wazero.NewRuntimeWithConfig(ctx, engine(0).WithCompilationCache(cache))
	if _, _, err := compiled(ctx, r, wasm); err != nil {
		return err
	}
	w := tar.NewWriter(out)
	return errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), r.Close(ctx), cache.Close(ctx))
}

// confine takes limits that the kernel enforces, and leaves the process with nothing but its open files and an empty
// directory.
func confine(dir string) error {
	cache := filepath.Join(dir, "cache")
	if err := errors.Join(os.Mkdir(cache, 0o700), os.Chown(cache, nobody, nobody)); err != nil {
		return err
	}
	debug.SetMemoryLimit(compileMemory)
	for what, most := range map[int]uint64{
		unix.RLIMIT_CPU: compileCPU, unix.RLIMIT_AS: compileAddress, unix.RLIMIT_FSIZE: compileFile, unix.RLIMIT_NOFILE: 64, unix.RLIMIT_CORE: 0,
	} {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	// Of all threads, as Go's functions are.
	return errors.Join(syscall.Chroot(dir), os.Chdir("/"), syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody))
}
