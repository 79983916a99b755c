// SPDX-License-Identifier: Apache-2.0

package wasmengine

import (
	"context"
	"errors"
	"fmt"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/rego"
)

// Turn says for whom something is compiled.
type Turn struct {
	Tenant string // a namespace; "" = the operators
	// Progress is told what the compilation waits for, as a sentence goes on.
	Progress func(what string)
}

// Compile returns the module in the form that the engine runs: code that is in use already, that
// was kept by an earlier run, or that is compiled now, in its turn. Release it after use.
func (e *Engine) Compile(ctx context.Context, wasm []byte, spec compiler.Spec, t Turn) (wazero.CompiledModule, error) {
	if e.cfg.Interpreter {
		return e.interpret(wasm, spec)
	}
	key := fmt.Sprintf("%s %t %s %x", fuel.Key(wasm, spec.Fuel), spec.OwnMemory, e.stage.Version(), uint64(compiler.Features))
	if code := e.codes.Take(key); code != nil {
		return code, nil
	}
	if code, err := e.kept(ctx, key); code != nil || err != nil {
		return e.shared(key, code, err)
	}
	if err := e.refused.find(key, t.Tenant); err != nil {
		return nil, err
	}
	code, err := inTurn(ctx, e, t, func(c compiler.Compiler) (wazero.CompiledModule, error) {
		if code := e.codes.Take(key); code != nil { // since its turn was awaited
			return code, nil
		}
		a, err := c.Compile(ctx, wasm, spec)
		if err != nil {
			return nil, err
		}
		code, err := e.adopt(ctx, a)
		if err == nil {
			e.keep(ctx, key, a)
		}
		return e.shared(key, code, err)
	})
	if err != nil {
		e.refused.add(key, t.Tenant, err)
	}
	return code, err
}

// Rego compiles a policy's text into a module, in its turn and within the same limits as
// a module is compiled. The module of a text is kept as compiled code is.
func (e *Engine) Rego(ctx context.Context, p rego.Policy, t Turn) ([]byte, error) {
	if e.cfg.Interpreter {
		return rego.Compile(ctx, p)
	}
	key, err := p.Key()
	if err != nil {
		return nil, err
	}
	if wasm := e.keptRego(key); wasm != nil {
		return wasm, nil
	}
	return inTurn(ctx, e, t, func(c compiler.Compiler) ([]byte, error) {
		if wasm := e.keptRego(key); wasm != nil { // since its turn was awaited
			return wasm, nil
		}
		wasm, err := c.Rego(ctx, p)
		if err == nil {
			e.keep(ctx, key, &compiler.Artifact{Metered: wasm})
		}
		return wasm, err
	})
}

// inTurn has the compiler do something when its turn has come.
func inTurn[T any](ctx context.Context, e *Engine, t Turn, do func(compiler.Compiler) (T, error)) (T, error) {
	t.Progress("waiting for its turn to be compiled")
	place, err := e.queue.Take(ctx, t.Tenant)
	if err != nil {
		var none T
		return none, fmt.Errorf("waiting for its turn to be compiled: %w", err)
	}
	defer place.Leave()
	t.Progress("being compiled")
	if t.Tenant != "" {
		return do(e.tenants.InTurn(place))
	}
	return do(e.compiler)
}

// shared is code that whoever compiles the same module meanwhile runs too.
func (e *Engine) shared(key string, code wazero.CompiledModule, err error) (wazero.CompiledModule, error) {
	if err != nil {
		return nil, err
	}
	return e.codes.Put(e.base, key, code)
}

// keptRego is the module of a policy that was compiled before, or nil.
func (e *Engine) keptRego(key string) []byte {
	if e.store == nil {
		return nil
	}
	if a := e.store.Get(key); a != nil {
		return a.Metered
	}
	return nil
}

// keep keeps what was compiled for the next start.
func (e *Engine) keep(ctx context.Context, key string, a *compiler.Artifact) {
	if e.store == nil {
		return
	}
	if err := e.store.Put(key, a); err != nil {
		e.cfg.Logger.WarnContext(ctx, "could not keep a compiled plugin module; the next start takes longer", "error", err)
	}
}

// kept takes over what was compiled in an earlier run; nil where there is nothing of use.
func (e *Engine) kept(ctx context.Context, key string) (wazero.CompiledModule, error) {
	if e.store == nil {
		return nil, nil
	}
	a := e.store.Get(key)
	if a == nil {
		return nil, nil
	}
	code, err := e.adopt(ctx, a)
	if errors.Is(err, compiler.ErrNotCompiled) { // for another processor
		e.store.Remove(key)
		return nil, nil
	}
	return code, err
}

// adopt has the engine take compiled code over. It never compiles.
func (e *Engine) adopt(ctx context.Context, a *compiler.Artifact) (wazero.CompiledModule, error) {
	select {
	case e.adopting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-e.adopting }()
	code, err := e.stage.Adopt(e.base, e.runtime, a) //nolint:contextcheck // what is adopted outlives the caller
	if err != nil {
		return nil, fmt.Errorf("take the compiled module over: %w", err)
	}
	return code, nil
}

// interpret prepares a module for the interpreter, in this process.
func (e *Engine) interpret(wasm []byte, s compiler.Spec) (wazero.CompiledModule, error) {
	metered, err := s.Meter(e.base, wasm, validate)
	if err != nil {
		return nil, err
	}
	code, err := e.runtime.CompileModule(e.base, metered)
	if err != nil {
		return nil, fmt.Errorf("prepare module: %w", err)
	}
	return code, nil
}

// validate has the interpreter check a module: where it runs, there may be no compiler.
func validate(ctx context.Context, wasm []byte) error {
	wasm, err := fuel.Strip(wasm)
	if err != nil {
		return err
	}
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(compiler.Features))
	defer func() { _ = r.Close(ctx) }()
	if _, err := r.CompileModule(ctx, wasm); err != nil {
		return fmt.Errorf("not a valid WebAssembly module: %w", err)
	}
	return nil
}
