// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/fuel"
	wasmformat "github.com/wasmplane/wasmplane/plugins/fuel/wasm"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/host/wasmengine"
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
		return nil, wasmformat.OverLimit("bytes of a module", "the module has %d bytes: at most %d are allowed", len(wasm), h.cfg.ModuleBytes)
	}
	o.Limits = o.Limits.WithDefaults()
	if !h.begin() {
		return nil, errClosed
	}
	defer h.jobs.Done()
	ctx, end := h.whileOpen(ctx)
	defer end()
	if o.ABI != nil {
		if err := h.offer(o.ABI); err != nil {
			return nil, err
		}
	}
	if binary.Is(wasm) {
		return h.compileComponent(ctx, wasm, o)
	}
	code, err := h.code(ctx, wasm, o, 0)
	if err != nil {
		return nil, err
	}
	if err := checkShape(code, o.ABI); err != nil {
		return nil, errors.Join(err, h.engine.Release(code))
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
// a module is compiled.
func (h *Host) Rego(ctx context.Context, p rego.Policy, o Options) ([]byte, error) {
	if !h.begin() {
		return nil, errClosed
	}
	defer h.jobs.Done()
	ctx, end := h.whileOpen(ctx)
	defer end()
	return h.engine.Rego(ctx, p, o.turn())
}

// whileOpen is a context that ends with the host, too.
func (h *Host) whileOpen(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.life, func() { cancel(errClosed) }) // the host's end cancels the caller's work
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// turn is the plugin's turn with the compiler.
func (o *Options) turn() wasmengine.Turn {
	progress := o.Progress
	if progress == nil {
		progress = func(string) {}
	}
	return wasmengine.Turn{Tenant: o.Tenant, Progress: progress}
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
	return h.engine.Compile(ctx, wasm, spec, o.turn())
}
