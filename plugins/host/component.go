// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host/world"
)

// component is a compiled component: its core modules share one meter, which is a module as well.
type component struct {
	world  *world.World
	linked *link.Linked
	meter  wazero.CompiledModule
	codes  []wazero.CompiledModule
}

// parts is what an instance has of a component. Its methods may be called on nil, for an instance of a module.
type parts struct {
	*link.Instance
	world  *world.World
	guest  *world.Guest
	before *link.State
}

// compileComponent compiles each core module of a component as a module is, in its turn.
func (h *Host) compileComponent(ctx context.Context, wasm []byte, o Options) (*Module, error) {
	if o.ABI != nil {
		return nil, fmt.Errorf("abi: %s: the module is a component, which speaks %s (sdk/wit): leave abi out", o.ABI.Name, world.Package)
	}
	decoded, _, err := binary.Decode(wasm)
	if err != nil {
		return nil, err
	}
	program, err := link.Plan(decoded)
	if err != nil {
		return nil, err
	}
	c := &component{}
	if c.world, err = world.New(program); err != nil {
		return nil, err
	}
	modules, err := program.Modules()
	if err != nil {
		return nil, err
	}
	if err := h.compileParts(ctx, c, program, modules, o); err != nil {
		return nil, errors.Join(err, c.close(h)) // also when the caller has given up
	}
	m := newModule(h, nil, o)
	m.component = c
	return m, nil
}

func (h *Host) compileParts(ctx context.Context, c *component, p *link.Program, modules [][]byte, o Options) error {
	var bytes int64
	for i, m := range modules {
		// The same module in another place is compiled once more.
		if bytes += int64(len(m)); bytes > 2*h.cfg.ModuleBytes {
			return fmt.Errorf("the component's core modules have more than %d bytes with all their instances", 2*h.cfg.ModuleBytes)
		}
		code, err := h.code(ctx, m, o, len(modules))
		if err != nil {
			return fmt.Errorf("core module %d of %d of the component: %w", i+1, len(modules), err)
		}
		c.codes = append(c.codes, code)
	}
	var err error
	if c.meter, err = h.engine.Runtime().CompileModule(h.base, fuel.Meter(o.Limits.Stack)); err != nil { //nolint:contextcheck // it outlives the caller
		return fmt.Errorf("make the component's meter: %w", err)
	}
	c.linked, err = link.Link(h.base, h.engine.Runtime(), p, c.codes, c.world) //nolint:contextcheck // it outlives the caller
	return err
}

// close frees what was compiled.
func (c *component) close(h *Host) error {
	var err error
	if c.linked != nil {
		err = c.linked.Close(h.base)
	}
	for _, code := range append(c.codes, c.meter) {
		if code != nil {
			err = errors.Join(err, h.engine.Release(code))
		}
	}
	return err
}

// startComponent makes the meter of an instance and then the component's core instances.
func (in *Instance) startComponent(ctx, within context.Context, start time.Time) error {
	c := in.module.component
	mod, err := in.module.host.engine.Runtime().InstantiateModule(within, c.meter, moduleConfig)
	if err != nil {
		return in.startFault(err)
	}
	in.mod, in.memory = mod, mod.Memory()
	in.counter, _ = mod.ExportedGlobal(fuel.ImportCounter).(api.MutableGlobal)
	in.parts = &parts{world: c.world, guest: &world.Guest{Services: guestServices{in}}}
	cfg := link.Config{Account: in, Data: in.parts.guest, Resolve: in.resolveMeter}
	cfg.Filled, cfg.Untouched = in.linear.Begin(&in.module.shared, c.linked.Program().Data())
	in.parts.Instance, err = c.linked.Instantiate(within, cfg)
	if err != nil {
		in.giveTurn()
		err = in.startFault(err)
	} else {
		err = in.startUp(ctx, start)
	}
	if err != nil {
		in.close()
	}
	return err
}

// resolveMeter finds the meter; the host's own module is found by its name.
func (in *Instance) resolveMeter(name string) api.Module {
	if name == fuel.ImportMeter {
		return in.mod
	}
	return nil
}

// componentTable is how many entries a table of each core module of a component may have, all of them together.
const componentTable = 1 << 19

// mostHeld is how much of Go's memory the values of one call may take: as much as its memory, and room for small ones.
const mostHeld = 16 << 20

// Hold implements canon.Account; Charge is the other half of it.
func (in *Instance) Hold(bytes int64) {
	if in.meter.held += bytes; in.meter.held > mostHeld+in.module.opts.Limits.Memory {
		in.Fail(OutputSize, "the values that it passes take more than %d bytes (limits.memory)", mostHeld+in.module.opts.Limits.Memory)
	}
}

// call asks the component what a module's export "call" is asked.
func (p *parts) call(in *Instance, op int32, input []byte) ([]byte, error) {
	if err := in.Input(len(input)); err != nil {
		return nil, err
	}
	return p.answer(in, func() ([]byte, error) { return p.world.Call(&in.ctx, p.Instance, op, input) })
}

// Judges says whether the module is a component that takes the node table by columns, and keeps nothing of it between calls.
func (m *Module) Judges() bool { return m.component != nil && m.component.world.Judges() }

// Judge passes a component that Judges the cells of a pod and of all nodes, by column, and returns a byte for each
// node. Errors are those of Call.
func (in *Instance) Judge(ctx context.Context, pod []int64, columns [][]int64) (out []byte, u Usage, err error) {
	in.open(ctx, in.module.opts.Limits.forCall())
	defer func(start time.Time) { u = in.spent(start) }(in.meter.lastPoint)
	cells := len(pod)
	for _, c := range columns {
		cells += len(c)
	}
	if err := in.Input(8 * cells); err != nil {
		return nil, u, err
	}
	p := in.parts
	out, err = p.answer(in, func() ([]byte, error) { return p.world.Judge(&in.ctx, p.Instance, pod, columns) }) //nolint:contextcheck // as there
	return out, u, err
}

func (p *parts) describe(in *Instance) ([]byte, error) {
	return p.answer(in, func() ([]byte, error) { return p.world.Describe(&in.ctx, p.Instance) })
}

// answer makes of what a component answers what a module's answer is.
func (p *parts) answer(in *Instance, ask func() ([]byte, error)) ([]byte, error) {
	out, err := ask()
	var said *world.Failure
	switch {
	case errors.As(err, &said):
		return nil, &GuestError{Plugin: in.module.name, Message: clip(said.Message, 4096)}
	case err != nil:
		return nil, in.fault(err)
	case int64(len(out)) > in.module.opts.Limits.Output:
		return nil, &Fault{Plugin: in.module.name, Kind: OutputSize, Detail: fmt.Sprintf("an answer of %d bytes is more than limits.output (%d)",
			len(out), in.module.opts.Limits.Output)}
	}
	return out, nil
}

func (p *parts) save(in *Instance) {
	if p == nil {
		return
	}
	for _, m := range p.Modules() {
		in.saveGlobals(m)
	}
	p.before = p.Snapshot()
}

func (p *parts) restore() {
	if p != nil && p.before != nil {
		p.Restore(p.before)
	}
}

func (p *parts) close(ctx context.Context) {
	if p != nil && p.Instance != nil {
		_ = p.Instance.Close(ctx) // as below
	}
}

// guestServices is what the world's host side needs of an instance.
type guestServices struct{ *Instance }

// HostCall carries out a granted host function.
func (g guestServices) HostCall(op string, input []byte) (reply []byte, refused bool, err error) {
	in := g.Instance
	if in.meter.hostCalls++; in.meter.hostCalls > in.module.opts.Limits.HostCalls {
		in.Fail(HostCalls, "it called the host more than %d times (limits.hostCalls)", in.module.opts.Limits.HostCalls)
	}
	in.charge(100 + int64(len(input))/4)
	code, reply := in.runHostFunc(op, input)
	in.charge(int64(len(reply)) / 4)
	in.checkTime(time.Now())
	if code < 0 {
		return nil, code == callRefused, errors.New(string(reply))
	}
	return reply, false, nil
}

// Print takes what the guest writes as it comes: in pieces of lines, or in several at once.
func (g guestServices) Print(text string) { g.printed([]byte(text)) }

// Exit ends the guest.
func (g guestServices) Exit(ok bool) {
	code := uint32(1)
	if ok {
		code = 0
	}
	panic(&stop{kind: Exit, detail: fmt.Sprintf("it exited with code %d", code), code: code})
}
