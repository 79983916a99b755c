// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host/guestturns"
	"github.com/wasmplane/wasmplane/plugins/host/linear"
	"github.com/wasmplane/wasmplane/plugins/host/printed"
)

// Instance is one running module. One call at a time: whoever holds it has it alone.
type Instance struct {
	beside  bool // beside those of the limits
	module  *Module
	mod     api.Module
	memory  api.Memory
	counter api.MutableGlobal
	alloc   api.Function
	callFn  api.Function
	extra   map[string]api.Function // exports looked up by Invoke

	ctx     callContext
	meter   meter
	turn    guestturns.Turn
	allowed allowance // of the call that runs
	warm    bool      // it has had its first call
	stack   [8]uint64
	out     printed.Output
	reply   []byte // of a host call whose answer did not fit

	data    any      // of the adapter, where the module speaks another ABI
	running []string // exports that run, the outer one first
	command *command // of a module that is run as one

	fakeClock  int64
	fakeRandom uint64

	linear  *linear.Allocator
	globals []savedGlobal // after start-up, where the plugin is isolated per call
	parts   *parts        // of a component
}

type savedGlobal struct {
	global api.MutableGlobal
	value  uint64
}

// Usage is what a call has cost.
type Usage struct {
	Fuel      int64
	HostCalls int64
	Memory    uint32 // bytes of linear memory when the call ended
	Duration  time.Duration
	Printed   string // the end of what it wrote to stdout and stderr, 4 KiB at most
}

// callContext is handed to the engine and comes back in host functions. It hides
// the request's own context from the engine, which would look up keys of its own in it.
type callContext struct {
	in      *Instance
	request context.Context
}

type instanceKey struct{}

func (callContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (callContext) Done() <-chan struct{}       { return nil }
func (callContext) Err() error                  { return nil }
func (c *callContext) Value(key any) any {
	if _, ok := key.(instanceKey); ok {
		return c.in
	}
	return nil
}

// over is the context of a call in a request.
func (c *callContext) over(request context.Context) context.Context {
	c.request = request
	return c
}

// instanceOf finds the instance that calls a host function. While a module's
// start function runs, the instance does not know its module yet.
func instanceOf(ctx context.Context, mod api.Module) *Instance {
	in, _ := ctx.Value(instanceKey{}).(*Instance)
	if in.mod == nil {
		in.bind(mod)
	}
	return in
}

func (in *Instance) bind(mod api.Module) {
	in.mod = mod
	in.memory = mod.Memory()
	in.counter, _ = mod.ExportedGlobal(fuel.ExportCounter).(api.MutableGlobal)
}

// moduleConfig is of every instance: unnamed, and nothing of it runs by itself. The engine's own source of random numbers is never
// read, as no functions of its WASI are linked (see wasi.go); left out, the engine would seed a generator of 5 KB for each instance.
var moduleConfig = wazero.NewModuleConfig().WithName("").WithStartFunctions().WithRandSource(rand.Reader)

// instantiate makes an instance within the start-up budget.
func (m *Module) instantiate(ctx context.Context) (*Instance, error) {
	start := time.Now()
	limits := m.opts.Limits
	in := &Instance{module: m, extra: map[string]api.Function{}, fakeRandom: 0x9e3779b97f4a7c15, allowed: limits.forStart()}
	in.out = printed.Output{Logger: m.host.cfg.Logger, Plugin: m.name, Rate: m.lines, Limit: limits.Log}
	in.ctx.in = in
	in.meter = meter{budget: limits.StartFuel, slice: sliceFirst, deadline: start.Add(limits.StartDeadline), lastPoint: start}
	in.linear = &linear.Allocator{Limit: uint64(limits.Memory)}
	within := experimental.WithMemoryAllocator(in.ctx.over(ctx), in.linear)
	if m.component != nil {
		return in, in.startComponent(ctx, within, start)
	}
	if m.opts.ABI != nil {
		within = experimental.WithImportResolver(within, m.host.resolver(m.opts.ABI))
	}
	mod, err := m.host.engine.Runtime().InstantiateModule(within, m.code, moduleConfig)
	if err != nil {
		in.giveTurn()
		return nil, in.startFault(err)
	}
	if in.mod == nil {
		in.bind(mod)
	}
	in.memory = mod.Memory()
	in.alloc, in.callFn = mod.ExportedFunction("alloc"), mod.ExportedFunction("call")
	if err := in.startUp(ctx, start); err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

// startUp runs what a module does before its first call: its initialiser, and
// the settings. Both count against the start-up budget.
func (in *Instance) startUp(ctx context.Context, start time.Time) error {
	m := in.module
	limits := m.opts.Limits
	in.begin(limits.StartFuel-in.used(), start, start.Add(limits.StartDeadline))
	in.ctx.request = ctx //nolint:fatcontext // the call's context, taken off when it ends
	defer in.finish()
	if err := in.initialize(ctx); err != nil {
		return err
	}
	if m.opts.Setup != nil {
		if err := m.opts.Setup(ctx, in); err != nil {
			return err
		}
	}
	if err := in.linear.Share(&m.shared); err != nil {
		return err
	}
	if !m.opts.PerCall {
		return nil
	}
	in.saveGlobals(in.mod)
	in.parts.save(in)
	return in.linear.Freeze()
}

// saveGlobals remembers what a module's mutable globals are.
func (in *Instance) saveGlobals(mod api.Module) {
	for i := 0; ; i++ {
		g, ok := mod.ExportedGlobal(fmt.Sprintf("%s%d", fuel.ExportGlobal, i)).(api.MutableGlobal)
		if !ok {
			return
		}
		in.globals = append(in.globals, savedGlobal{global: g, value: g.Get()})
	}
}

// initialize runs what the module's ABI says that comes first.
func (in *Instance) initialize(ctx context.Context) error {
	if abi := in.module.opts.ABI; abi != nil {
		if abi.Start == nil {
			return nil
		}
		return in.contain(func() error { return abi.Start(in) })
	}
	if f := in.mod.ExportedFunction("_initialize"); f != nil {
		if err := in.enter(ctx, f, nil); err != nil {
			return in.startFault(err)
		}
	}
	return nil
}

// enter runs an export of the guest.
func (in *Instance) enter(ctx context.Context, f api.Function, stack []uint64) error {
	return f.CallWithStack(in.ctx.over(ctx), stack)
}

// Call passes one input and returns a copy of the answer; nil stands for "no
// opinion". An error that the guest answered with is a *GuestError, everything
// else a *Fault, after which the instance must not be used again.
func (in *Instance) Call(ctx context.Context, op int32, input []byte) ([]byte, Usage, error) {
	limits := &in.module.opts.Limits
	return in.callWithin(ctx, op, input, limits.forCall())
}

// StartCall is Call with the start-up budget, for Setup functions.
func (in *Instance) StartCall(ctx context.Context, op int32, input []byte) ([]byte, Usage, error) {
	limits := &in.module.opts.Limits
	return in.callWithin(ctx, op, input, limits.forStart())
}

func (in *Instance) callWithin(ctx context.Context, op int32, input []byte, allowed allowance) (out []byte, u Usage, err error) {
	in.open(ctx, allowed)
	start := in.meter.lastPoint
	defer func() {
		u = in.spent(start)
	}()
	if in.parts != nil {
		out, err = in.parts.call(in, op, input) //nolint:contextcheck // the engine gets the account's, which has the caller's
		return out, u, err
	}
	at, err := in.write(ctx, input)
	if err != nil {
		return nil, u, err
	}
	in.stack[0], in.stack[1], in.stack[2] = uint64(uint32(op)), uint64(at), uint64(len(input))
	if err := in.enter(ctx, in.callFn, in.stack[:3]); err != nil {
		return nil, u, in.fault(err)
	}
	out, err = in.result(in.stack[0])
	return out, u, err
}

// Describe asks a module for its manifest.
func (in *Instance) Describe(ctx context.Context) ([]byte, error) {
	limits := &in.module.opts.Limits
	in.open(ctx, limits.forStart())
	defer in.finish()
	if in.parts != nil {
		return in.parts.describe(in) //nolint:contextcheck // as in callWithin
	}
	if err := in.enter(ctx, in.mod.ExportedFunction("describe"), in.stack[:1]); err != nil {
		return nil, in.fault(err)
	}
	return in.result(in.stack[0])
}

// Invoke calls an export other than those of every plugin, within the budget of
// a call; args are widened to u64. It returns the first result.
func (in *Instance) Invoke(ctx context.Context, name string, args ...uint64) (uint64, error) {
	f, ok := in.extra[name]
	if !ok {
		if f = in.mod.ExportedFunction(name); f == nil {
			return 0, &Fault{Plugin: in.module.name, Kind: Refused, Detail: fmt.Sprintf("it exports no function %s", name)}
		}
		in.extra[name] = f
	}
	if len(f.Definition().ParamTypes()) != len(args) || len(f.Definition().ResultTypes()) != 1 {
		return 0, &Fault{Plugin: in.module.name, Kind: Refused, Detail: fmt.Sprintf("its function %s has the wrong signature", name)}
	}
	limits := &in.module.opts.Limits
	in.open(ctx, limits.forCall())
	defer in.finish()
	copy(in.stack[:], args)
	if err := in.enter(ctx, f, in.stack[:max(1, len(args))]); err != nil {
		return 0, in.fault(err)
	}
	return in.stack[0], nil
}

// View returns n bytes of the guest's memory at an address, not copied: it is
// valid until the guest runs again.
func (in *Instance) View(at, n uint32) ([]byte, bool) { return in.memory.Read(at, n) }

// Memory is View of all of it.
func (in *Instance) Memory() []byte {
	b, _ := in.memory.Read(0, in.memory.Size()) // all of it is always there
	return b
}

// open begins an account for a call.
func (in *Instance) open(ctx context.Context, allowed allowance) {
	now := time.Now()
	deadline := now.Add(allowed.time)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	in.allowed, in.ctx.request = allowed, ctx
	in.begin(allowed.fuel, now, deadline)
}

// finish closes the account of a call.
func (in *Instance) finish() {
	in.giveTurn()
	in.ctx.request = nil //nolint:fatcontext // it is taken off, not put on
}

// write puts the input where the guest wants it.
func (in *Instance) write(ctx context.Context, input []byte) (uint32, error) {
	if int64(len(input)) > in.module.opts.Limits.Input {
		return 0, &Fault{Plugin: in.module.name, Kind: Refused, Detail: fmt.Sprintf("an input of %d bytes is more than %d", len(input),
			in.module.opts.Limits.Input)}
	}
	if len(input) == 0 {
		return 0, nil
	}
	in.stack[0] = uint64(len(input))
	if err := in.enter(ctx, in.alloc, in.stack[:1]); err != nil {
		return 0, in.fault(err)
	}
	at := uint32(in.stack[0])
	if at == 0 {
		return 0, &Fault{Plugin: in.module.name, Kind: Refused, Detail: fmt.Sprintf("it has no room for an input of %d bytes (limits.memory)",
			len(input))}
	}
	if !in.memory.Write(at, input) {
		return 0, in.badPointer("alloc", at, uint32(len(input)))
	}
	return at, nil
}

const errorBit = 1 << 31

// result copies out what ptr<<32|len points at; bit 31 of len marks an error.
func (in *Instance) result(packed uint64) ([]byte, error) {
	at, n := uint32(packed>>32), uint32(packed)
	failed := n&errorBit != 0
	n &^= errorBit
	if n == 0 && !failed {
		return nil, nil
	}
	if limit := in.module.opts.Limits.Output; int64(n) > limit {
		return nil, &Fault{Plugin: in.module.name, Kind: OutputSize, Detail: fmt.Sprintf("an answer of %d bytes is more than limits.output (%d)",
			n, limit)}
	}
	b, ok := in.memory.Read(at, n)
	if !ok {
		return nil, in.badPointer("call", at, n)
	}
	if failed {
		return nil, &GuestError{Plugin: in.module.name, Message: clip(string(b), 4096)}
	}
	return append([]byte(nil), b...), nil
}

func (in *Instance) badPointer(what string, at, n uint32) *Fault {
	return &Fault{
		Plugin: in.module.name, Kind: BadPointer, Err: errBadResult,
		Detail: fmt.Sprintf("%s returned %d bytes at %#x, which is outside of its memory of %d bytes", what, n, at, in.memory.Size()),
	}
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// restore puts an isolated instance back to what it was after start-up.
func (in *Instance) restore() error {
	if !in.module.opts.PerCall {
		return nil
	}
	for _, g := range in.globals {
		g.global.Set(g.value)
	}
	in.fakeClock, in.fakeRandom = 0, 0x9e3779b97f4a7c15
	in.parts.restore()
	return in.linear.Thaw()
}

// close frees everything. A large memory is freed within a turn (package guestturns), as it was used within
// one: freed outside, it would keep a second processor busy beside the next instance.
func (in *Instance) close() {
	if in.linear.Large() {
		defer in.module.host.turns.Hold()()
	}
	in.parts.close(in.module.host.base)
	_ = in.mod.Close(in.module.host.base) // frees memory; the engine reports nothing here
	in.linear.Close()
}

// sound says whether an instance may be used again after err.
func sound(err error) bool {
	var g *GuestError
	return err == nil || errors.As(err, &g)
}
