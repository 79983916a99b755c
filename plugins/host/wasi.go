// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host/preview1"
)

// hostFunction is one function that modules may import.
type hostFunction struct {
	params, results []api.ValueType
	cost            int64 // fuel for each call, besides what it charges by size
	run             func(in *Instance, stack []uint64)
}

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

// hostFunctions is everything that a module can import, by "module.name".
var hostFunctions = func() map[string]hostFunction {
	all := map[string]hostFunction{
		"wasmplane.call": {params: []api.ValueType{i32, i32, i32, i32, i32, i32}, results: []api.ValueType{i64}, cost: 100, run: hostCall},
		"env.abort":      {params: []api.ValueType{i32, i32, i32, i32}, run: abort},
	}
	for _, module := range []string{preview1.Module, preview1.Unstable} {
		for name, f := range preview1.Functions(module) {
			all[module+"."+name] = hostFunction{params: f.Params, results: f.Results, cost: f.Cost, run: func(in *Instance, s []uint64) {
				f.Run(wasiGuest{in}, s)
			}}
		}
	}
	return all
}()

// defineHostModules makes the modules that guests import from. They are stateless:
// the instance that calls is found in the context of its call.
func (h *Host) defineHostModules() error {
	yield := h.engine.Runtime().NewHostModuleBuilder(fuel.ImportModule)
	yield.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
		instanceOf(ctx, mod).safePoint(uint32(s[0]))
	}), []api.ValueType{i32}, nil).Export(fuel.ImportYield)
	if _, err := yield.Instantiate(h.base); err != nil {
		return fmt.Errorf("define %s: %w", fuel.ImportModule, err)
	}
	for _, module := range []string{preview1.Module, "wasmplane", "env"} {
		b := h.engine.Runtime().NewHostModuleBuilder(module)
		for name, f := range hostFunctions {
			if len(name) <= len(module) || name[:len(module)+1] != module+"." {
				continue
			}
			b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
				in := instanceOf(ctx, mod)
				in.enterHost(f.cost)
				f.run(in, s)
			}), f.params, f.results).Export(name[len(module)+1:])
		}
		if _, err := b.Instantiate(h.base); err != nil {
			return fmt.Errorf("define %s: %w", module, err)
		}
	}
	return nil
}

// wasiGuest is an instance as WASI's functions see it.
type wasiGuest struct{ in *Instance }

// The methods of preview1.Guest.
func (g wasiGuest) Linear() api.Memory           { return g.in.memory }
func (g wasiGuest) Charge(units int64)           { g.in.charge(units) }
func (g wasiGuest) Clock() int64                 { return g.in.now() }
func (g wasiGuest) Pass(d time.Duration)         { g.in.fakeClock += int64(d) }
func (g wasiGuest) Fill(b []byte)                { g.in.random(b) }
func (g wasiGuest) Standard() *preview1.Standard { return g.in.command.standard() }

func (g wasiGuest) Output(fd uint32, data []byte) {
	if g.in.command != nil && fd == 1 {
		g.in.stdout(data)
	} else {
		g.in.printed(data)
	}
}

func (g wasiGuest) Exit(code uint32) {
	panic(&stop{kind: Exit, detail: fmt.Sprintf("it exited with code %d", code), code: code})
}

// fakeEpoch is what a clock that was not granted starts at: 2024-01-01T00:00:00Z.
const fakeEpoch = 1704067200 * int64(time.Second)

// now is the granted clock, or one that goes on by a microsecond at each look.
func (in *Instance) now() int64 {
	if in.module.opts.Clock {
		return time.Now().UnixNano()
	}
	in.fakeClock += 1000
	return fakeEpoch + in.fakeClock
}

// random fills b with the granted randomness, or with the same numbers each time.
func (in *Instance) random(b []byte) {
	if in.module.opts.Random {
		_, _ = crand.Read(b) // never fails
		return
	}
	for i := range b {
		in.fakeRandom ^= in.fakeRandom << 13
		in.fakeRandom ^= in.fakeRandom >> 7
		in.fakeRandom ^= in.fakeRandom << 17
		b[i] = byte(in.fakeRandom >> 32)
	}
}

// abort is what AssemblyScript calls where its code throws: message and file
// are UTF-16 strings with their length in bytes before them.
func abort(in *Instance, s []uint64) {
	panic(&stop{kind: Trap, detail: fmt.Sprintf("abort: %s at %s:%d:%d",
		in.utf16(uint32(s[0])), in.utf16(uint32(s[1])), uint32(s[2]), uint32(s[3]))})
}

func (in *Instance) utf16(at uint32) string {
	if at < 4 {
		return ""
	}
	n, ok := in.memory.ReadUint32Le(at - 4)
	if !ok || n > 1024 {
		return ""
	}
	b, ok := in.memory.Read(at, n)
	if !ok {
		return ""
	}
	var out []rune
	for i := 0; i+1 < len(b); i += 2 {
		out = append(out, rune(binary.LittleEndian.Uint16(b[i:])))
	}
	return string(out)
}
