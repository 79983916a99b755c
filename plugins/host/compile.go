// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/rego"
)

// Options say how a module is to run.
type Options struct {
	Name   string // of the plugin, in errors and logs
	Tenant string // whose plugin it is, a namespace; "" = the operators'
	Limits Limits
	// PerCall puts memory and globals back to what they were after start-up, after each call.
	PerCall bool
	// Clock and Random give the guest the real ones.
	Clock, Random bool
	// ABI is what the module speaks; nil = the plugin ABI of sdk/spec.
	ABI *ABI
	// Funcs are the host functions that the operator granted, by name.
	Funcs map[string]Func
	// Progress is told what the module waits for, as a sentence goes on; nil = nobody is.
	Progress func(what string)
	// Setup is called with every new instance before it takes calls; it passes the settings.
	Setup func(ctx context.Context, in *Instance) error
}

// Compile checks, meters and compiles a module, in its turn. It makes no instance.
func (h *Host) Compile(ctx context.Context, wasm []byte, o Options) (*Module, error) {
	if int64(len(wasm)) > h.cfg.ModuleBytes {
		return nil, fmt.Errorf("the module has %d bytes: at most %d are allowed", len(wasm), h.cfg.ModuleBytes)
	}
	o.Limits = o.Limits.WithDefaults()
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if !h.begin() {
		return nil, errClosed
	}
	defer h.jobs.Done()
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.life, func() { cancel(errClosed) })() //nolint:contextcheck // the host's end cancels the caller's work
	if o.ABI != nil {
		if err := h.offer(o.ABI); err != nil {
			return nil, err
		}
	}
	if binary.Is(wasm) {
		return h.compileComponent(bounded, wasm, o)
	}
	code, err := h.code(bounded, wasm, o, 0)
	if err != nil {
		return nil, err
	}
	if err := checkShape(code, o.ABI); err != nil {
		return nil, errors.Join(err, h.codes.Release(h.base, code)) //nolint:contextcheck // also when the caller has given up
	}
	return newModule(h, code, o), nil
}

var errClosed = errors.New("the server is stopping")

// begin counts a compilation, unless the host has been closed.
func (h *Host) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.jobs.Add(1)
	}
	return !h.closed
}

// Rego compiles a policy's text into a module, in its turn and within the same limits as
// a module is compiled. The module of a text is kept as compiled code is.
func (h *Host) Rego(ctx context.Context, p rego.Policy, o Options) ([]byte, error) {
	if !h.begin() {
		return nil, errClosed
	}
	defer h.jobs.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.life, func() { cancel(errClosed) })() //nolint:contextcheck // the host's end cancels the caller's work
	if h.cfg.Interpreter {
		return rego.Compile(ctx, p)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	key, err := p.Key()
	if err != nil {
		return nil, err
	}
	if wasm := h.keptRego(key); wasm != nil {
		return wasm, nil
	}
	return inTurn(ctx, h, o, func(c compiler.Compiler) ([]byte, error) {
		if wasm := h.keptRego(key); wasm != nil { // since its turn was awaited
			return wasm, nil
		}
		wasm, err := c.Rego(ctx, p)
		if err == nil {
			h.keep(ctx, key, &compiler.Artifact{Metered: wasm})
		}
		return wasm, err
	})
}

// keptRego is the module of a policy that was compiled before, or nil.
func (h *Host) keptRego(key string) []byte {
	if h.store == nil {
		return nil
	}
	if a := h.store.Get(key); a != nil {
		return a.Metered
	}
	return nil
}

// keep keeps what was compiled for the next start.
func (h *Host) keep(ctx context.Context, key string, a *compiler.Artifact) {
	if h.store == nil {
		return
	}
	if err := h.store.Put(key, a); err != nil {
		h.cfg.Logger.WarnContext(ctx, "could not keep a compiled plugin module; the next start takes longer", "error", err)
	}
}

// code is the module in the form that the engine runs; it is one of so many of a component, or (0) of none.
func (h *Host) code(ctx context.Context, wasm []byte, o Options, parts int) (wazero.CompiledModule, error) {
	spec := compiler.Spec{OwnMemory: o.ABI != nil && o.ABI.ImportedMemory, Fuel: fuel.Options{
		MemoryPages:   uint32(o.Limits.Memory >> 16),
		StackBytes:    o.Limits.Stack,
		ExportGlobals: o.PerCall,
		Shared:        parts > 0,
	}}
	if parts > 0 { // their tables together
		spec.Fuel.TableEntries = uint32(min(componentTable/parts, 1<<18))
	}
	if h.cfg.Interpreter {
		return h.interpret(wasm, spec)
	}
	key := fmt.Sprintf("%s %t %s %x", fuel.Key(wasm, spec.Fuel), spec.OwnMemory, h.stage.Version(), uint64(compiler.Features))
	if code := h.codes.Take(key); code != nil {
		return code, nil
	}
	if code, err := h.kept(ctx, key); code != nil || err != nil {
		return h.shared(key, code, err)
	}
	if err := h.refusedBefore(key, o.Tenant); err != nil {
		return nil, err
	}
	code, err := inTurn(ctx, h, o, func(c compiler.Compiler) (wazero.CompiledModule, error) {
		if code := h.codes.Take(key); code != nil { // since its turn was awaited
			return code, nil
		}
		a, err := c.Compile(ctx, wasm, spec)
		if err != nil {
			return nil, err
		}
		code, err := h.adopt(ctx, a)
		if err == nil {
			h.keep(ctx, key, a)
		}
		return h.shared(key, code, err)
	})
	if err != nil {
		h.remember(key, o.Tenant, err)
	}
	return code, err
}

// shared is code that whoever compiles the same module meanwhile runs too.
func (h *Host) shared(key string, code wazero.CompiledModule, err error) (wazero.CompiledModule, error) {
	if err != nil {
		return nil, err
	}
	return h.codes.Put(h.base, key, code)
}

// inTurn has the compiler do something when its turn has come.
func inTurn[T any](ctx context.Context, h *Host, o Options, do func(compiler.Compiler) (T, error)) (T, error) {
	o.Progress("waiting for its turn to be compiled")
	leave, err := h.queue.Enter(ctx, o.Tenant)
	if err != nil {
		var none T
		return none, fmt.Errorf("waiting for its turn to be compiled: %w", err)
	}
	defer leave()
	o.Progress("being compiled")
	if o.Tenant != "" {
		return do(h.tenants)
	}
	return do(h.compiler)
}

// kept takes over what was compiled in an earlier run; nil where there is nothing of use.
func (h *Host) kept(ctx context.Context, key string) (wazero.CompiledModule, error) {
	if h.store == nil {
		return nil, nil
	}
	a := h.store.Get(key)
	if a == nil {
		return nil, nil
	}
	code, err := h.adopt(ctx, a)
	if errors.Is(err, compiler.ErrNotCompiled) { // for another processor
		h.store.Remove(key)
		return nil, nil
	}
	return code, err
}

// adopt has the engine take compiled code over. It never compiles.
func (h *Host) adopt(ctx context.Context, a *compiler.Artifact) (wazero.CompiledModule, error) {
	select {
	case h.adopting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-h.adopting }()
	code, err := h.stage.Adopt(h.base, h.runtime, a) //nolint:contextcheck // what is adopted outlives the caller
	if err != nil {
		return nil, fmt.Errorf("take the compiled module over: %w", err)
	}
	return code, nil
}

// interpret prepares a module for the interpreter, in this process.
func (h *Host) interpret(wasm []byte, s compiler.Spec) (wazero.CompiledModule, error) {
	metered, err := s.Meter(h.base, wasm, h.validate)
	if err != nil {
		return nil, err
	}
	code, err := h.runtime.CompileModule(h.base, metered)
	if err != nil {
		return nil, fmt.Errorf("prepare module: %w", err)
	}
	return code, nil
}

// validate has the interpreter check a module: where it runs, there may be no compiler.
func (h *Host) validate(ctx context.Context, wasm []byte) error {
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

// refusal is why a module was too expensive to compile, and until when that holds.
type refusal struct {
	err   error
	until time.Time
}

// A module that was too expensive is not compiled again for some time: whoever loads
// plugins tries again what failed.
const (
	refusalHolds = 10 * time.Minute
	mostRefusals = 1000
)

// refusedBefore is the error with which a module was refused lately. Tenants' limits are
// others than operators'.
func (h *Host) refusedBefore(key, tenant string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.refused[refusalKey(key, tenant)]; ok && time.Now().Before(r.until) {
		return r.err
	}
	return nil
}

func (h *Host) remember(key, tenant string, err error) {
	var too *compiler.Exceeded
	if !errors.As(err, &too) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused == nil || len(h.refused) >= mostRefusals {
		h.refused = map[string]refusal{}
	}
	h.refused[refusalKey(key, tenant)] = refusal{err: err, until: time.Now().Add(refusalHolds)}
}

func refusalKey(key, tenant string) string { return fmt.Sprint(tenant != "", " ", key) }
