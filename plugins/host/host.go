// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/host/codes"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/host/fairqueue"
)

// Config configures a Host.
type Config struct {
	// CacheDir keeps compiled code between runs; it is made with mode 0700, as it
	// holds native code, and the key that authenticates it lies beside it. Empty = nothing is kept.
	CacheDir string
	// Logger gets what plugins print, and failures in the background.
	Logger *slog.Logger
	// ModuleBytes bounds a module; default 32 MiB.
	ModuleBytes int64
	// Compilation bounds the child process that compiles one module; TenantCompilation that
	// of a tenant's: by default half the memory and half the time.
	Compilation, TenantCompilation compiler.Limits
	// InProcess compiles in this process instead of a child, without a bound: for tests,
	// and for programs that run only what their user trusts.
	InProcess bool
	// Interpreter runs modules without compiling them: slower by two orders of
	// magnitude, for comparing engines. Like InProcess it reads them in this process.
	Interpreter bool
}

// Host is one engine with everything that its modules share.
type Host struct {
	cfg      Config
	compiler compiler.Compiler // nil with the interpreter
	tenants  compiler.Compiler // the same for tenants' modules
	queue    *fairqueue.Queue  // for the compiler
	store    *compiler.Store   // nil = nothing is kept
	stage    *compiler.Stage   // nil with the interpreter
	codes    codes.Set
	adopting chan struct{} // one on each processor
	runtime  wazero.Runtime
	turns    *turns
	base     context.Context // carries the memory allocator's key and compiler settings only
	stop     func()          // ends base's child life, under which modules are compiled
	life     context.Context

	mu      sync.Mutex
	closed  bool
	jobs    sync.WaitGroup             // compilations, begun under mu, and what watches idle instances
	modules map[*Module]struct{}       // those that are not closed
	foreign map[string]*foreignImports // host modules of other ABIs, by the ABI's name
	refused map[string]refusal         // modules that were too expensive, by key
}

// New makes a host. Close it after its modules.
func New(ctx context.Context, cfg Config) (*Host, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.ModuleBytes == 0 {
		cfg.ModuleBytes = 32 << 20
	}
	h := &Host{
		cfg: cfg, adopting: make(chan struct{}, runtime.GOMAXPROCS(0)), turns: newTurns(), queue: newQueue(),
		modules: map[*Module]struct{}{},
	}
	h.base = context.WithoutCancel(ctx)
	h.life, h.stop = context.WithCancel(h.base) // it ends with Close
	rc, err := h.engine()
	if err != nil {
		h.stop()
		return nil, err
	}
	h.runtime = wazero.NewRuntimeWithConfig(h.base, rc.WithCoreFeatures(compiler.Features)) //nolint:contextcheck // base outlives the caller
	if err := h.defineHostModules(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.jobs.Go(h.watchIdle)
	return h, nil
}

// newQueue: one module of an operator and one of a tenant are compiled at once, so that
// neither waits for the other.
func newQueue() *fairqueue.Queue {
	return fairqueue.New(fairqueue.Config{Operators: 1, Tenants: 1, PerTenant: 1, Waiting: 32, Patience: 10 * time.Minute})
}

// engine configures the engine, and what compiles for it.
func (h *Host) engine() (wazero.RuntimeConfig, error) {
	if h.cfg.Interpreter {
		return wazero.NewRuntimeConfigInterpreter(), nil
	}
	var err error
	h.compiler, h.tenants = compiler.InProcess{}, compiler.InProcess{}
	if !h.cfg.InProcess {
		if h.compiler, h.tenants, err = children(h.cfg.Compilation, h.cfg.TenantCompilation); err != nil {
			return nil, err
		}
	}
	if h.cfg.CacheDir != "" {
		if h.store, err = compiler.OpenStore(h.cfg.CacheDir); err != nil {
			return nil, err
		}
		if err := h.store.Prune(); err != nil {
			h.cfg.Logger.Warn("could not clear out the directory of compiled plugins", "directory", h.cfg.CacheDir, "error", err)
		}
	}
	if h.stage, err = compiler.NewStage(h.cfg.CacheDir); err != nil {
		return nil, err
	}
	return h.stage.Config(wazero.NewRuntimeConfigCompiler()), nil
}

// children are the compilers of operators' and of tenants' modules.
func children(operators, tenants compiler.Limits) (forOperators, forTenants compiler.Compiler, err error) {
	operators = operators.WithDefaults()
	if tenants.Memory == 0 {
		tenants.Memory = operators.Memory / 2
	}
	if tenants.CPU == 0 {
		tenants.CPU = operators.CPU / 2
	}
	first, err := compiler.NewChild(operators)
	if err != nil {
		return nil, nil, err
	}
	second, err := compiler.NewChild(tenants)
	return first, second, err
}

// Close ends compilations and frees the engine.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.jobs.Wait()
	err := h.runtime.Close(h.base)
	if h.stage != nil {
		err = errors.Join(err, h.stage.Close(h.base))
	}
	return err
}

// Digest is how a module is named: "sha256:...".
func Digest(wasm []byte) string {
	sum := sha256.Sum256(wasm)
	return "sha256:" + hex.EncodeToString(sum[:])
}
