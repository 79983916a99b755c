// SPDX-License-Identifier: Apache-2.0

// Package workload runs one WebAssembly module as the process of a container. The container's
// runtime has made the process what a container's process is: it has a root directory, a network namespace,
// a cgroup, a user and a system call filter of its own. What the module gets is a part of that: standard
// input and output, arguments, environment, clocks, random numbers, the files below the container's root and its volumes, and
// listening sockets on the ports that the container declares. It gets nothing of /proc, /sys and /dev, and no other
// sockets.
//
// The process ends as the module does: with its exit code, with 134 after a trap (as a program that aborts),
// with 128 and the signal's number when it is told to end, and with 126 when the module
// cannot be run. Signals do not wait for the module.
package workload

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/workload/wasip1"
)

// Exit codes of the process, besides the module's own.
const (
	ExitCannotRun = 126
	ExitTrap      = 134
	exitSignal    = 128
)

// Config is what a container's runtime says of the module. The arguments and the environment
// are the process's own.
type Config struct {
	// Module is the file with the module, as the process sees it. When empty, it is the first argument,
	// as in an image whose entry point is a module.
	Module string `json:"module,omitempty"`
	// Root is the directory that the module sees as /; it is / in a container.
	Root string `json:"root,omitempty"`
	// Mounts are the paths of volumes below Root: directories become preopened ones,
	// files can be opened.
	Mounts []string `json:"mounts,omitempty"`
	// Listen are the ports on which the module may accept connections.
	Listen []Port `json:"listen,omitempty"`
	// Memory is the container's limit in bytes; 0 = none.
	Memory int64 `json:"memory,omitempty"`
	// Cache is a directory with the module's native code, which Compile made; empty = it is compiled here.
	Cache string `json:"cache,omitempty"`
	// Serving is called when a component begins to serve HTTP: from then on the end of Run's context
	// lets the requests end that are on their way. May be nil.
	Serving func() `json:"-"`
}

// Port is a TCP port that the container declares.
type Port struct {
	Name string `json:"name,omitempty"`
	Port int    `json:"port"`
}

// Stdio is the module's standard input and output.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// files are those of the three that the system can wait for.
func (s Stdio) files() (out [3]*os.File) {
	for i, f := range []any{s.In, s.Out, s.Err} {
		out[i], _ = f.(*os.File)
	}
	return out
}

// MostModule bounds a module's file, in bytes.
const MostModule = 256 << 20

// Run runs the module to its end and answers the exit code of the process. The error says why it
// could not be run, or which trap ended it. The end of the context ends a module as SIGTERM does, when it next waits.
func Run(ctx context.Context, c Config, args, env []string, stdio Stdio) (code int, err error) {
	if len(args) == 0 {
		return ExitCannotRun, errors.New("the container has no command: give the image an entry point, or the container a command")
	}
	file, export, _ := strings.Cut(args[0], "#")
	args = append([]string{file}, args[1:]...)
	if c.Root == "" {
		c.Root = "/"
	}
	if c.Module != "" {
		file = c.Module
	}
	wasm, err := read(c.Root, file)
	if err != nil {
		return ExitCannotRun, err
	}
	return c.run(ctx, wasm, export, args, env, stdio)
}

// read reads a module, which must be a regular file of a bearable size.
func read(root, file string) ([]byte, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open the container's root directory: %w", err)
	}
	defer func() { _ = r.Close() }()
	f, err := r.Open(relative(file))
	if err != nil {
		return nil, fmt.Errorf("open the module %q: %w", file, errors.Unwrap(err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the module %q: %w", file, err)
	}
	if !info.Mode().IsRegular() || info.Size() > MostModule {
		return nil, fmt.Errorf("the module %q is not a regular file of at most %d bytes", file, MostModule)
	}
	wasm, err := io.ReadAll(io.LimitReader(f, MostModule))
	if err != nil {
		return nil, fmt.Errorf("read the module %q: %w", file, err)
	}
	return wasm, check(file, wasm)
}

// relative is a path as os.Root takes it.
func relative(file string) string {
	if file = strings.TrimPrefix(path.Clean("/"+file), "/"); file == "" {
		return "."
	}
	return file
}

// moduleHeader are the first eight bytes of a core module.
const moduleHeader = "\x00asm\x01\x00\x00\x00"

func check(file string, wasm []byte) error {
	switch {
	case bytes.HasPrefix(wasm, []byte(moduleHeader)), binary.Is(wasm):
		return nil
	}
	return fmt.Errorf("%q is no WebAssembly module: it begins neither with \\0asm and version 1 nor as a component does", file)
}

const pageSize = 64 << 10

// engine is how modules are compiled: with a bound of the memory in bytes, if there is one.
func engine(memory int64) wazero.RuntimeConfig {
	cfg := wazero.NewRuntimeConfig().WithDebugInfoEnabled(false).
		WithCoreFeatures(api.CoreFeaturesV2 | experimental.CoreFeaturesExtendedConst | experimental.CoreFeaturesTailCall)
	if pages := memory / pageSize; pages > 0 && pages < 1<<16 {
		cfg = cfg.WithMemoryLimitPages(uint32(pages))
	}
	return cfg
}

// run compiles the module and runs it.
func (c Config) run(ctx context.Context, wasm []byte, export string, args, env []string, stdio Stdio) (int, error) {
	cfg := engine(c.Memory)
	if c.Cache != "" {
		cache, err := wazero.NewCompilationCacheWithDir(c.Cache)
		if err != nil {
			return ExitCannotRun, fmt.Errorf("open the directory of native code: %w", err)
		}
		cfg = cfg.WithCompilationCache(cache)
	}
	linear := &memories{}
	defer linear.end() // after the instances
	ctx = experimental.WithMemoryAllocator(ctx, linear)
	r := wazero.NewRuntimeWithConfig(ctx, cfg)
	defer func() { _ = r.Close(ctx) }()
	if binary.Is(wasm) {
		return c.component(ctx, r, wasm, export, args, env, stdio)
	}
	host, err := wasip1.New(ctx, stdio.files())
	if err != nil {
		return ExitCannotRun, err
	}
	defer func() { _ = host.Close() }()
	defer func() { _ = r.Close(ctx) }() // its instance before its host
	if err := host.Instantiate(ctx, r); err != nil {
		return ExitCannotRun, fmt.Errorf("make the functions of WASI: %w", err)
	}
	compiled, err := r.CompileModule(ctx, wasm)
	if err != nil {
		return ExitCannotRun, fmt.Errorf("compile the module: %w", err)
	}
	start, err := entry(compiled, export)
	if err != nil {
		return ExitCannotRun, err
	}
	volumes, err := open(c.Root, c.Mounts)
	if err != nil {
		return ExitCannotRun, err
	}
	defer volumes.close()
	files := wazero.NewFSConfig().(sysfs.FSConfig)
	fsc := files.WithSysFSMount(volumes.root, "/")
	for _, v := range volumes.directories {
		fsc = fsc.(sysfs.FSConfig).WithSysFSMount(v.tree, v.path)
	}
	ports := c.listen(compiled)
	if len(ports) > 0 {
		env = append(env, listenVariable+"="+describe(ports, firstDescriptor+1+len(volumes.directories)))
	}
	mc := wazero.NewModuleConfig().WithName("").WithStartFunctions().WithArgs(args...).WithFSConfig(fsc).
		WithStdin(stdio.In).WithStdout(stdio.Out).WithStderr(stdio.Err).
		WithSysWalltime().WithNanotime(host.Nanotime, 1).WithSysNanosleep().WithOsyield(runtime.Gosched).WithRandSource(rand.Reader)
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" && !strings.Contains(kv, "\x00") {
			mc = mc.WithEnv(k, v)
		}
	}
	wasm = nil //nolint:ineffassign,wastedassign // the collector's to take
	calm()
	instance, err := r.InstantiateModule(ctx, compiled, mc)
	if err != nil {
		return outcome(err)
	}
	if err := host.Listen(ctx, instance, addresses(ports)...); err != nil {
		return ExitCannotRun, err
	}
	for _, name := range start {
		if _, err := instance.ExportedFunction(name).Call(ctx); err != nil {
			return outcome(err)
		}
	}
	return 0, nil
}

// addresses are all of the pod's, at some ports.
func addresses(ports []Port) (out []string) {
	for _, p := range ports {
		out = append(out, net.JoinHostPort("", strconv.Itoa(p.Port)))
	}
	return out
}

// outcome is the exit code that an end of the module means.
func outcome(err error) (int, error) {
	var exit *sys.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.ExitCode() == sys.ExitCodeContextCanceled:
		return ExitOn(syscall.SIGTERM), nil
	case errors.As(err, &exit):
		return int(exit.ExitCode()) & 0xff, nil
	case strings.Contains(err.Error(), "not instantiated") || strings.Contains(err.Error(), "is not exported in module"):
		return ExitCannotRun, fmt.Errorf("the module imports what it is not given: %w", err)
	}
	return ExitTrap, fmt.Errorf("the module was ended by a trap: %w", err)
}

// entry are the functions that run the module: a command's _start, or for a reactor
// _initialize, and the export that the command names after a #.
func entry(m wazero.CompiledModule, export string) ([]string, error) {
	exports := m.ExportedFunctions()
	var start []string
	if export == "" {
		export = "_start"
	}
	if _, ok := exports["_initialize"]; ok && export != "_start" {
		start = append(start, "_initialize")
	}
	f, ok := exports[export]
	switch {
	case !ok && export == "_start":
		return nil, errors.New("the module does not export _start: it is no command; name the function of a reactor that shall run by the command MODULE#FUNCTION")
	case !ok:
		return nil, fmt.Errorf("the module does not export %q, which the command names", export)
	case len(f.ParamTypes()) > 0:
		return nil, fmt.Errorf("the module's function %q has parameters: one without any can be run", export)
	}
	return append(start, export), nil
}

const (
	listenVariable  = "WASMPLANE_LISTEN"
	firstDescriptor = 3 // after standard input and output
)

// listen are the ports that are listened on: none if the module cannot accept connections, so
// that nobody takes a port for served that nobody serves.
func (c Config) listen(m wazero.CompiledModule) []Port {
	for _, f := range m.ImportedFunctions() {
		if module, name, _ := f.Import(); module == wasi_snapshot_preview1.ModuleName && name == "sock_accept" {
			return c.Listen
		}
	}
	return nil
}

// describe tells a module the descriptors of its sockets: NAME=DESCRIPTOR, with commas between them.
func describe(ports []Port, first int) string {
	var out []string
	for i, p := range ports {
		name := p.Name
		if name == "" {
			name = fmt.Sprint(p.Port)
		}
		out = append(out, fmt.Sprintf("%s=%d", name, first+i))
	}
	return strings.Join(out, ",")
}

// ExitOn is the exit code of a process that a signal ends.
func ExitOn(s syscall.Signal) int { return exitSignal + int(s) }

// room is what the host's side may allocate before the collector runs.
const room = 32 << 20

// calm keeps the collector away while a module computes: it would wait for a function of the module to return,
// and everything else for it, such as the end on a signal. What the compiler left is returned first.
func calm() {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(int64(m.Sys-m.HeapReleased) + room)
}
