package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/wasmplane/wasmplane/plugins/fuel"
)

// Config configures a Host.
type Config struct {
	// CacheDir keeps compiled code between runs; it is made with mode 0700, as it
	// holds native code. Empty = nothing is kept.
	CacheDir string
	// Logger gets what plugins print, and failures in the background.
	Logger *slog.Logger
	// ModuleBytes bounds a module; default 32 MiB.
	ModuleBytes int64
	// CompileTimeout bounds a compilation; default 2 minutes. The compiler cannot
	// be interrupted: what takes longer is reported, and ends in the background.
	CompileTimeout time.Duration
	// Interpreter runs modules without compiling them: slower by two orders of
	// magnitude, for comparing engines.
	Interpreter bool
}

// Host is one engine with everything that its modules share.
type Host struct {
	cfg       Config
	cache     wazero.CompilationCache
	runtime   wazero.Runtime
	compiling chan struct{} // one at a time: the compiler takes all it can get
	reading   chan struct{} // one on each processor: code that was compiled before is only read
	jobs      sync.WaitGroup
	turns     *turns
	base      context.Context // carries the memory allocator's key and compiler settings only

	mu      sync.Mutex
	foreign map[string]*foreignImports // host modules of other ABIs, by the ABI's name
}

// features are what modules may use: everything that is standardised and that
// the rewriter covers.
const features = api.CoreFeaturesV2

// New makes a host. Close it after its modules.
func New(ctx context.Context, cfg Config) (*Host, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.ModuleBytes == 0 {
		cfg.ModuleBytes = 32 << 20
	}
	if cfg.CompileTimeout == 0 {
		cfg.CompileTimeout = 2 * time.Minute
	}
	h := &Host{cfg: cfg, compiling: make(chan struct{}, 1), reading: make(chan struct{}, runtime.GOMAXPROCS(0)), turns: newTurns()}
	rc := wazero.NewRuntimeConfigCompiler()
	if cfg.Interpreter {
		rc = wazero.NewRuntimeConfigInterpreter()
	} else if cfg.CacheDir != "" {
		if err := h.openCache(); err != nil {
			return nil, err
		}
		rc = rc.WithCompilationCache(h.cache)
	}
	h.base = experimental.WithCompilationWorkers(context.WithoutCancel(ctx), max(1, runtime.GOMAXPROCS(0)/2))
	h.runtime = wazero.NewRuntimeWithConfig(h.base, rc.WithCoreFeatures(features)) //nolint:contextcheck // base outlives the caller
	if err := h.defineHostModules(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// openCache makes sure that nobody else can put code where we would run it.
func (h *Host) openCache() error {
	for _, dir := range []string{h.cfg.CacheDir, h.meteredDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the directory of compiled plugins: %w", err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("protect the directory of compiled plugins: %w", err)
		}
	}
	if err := prune(h.cfg.CacheDir, cacheFull, cacheLeft); err != nil {
		h.cfg.Logger.Warn("could not clear out the directory of compiled plugins", "directory", h.cfg.CacheDir, "error", err)
	}
	cache, err := wazero.NewCompilationCacheWithDir(h.cfg.CacheDir)
	if err != nil {
		return fmt.Errorf("open the directory of compiled plugins %s: %w", h.cfg.CacheDir, err)
	}
	h.cache = cache
	return nil
}

func (h *Host) meteredDir() string { return filepath.Join(h.cfg.CacheDir, "metered") }

// Close waits for compilations and frees the engine.
func (h *Host) Close() error {
	h.jobs.Wait()
	err := h.runtime.Close(h.base)
	if h.cache != nil {
		err = errors.Join(err, h.cache.Close(h.base))
	}
	return err
}

// Options say how a module is to run.
type Options struct {
	Name   string // of the plugin, in errors and logs
	Limits Limits
	// PerCall puts memory and globals back to what they were after start-up, after each call.
	PerCall bool
	// Clock and Random give the guest the real ones.
	Clock, Random bool
	// ABI is what the module speaks; nil = the plugin ABI of sdk/spec.
	ABI *ABI
	// Funcs are the host functions that the operator granted, by name.
	Funcs map[string]Func
	// Setup is called with every new instance before it takes calls; it passes the settings.
	Setup func(ctx context.Context, in *Instance) error
}

// Compile checks, meters and compiles a module. It makes no instance.
func (h *Host) Compile(ctx context.Context, wasm []byte, o Options) (*Module, error) {
	if int64(len(wasm)) > h.cfg.ModuleBytes {
		return nil, fmt.Errorf("the module has %d bytes: at most %d are allowed", len(wasm), h.cfg.ModuleBytes)
	}
	o.Limits = o.Limits.WithDefaults()
	source, err := h.prepare(wasm, o)
	if err != nil {
		return nil, err
	}
	type result struct {
		code wazero.CompiledModule
		err  error
	}
	queue := h.compiling
	if source.kept() {
		queue = h.reading
	}
	select {
	case queue <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	done := make(chan result, 1)
	h.jobs.Go(func() {
		defer func() { <-queue }()
		code, err := h.compile(source, o)
		done <- result{code, err}
	})
	abandon := func() {
		h.jobs.Go(func() {
			if r := <-done; r.code != nil {
				_ = r.code.Close(h.base)
			}
		})
	}
	timeout := time.NewTimer(h.cfg.CompileTimeout)
	defer timeout.Stop()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, r.err
		}
		return newModule(h, r.code, o)
	case <-timeout.C:
		abandon()
		return nil, fmt.Errorf("compilation took longer than %s", h.cfg.CompileTimeout)
	case <-ctx.Done():
		abandon()
		return nil, ctx.Err()
	}
}

// source is a module that is to be compiled.
type source struct {
	wasm    []byte
	options fuel.Options
	path    string // where its metered form is kept; empty = nowhere
}

// kept says that the module was compiled before.
func (s *source) kept() bool {
	if s.path == "" {
		return false
	}
	_, err := os.Stat(s.path)
	return err == nil
}

// prepare makes a source of a module, in the form that its ABI is run in.
func (h *Host) prepare(wasm []byte, o Options) (*source, error) {
	if o.ABI != nil {
		if err := h.offer(o.ABI); err != nil {
			return nil, err
		}
		if o.ABI.ImportedMemory {
			own, err := fuel.OwnMemory(wasm)
			if err != nil {
				return nil, fmt.Errorf("not a valid WebAssembly module: %w", err)
			}
			wasm = own
		}
	}
	s := &source{wasm: wasm, options: fuel.Options{
		MemoryPages:   uint32(o.Limits.Memory >> 16),
		StackBytes:    o.Limits.Stack,
		ExportGlobals: o.PerCall,
	}}
	if h.cache != nil {
		s.path = filepath.Join(h.meteredDir(), fuel.Key(wasm, s.options))
	}
	return s, nil
}

func (h *Host) compile(s *source, o Options) (wazero.CompiledModule, error) {
	metered, err := h.metered(s)
	if err != nil {
		return nil, err
	}
	code, err := h.runtime.CompileModule(h.base, metered)
	if err != nil {
		return nil, fmt.Errorf("compile module: %w", err)
	}
	if err := checkShape(code, o.ABI); err != nil {
		_ = code.Close(h.base)
		return nil, err
	}
	return code, nil
}

// metered validates and rewrites, or takes what it made of the same bytes before.
func (h *Host) metered(s *source) ([]byte, error) {
	wasm, path := s.wasm, s.path
	if path != "" {
		if kept, ok := readSealed(path); ok {
			return kept, nil
		}
	}
	// First our own reader, which believes no length; then the engine's validator, which would
	// allocate what 34 hostile bytes ask for. Nothing is done with the first's result before the second agrees.
	metered, err := fuel.Rewrite(wasm, s.options)
	if errors.Is(err, fuel.ErrMalformed) {
		return nil, fmt.Errorf("not a valid WebAssembly module: %w", err)
	}
	if err != nil {
		return nil, err
	}
	if err := h.validate(wasm); err != nil {
		return nil, err
	}
	if path != "" {
		if err := writeSealed(path, metered); err != nil {
			h.cfg.Logger.Warn("could not keep a metered plugin module; the next start takes longer", "error", err)
		}
	}
	return metered, nil
}

// validate has the original checked by the engine, on the interpreter, which
// makes no native code of it: only a valid module may be rewritten.
func (h *Host) validate(wasm []byte) error {
	wasm, err := fuel.Strip(wasm)
	if err != nil {
		return err
	}
	r := wazero.NewRuntimeWithConfig(h.base, wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(features))
	defer func() { _ = r.Close(h.base) }()
	if _, err := r.CompileModule(h.base, wasm); err != nil {
		return fmt.Errorf("not a valid WebAssembly module: %w", err)
	}
	return nil
}

// readSealed reads a file that ends in the digest of what is before it.
func readSealed(path string) ([]byte, bool) {
	b, err := os.ReadFile(path)
	if err != nil || len(b) < sha256.Size {
		return nil, false
	}
	content, seal := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if sum := sha256.Sum256(content); !slices.Equal(sum[:], seal) {
		return nil, false
	}
	return content, true
}

func writeSealed(path string, content []byte) error {
	sum := sha256.Sum256(content)
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, werr := tmp.Write(append(slices.Clip(content), sum[:]...))
	if err := errors.Join(werr, tmp.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	if err := os.Rename(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// Digest is how a module is named: "sha256:...".
func Digest(wasm []byte) string {
	sum := sha256.Sum256(wasm)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// checkShape refuses modules that could not be called, and says what they lack.
func checkShape(code wazero.CompiledModule, abi *ABI) error {
	for _, f := range code.ImportedFunctions() {
		mod, name, _ := f.Import()
		if mod == fuel.ImportModule {
			continue
		}
		def, known := abi.function(mod, name)
		if !known && abi != nil {
			return fmt.Errorf("the module imports %s.%s, which modules of ABI %s are not given here", mod, name, abi.Name)
		}
		if !known {
			return fmt.Errorf("the module imports %s.%s, which no plugin is given: %s", mod, name, importHelp(mod))
		}
		if !slices.Equal(def.params, f.ParamTypes()) || !slices.Equal(def.results, f.ResultTypes()) {
			return fmt.Errorf("the module imports %s.%s with other parameters than it has", mod, name)
		}
	}
	if len(code.ImportedMemories()) > 0 {
		return errors.New("the module imports its memory: a plugin defines and exports its own (memory)")
	}
	if _, ok := code.ExportedMemories()["memory"]; !ok {
		return errors.New(`the module exports no memory named "memory"`)
	}
	if abi != nil {
		return abi.check(code)
	}
	exports := code.ExportedFunctions()
	if _, ok := exports["_start"]; ok && exports["_initialize"] == nil && exports["call"] == nil {
		return errors.New("the module is a command (it exports _start): build it as a reactor, in Go with -buildmode=c-shared")
	}
	for _, want := range requiredExports {
		f, ok := exports[want.name]
		if !ok {
			return fmt.Errorf("the module exports no function %s: it is no plugin of ABI 1 (sdk/spec/README.md)", want.name)
		}
		if !slices.Equal(f.ParamTypes(), want.params) || !slices.Equal(f.ResultTypes(), want.results) {
			return fmt.Errorf("the exported function %s has the wrong signature: expected %s", want.name, want.text)
		}
	}
	return nil
}

var requiredExports = []struct {
	name, text      string
	params, results []api.ValueType
}{
	{"describe", "describe() -> i64", nil, []api.ValueType{api.ValueTypeI64}},
	{"alloc", "alloc(length i32) -> i32", []api.ValueType{api.ValueTypeI32}, []api.ValueType{api.ValueTypeI32}},
	{"call", "call(op i32, ptr i32, len i32) -> i64", []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}, []api.ValueType{api.ValueTypeI64}},
}

func importHelp(mod string) string {
	switch {
	case mod == "env":
		return "an undefined symbol was probably left to the linker"
	case strings.HasPrefix(mod, "wasi"):
		return "only wasi_snapshot_preview1 is there, and of it what needs no files or network"
	}
	return "the host's one function is wasmplane.call"
}
