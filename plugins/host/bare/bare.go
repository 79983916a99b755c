// SPDX-License-Identifier: Apache-2.0

// Package bare calls a waPC guest with the engine and nothing else: no fuel, deadline,
// pool, limits, or policy. It is what a benchmark takes off to see what the host
// and the adapters add, and of no other use: what it runs is not contained.
package bare

import (
	"context"
	"errors"
	"fmt"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
)

// Guest is a waPC guest, for one caller at a time.
type Guest struct {
	runtime wazero.Runtime
	call    api.Function

	operation, payload []byte
	response, failure  []byte
}

// New compiles a guest and starts it.
func New(ctx context.Context, wasm []byte) (*Guest, error) {
	g := &Guest{runtime: wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())}
	if err := g.start(ctx, wasm); err != nil {
		return nil, errors.Join(err, g.Close(ctx))
	}
	return g, nil
}

func (g *Guest) start(ctx context.Context, wasm []byte) error {
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, g.runtime); err != nil {
		return fmt.Errorf("define WASI: %w", err)
	}
	define := func(b wazero.HostModuleBuilder, name string, params int, f func(m api.Memory, p []uint64)) wazero.HostModuleBuilder {
		run := api.GoModuleFunc(func(_ context.Context, m api.Module, stack []uint64) { f(m.Memory(), stack) })
		types := make([]api.ValueType, params)
		for i := range types {
			types[i] = api.ValueTypeI32
		}
		return b.NewFunctionBuilder().WithGoModuleFunction(run, types, nil).Export(name)
	}
	b := g.runtime.NewHostModuleBuilder("wapc")
	b = define(b, "__guest_request", 2, func(m api.Memory, p []uint64) {
		m.Write(uint32(p[0]), g.operation)
		m.Write(uint32(p[1]), g.payload)
	})
	b = define(b, "__guest_response", 2, func(m api.Memory, p []uint64) { g.response = copied(m, p) })
	b = define(b, "__guest_error", 2, func(m api.Memory, p []uint64) { g.failure = copied(m, p) })
	if _, err := b.Instantiate(ctx); err != nil {
		return fmt.Errorf("define waPC: %w", err)
	}
	m, err := g.runtime.InstantiateWithConfig(ctx, wasm, wazero.NewModuleConfig().WithStartFunctions("_start", "_initialize", "wapc_init"))
	if err != nil {
		return fmt.Errorf("start the guest: %w", err)
	}
	if g.call = m.ExportedFunction("__guest_call"); g.call == nil {
		return errors.New("the guest exports no __guest_call")
	}
	return nil
}

func copied(m api.Memory, p []uint64) []byte {
	b, _ := m.Read(uint32(p[0]), uint32(p[1])) // what lies outside of the memory reads as nothing
	return append([]byte(nil), b...)
}

// Call makes one call.
func (g *Guest) Call(ctx context.Context, operation string, payload []byte) ([]byte, error) {
	g.operation, g.payload, g.response, g.failure = []byte(operation), payload, nil, nil
	out, err := g.call.Call(ctx, uint64(len(operation)), uint64(len(payload)))
	if err != nil {
		return nil, err
	}
	if out[0] != 1 {
		return nil, fmt.Errorf("%s: %s", operation, g.failure)
	}
	return g.response, nil
}

// Close frees the engine.
func (g *Guest) Close(ctx context.Context) error { return g.runtime.Close(ctx) }
