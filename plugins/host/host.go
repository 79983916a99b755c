// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"

	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/host/guestturns"
	"github.com/wasmplane/wasmplane/plugins/host/wasmengine"
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
	cfg    Config
	engine *wasmengine.Engine
	turns  *guestturns.Turns
	base   context.Context // carries the memory allocator's key and compiler settings only
	stop   func()          // ends base's child life, under which modules are compiled
	life   context.Context

	mu      sync.Mutex
	closed  bool
	jobs    sync.WaitGroup             // compilations, begun under mu, and what watches idle instances
	modules map[*Module]struct{}       // those that are not closed
	foreign map[string]*foreignImports // host modules of other ABIs, by the ABI's name
}

// New makes a host. Close it after its modules.
func New(ctx context.Context, cfg Config) (*Host, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.ModuleBytes == 0 {
		cfg.ModuleBytes = 32 << 20
	}
	h := &Host{cfg: cfg, turns: guestturns.New(), modules: map[*Module]struct{}{}}
	h.base = context.WithoutCancel(ctx)
	h.life, h.stop = context.WithCancel(h.base) // it ends with Close
	var err error
	h.engine, err = wasmengine.New(h.base, wasmengine.Config{ //nolint:contextcheck // base outlives the caller
		CacheDir: cfg.CacheDir, Logger: cfg.Logger, Compilation: cfg.Compilation, TenantCompilation: cfg.TenantCompilation,
		InProcess: cfg.InProcess, Interpreter: cfg.Interpreter,
	})
	if err != nil {
		h.stop()
		return nil, err
	}
	if err := h.defineHostModules(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.jobs.Go(h.watchIdle)
	return h, nil
}

// Close ends compilations and frees the engine.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.jobs.Wait()
	return h.engine.Close()
}

// Digest is how a module is named: "sha256:...".
func Digest(wasm []byte) string {
	sum := sha256.Sum256(wasm)
	return "sha256:" + hex.EncodeToString(sum[:])
}
