// SPDX-License-Identifier: Apache-2.0

// Package wasmengine is wazero's runtime with all that brings code into it: the queue of
// compilations, the processes that compile, what they made before, and what they refused.
package wasmengine

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/host/codes"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/host/fairqueue"
)

// Config configures an Engine. Its fields are those of host.Config.
type Config struct {
	CacheDir                       string // "" = nothing is kept
	Logger                         *slog.Logger
	Compilation, TenantCompilation compiler.Limits
	InProcess, Interpreter         bool
}

// Engine compiles modules and runs them.
type Engine struct {
	cfg      Config
	base     context.Context   // what code is compiled under that outlives its first caller
	compiler compiler.Compiler // nil with the interpreter
	tenants  compiler.Compiler // the same for tenants' modules
	queue    *fairqueue.Queue  // for the compiler
	store    *compiler.Store   // nil = nothing is kept
	stage    *compiler.Stage   // nil with the interpreter
	codes    codes.Set
	adopting chan struct{} // one on each processor
	runtime  wazero.Runtime
	refused  refusals
}

// New makes an engine. Code that it compiles carries the values of base. Close it after
// what runs on it.
func New(base context.Context, cfg Config) (*Engine, error) {
	e := &Engine{cfg: cfg, base: base, adopting: make(chan struct{}, runtime.GOMAXPROCS(0)), queue: newQueue()}
	rc, err := e.configure()
	if err != nil {
		return nil, err
	}
	e.runtime = wazero.NewRuntimeWithConfig(base, rc.WithCoreFeatures(compiler.Features))
	return e, nil
}

// newQueue: one module of an operator and one of a tenant are compiled at once, so that
// neither waits for the other. Two more of other tenants rest with their memory.
func newQueue() *fairqueue.Queue {
	return fairqueue.New(fairqueue.Config{Operators: 1, Tenants: 1, PerTenant: 1, Waiting: 32, Patience: 10 * time.Minute, Paused: 2})
}

// configure makes what compiles, and returns the configuration of what runs.
func (e *Engine) configure() (wazero.RuntimeConfig, error) {
	if e.cfg.Interpreter {
		return wazero.NewRuntimeConfigInterpreter(), nil
	}
	var err error
	e.compiler, e.tenants = compiler.InProcess{}, compiler.InProcess{}
	if !e.cfg.InProcess {
		if e.compiler, e.tenants, err = children(e.cfg.Compilation, e.cfg.TenantCompilation); err != nil {
			return nil, err
		}
	}
	if e.cfg.CacheDir != "" {
		if e.store, err = compiler.OpenStore(e.cfg.CacheDir); err != nil {
			return nil, err
		}
		if err := e.store.Prune(); err != nil {
			e.cfg.Logger.Warn("could not clear out the directory of compiled plugins", "directory", e.cfg.CacheDir, "error", err)
		}
	}
	if e.stage, err = compiler.NewStage(e.cfg.CacheDir); err != nil {
		return nil, err
	}
	return e.stage.Config(wazero.NewRuntimeConfigCompiler()), nil
}

// largeModules is how many times its limits the compiler of operators' modules may take for a large one: 1.5 GiB
// and a minute by default, for one of more than 4 MiB. Tenants have no more for a large module.
const largeModules = 3

// children are the compilers of operators' and of tenants' modules.
func children(operators, tenants compiler.Limits) (forOperators, forTenants compiler.Compiler, err error) {
	operators = operators.WithDefaults()
	if tenants.Memory == 0 {
		tenants.Memory = operators.Memory / 2
	}
	if tenants.CPU == 0 {
		tenants.CPU = operators.CPU / 2
	}
	if operators.Most == 0 {
		operators.Most = largeModules
	}
	first, err := compiler.NewChild(operators)
	if err != nil {
		return nil, nil, err
	}
	second, err := compiler.NewChild(tenants)
	return first, second, err
}

// Runtime is where compiled code is instantiated.
func (e *Engine) Runtime() wazero.Runtime { return e.runtime }

// Release ends one user's use of code that Compile returned.
func (e *Engine) Release(code wazero.CompiledModule) error { return e.codes.Release(e.base, code) }

// Codes is how many different modules are in use.
func (e *Engine) Codes() int { return e.codes.Len() }

// Close frees the engine. No compilation may be under way.
func (e *Engine) Close() error {
	err := e.runtime.Close(e.base)
	if e.stage != nil {
		err = errors.Join(err, e.stage.Close(e.base))
	}
	return err
}
