// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// maxDepth bounds calls from core code through the canonical ABI into core code: each takes stack of Go's.
const maxDepth = 64

// HostFunc is a function of the host. What it traps with by canon.Fail, the guest traps with. It answers nil where the
// function has no result.
type HostFunc func(c *Call, args []any) any

// Arg is an argument of a call of the host, of the type that its interface gives it. A component that declares
// another type, or too few arguments, traps.
func Arg[T any](args []any, i int) T {
	if i < len(args) {
		if v, ok := args[i].(T); ok {
			return v
		}
	}
	canon.Fail("it declares a function of the host with other parameters")
	panic("not reached")
}

// Call is a call of the host.
type Call struct {
	Context  context.Context //nolint:containedctx // of this call alone
	Instance *Instance
}

// Resource is the resource type of the host's that a WIT name stands for.
func (c *Call) Resource(iface, name string) *canon.Resource {
	return c.Instance.host[hostKey(iface, name)]
}

// hostType names a resource type of the host's: the versions of an interface that are compatible have the same.
type hostType struct{ iface, name string }

func hostKey(iface, name string) hostType { return hostType{ctype.Compatible(iface), name} }

// Host gives components what they import.
type Host interface {
	// Func finds a function, by the WIT name of its interface and its own.
	Func(iface, name string) HostFunc
	// Drop ends a resource of the host's.
	Drop(c *Call, iface, name string, rep uint32)
}

// Linked is a program whose core modules are compiled.
type Linked struct {
	program   *Program
	runtime   wazero.Runtime
	modules   []wazero.CompiledModule
	untouched int // of them, before code of the guest runs
	functions api.Module
	host      []HostFunc
	drop      func(c *Call, iface, name string, rep uint32)
}

// MissingError names the imports that a component is not given.
type MissingError struct{ Imports []Import }

func (e *MissingError) Error() string {
	var names []string
	for _, i := range e.Imports[:min(len(e.Imports), 8)] {
		names = append(names, i.String())
	}
	if more := len(e.Imports) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "the component imports what it is not given: " + strings.Join(names, ", ")
}

// Link puts a program together with its compiled modules (of Program.Modules, one each) and its host.
func Link(ctx context.Context, r wazero.Runtime, p *Program, modules []wazero.CompiledModule, h Host) (*Linked, error) {
	l := &Linked{program: p, runtime: r, modules: modules, untouched: p.untouched(), drop: h.Drop}
	missing := &MissingError{}
	for _, i := range p.imports {
		f := h.Func(i.Interface, i.Name)
		if f == nil {
			missing.Imports = append(missing.Imports, i)
		}
		l.host = append(l.host, f)
	}
	if len(missing.Imports) > 0 {
		return nil, missing
	}
	return l, l.define(ctx)
}

// define makes the module of the functions of the canonical ABI.
func (l *Linked) define(ctx context.Context) error {
	b := l.runtime.NewHostModuleBuilder(functionModule)
	for i := range l.program.functions {
		f := &l.program.functions[i]
		b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(ctx context.Context, stack []uint64) {
			instanceOf(ctx).enter(f, stack)
		}), coreTypes(f.core.Params), coreTypes(f.core.Results)).Export(strconv.Itoa(i))
	}
	code, err := b.Compile(ctx)
	if err != nil {
		return fmt.Errorf("define the functions of the canonical ABI: %w", err)
	}
	l.functions, err = l.runtime.InstantiateModule(ctx, code, wazero.NewModuleConfig().WithName(""))
	return err
}

func coreTypes(in []ctype.Core) []api.ValueType {
	out := make([]api.ValueType, len(in))
	for i, c := range in {
		out[i] = api.ValueType(c)
	}
	return out
}

// Close frees what Link made. The compiled modules are whose who made them.
func (l *Linked) Close(ctx context.Context) error { return l.functions.Close(ctx) }

// Config is what an instance is made with.
type Config struct {
	// Account pays for the work of the canonical ABI; nil = nobody counts.
	Account canon.Account
	// Resolve finds modules that the core modules import besides their own; nil = there are none.
	Resolve func(name string) api.Module
	// Data is the host's.
	Data any
	// Filled says that the memories hold what Untouched has found in those of another instance of the same program, as
	// soon as the engine's allocator gives them.
	Filled bool
	// Untouched is called where the memories made so far hold their data, and no code of the guest has run; nil = nobody
	// wants to know. It is not called where they are Filled.
	Untouched func() error
	// Made is told of each core instance as soon as it is there, before its start function's caller goes on; nil = nobody is.
	Made func(api.Module)
}

// Instance is an instance of a component. One call at a time.
type Instance struct {
	linked    *Linked
	cfg       Config
	ctx       context.Context //nolint:containedctx // of the call that runs
	mods      []api.Module
	parts     []part
	resources []*canon.Resource
	host      map[hostType]*canon.Resource
	funcs     map[ref]*coreFunc
	memories  map[ref]api.Memory
	depth     int
	dead      error
}

// part is the state of one component instance in it.
type part struct {
	table            canon.Table
	entered, noLeave bool
}

type nobody struct{}

func (nobody) Charge(int64) {}
func (nobody) Hold(int64)   {}

type instanceKey struct{}

func instanceOf(ctx context.Context) *Instance {
	return ctx.Value(instanceKey{}).(*Instance) //nolint:forcetypeassert // no other code calls these functions
}

// Instantiate makes an instance. The context is that of the core modules' start functions.
func (l *Linked) Instantiate(ctx context.Context, cfg Config) (in *Instance, err error) {
	if cfg.Account == nil {
		cfg.Account = nobody{}
	}
	in = &Instance{
		linked: l, cfg: cfg, parts: make([]part, len(l.program.parents)), host: map[hostType]*canon.Resource{},
		funcs: map[ref]*coreFunc{}, memories: map[ref]api.Memory{},
	}
	in.ctx = context.WithValue(ctx, instanceKey{}, in)
	in.makeResources()
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Close(ctx))
			in = nil
		}
	}()
	within := experimental.WithImportResolver(in.ctx, in.resolve)
	// Nothing reads the source of randomness, but without one the engine seeds a generator for each module, a tenth of what a request costs.
	module := wazero.NewModuleConfig().WithName("").WithStartFunctions().WithRandSource(rand.Reader)
	for i, code := range l.modules {
		if err := in.begun(i); err != nil {
			return in, err
		}
		mod, err := l.runtime.InstantiateModule(within, code, module) //nolint:contextcheck // it is the caller's, with the instance
		if err == nil {
			in.mods = append(in.mods, mod)
			if !cfg.Filled || i >= l.untouched {
				err = in.write(i, mod)
			}
		}
		if err != nil {
			return in, fmt.Errorf("instantiate core module %d of %d: %w", i+1, len(l.modules), err)
		}
		if cfg.Made != nil {
			cfg.Made(mod)
		}
	}
	return in, in.begun(len(l.modules))
}

// begun tells the host, once, that the memories are as the next core instance, the first whose code runs, finds them.
func (in *Instance) begun(next int) error {
	if next != in.linked.untouched || in.cfg.Filled || in.cfg.Untouched == nil {
		return nil
	}
	return in.cfg.Untouched()
}

// resolve finds the module that an import names.
func (in *Instance) resolve(name string) api.Module {
	if name == functionModule {
		return in.linked.functions
	}
	if i, err := strconv.Atoi(strings.TrimPrefix(name, "s")); err == nil && name[0] == 's' && i < len(in.mods) {
		return in.mods[i]
	}
	if in.cfg.Resolve != nil {
		return in.cfg.Resolve(name)
	}
	return nil
}

func (in *Instance) makeResources() {
	for i := range in.linked.program.resources {
		def := &in.linked.program.resources[i]
		r := &canon.Resource{Name: def.name}
		switch {
		case def.instance < 0:
			if known := in.host[def.key]; known != nil {
				r = known
				break
			}
			in.host[def.key] = r
			r.Drop = func(rep uint32) {
				in.linked.drop(&Call{Context: in.ctx, Instance: in}, def.iface, def.name, rep)
			}
		default:
			r.Impl = &in.parts[def.instance]
		}
		in.resources = append(in.resources, r)
	}
}

// Data is what the host made the instance with.
func (in *Instance) Data() any { return in.cfg.Data }

// Account is who pays.
func (in *Instance) Account() canon.Account { return in.cfg.Account }

// SetAccount has another account pay from the next call on.
func (in *Instance) SetAccount(a canon.Account) { in.cfg.Account = a }

// Modules are the core instances.
func (in *Instance) Modules() []api.Module { return in.mods }

// Close frees the core instances.
func (in *Instance) Close(ctx context.Context) error {
	var err error
	for _, m := range in.mods {
		err = errors.Join(err, m.Close(ctx))
	}
	return err
}

// coreFunc is a core function; one that runs and is called once more has another stack.
type coreFunc struct {
	name string
	mod  api.Module
	idle []api.Function
}

// call calls something core with a stack of arguments, on which its results are then.
func (in *Instance) call(r ref, stack []uint64) {
	if in.depth >= maxDepth {
		canon.Fail("calls between components are nested deeper than %d", maxDepth)
	}
	if r.site < 0 {
		in.depth++
		in.enter(&in.linked.program.functions[r.function], stack)
		in.depth--
		return
	}
	f := in.funcs[r]
	if f == nil {
		f = &coreFunc{name: r.name, mod: in.mods[r.site]}
		in.funcs[r] = f
	}
	var fn api.Function
	if n := len(f.idle); n > 0 {
		fn, f.idle = f.idle[n-1], f.idle[:n-1]
	} else {
		fn = f.mod.ExportedFunction(f.name)
	}
	in.depth++
	err := fn.CallWithStack(in.ctx, stack)
	in.depth--
	if err != nil {
		panic(err)
	}
	f.idle = append(f.idle, fn)
}

func (in *Instance) memory(r *ref) func() []byte {
	m := in.memories[*r]
	if m == nil {
		m = in.mods[r.site].ExportedMemory(r.name)
		in.memories[*r] = m
	}
	return func() []byte {
		b, _ := m.Read(0, m.Size())
		return b
	}
}

// context is what the canonical ABI needs for one call of a part.
func (in *Instance) context(of int, o *options, env map[*ctype.Resource]int, scope *canon.Scope, keep bool) *canon.Context {
	p := &in.parts[of]
	c := &canon.Context{
		Encoding: canon.Encoding(o.encoding), Table: &p.table, Scope: scope, Account: in.cfg.Account, Instance: p, Keep: keep,
		Resource: func(r *ctype.Resource) *canon.Resource { return in.resources[env[r]] },
	}
	if o.memory != nil {
		c.Bytes = in.memory(o.memory)
	}
	if o.realloc != nil {
		c.Realloc = func(old, oldSize, align, size uint32) uint32 {
			stack := []uint64{uint64(old), uint64(oldSize), uint64(align), uint64(size)}
			before := p.noLeave
			p.noLeave = true
			in.call(*o.realloc, stack)
			p.noLeave = before
			return uint32(stack[0])
		}
	}
	return c
}

// enter runs a function of the canonical ABI that core code calls.
func (in *Instance) enter(f *function, stack []uint64) {
	p := &in.parts[f.instance]
	if f.builtin == nil || f.builtin.Op != binary.ResourceRep {
		if p.noLeave {
			canon.Fail("cannot leave component instance: it is in realloc or post-return")
		}
	}
	in.cfg.Account.Charge(builtinCost)
	if f.builtin != nil {
		in.builtin(f, p, stack)
		return
	}
	in.lowered(f, stack)
}

const builtinCost = 50

func (in *Instance) builtin(f *function, p *part, stack []uint64) {
	of := in.resources[f.resource]
	switch f.builtin.Op {
	case binary.ResourceNew:
		stack[0] = uint64(p.table.New(of, uint32(stack[0])))
	case binary.ResourceRep:
		stack[0] = uint64(p.table.Rep(of, uint32(stack[0])))
	case binary.ResourceDrop:
		if rep, ended := p.table.Drop(of, uint32(stack[0])); ended {
			in.destroy(f.resource, rep, f.instance)
		}
	}
}

// destroy ends a resource that has no owner any more.
func (in *Instance) destroy(number int, rep uint32, caller int) {
	def := &in.linked.program.resources[number]
	if def.instance < 0 {
		in.resources[number].Drop(rep)
		return
	}
	entered := in.begin(def.instance, caller)
	if def.dtor != nil {
		in.call(*def.dtor, []uint64{uint64(rep)})
	}
	in.end(entered)
}

// lowered runs a call of a component's function from core code.
func (in *Instance) lowered(f *function, stack []uint64) {
	d := f.lower
	scope := &canon.Scope{}
	c := in.context(f.instance, &f.options, f.env, scope, f.callee.lift >= 0)
	c.Begin()
	args := c.LiftParams(stack, d.Type.Params, d.Spilled)
	var at uint64
	if canon.ResultInMemory(d.Type.Result) {
		at = stack[len(d.Core.Params)-1]
	}
	var v any
	if f.callee.lift >= 0 {
		v = in.lifted(&in.linked.program.lifts[f.callee.lift], f.instance, args, true)
	} else {
		v = in.linked.host[f.callee.host](&Call{Context: in.ctx, Instance: in}, args)
	}
	if d.Type.Result != nil {
		out := c.LowerResult(nil, v, d.Type.Result, at)
		copy(stack, out)
	}
	scope.Return()
}

// begin enters a part and those around it that the caller is not in, and traps where one is entered already.
func (in *Instance) begin(of, caller int) []*part {
	inside := map[int]bool{}
	for ; caller >= 0; caller = in.linked.program.parents[caller] {
		inside[caller] = true
	}
	var entered []*part
	for ; of >= 0; of = in.linked.program.parents[of] {
		if inside[of] {
			continue
		}
		p := &in.parts[of]
		if p.entered {
			canon.Fail("wasm trap: cannot enter component instance: it is running (no re-entrance)")
		}
		entered = append(entered, p)
	}
	for _, p := range entered {
		p.entered = true
	}
	return entered
}

func (in *Instance) end(entered []*part) {
	for _, p := range entered {
		p.entered = false
	}
}

// lifted calls a component's function.
func (in *Instance) lifted(l *lift, caller int, args []any, keep bool) any {
	d := l.def
	entered := in.begin(l.instance, caller)
	scope := &canon.Scope{}
	c := in.context(l.instance, &l.options, l.env, scope, keep)
	c.Begin()
	size := max(len(d.Core.Params), len(d.Core.Results))
	stack := c.LowerParams(make([]uint64, 0, size), args, d.Type.Params, d.Spilled)
	stack = stack[:size]
	in.call(l.core, stack)
	results := append([]uint64(nil), stack[:len(d.Core.Results)]...)
	var v any
	if d.Type.Result != nil {
		v = c.LiftResult(results, d.Type.Result)
	}
	scope.End()
	if l.options.postReturn != nil {
		p := &in.parts[l.instance]
		p.noLeave = true
		in.call(*l.options.postReturn, results)
		p.noLeave = false
	}
	in.end(entered)
	return v
}

// Func is a function that the component exports.
type Func struct {
	Name string
	Type *ctype.Func
	lift *lift
}

// Func finds an exported function; iface is the WIT name of the interface that it is exported in, or "".
func (p *Program) Func(iface, name string) *Func {
	exports, types := p.exports, p.component.Type.Exports
	if iface != "" {
		v, ok := exports.exports[iface]
		if !ok || v.instance == nil {
			return nil
		}
		exports, types = v.instance, nil
		for i := range p.component.Type.Exports {
			if e := &p.component.Type.Exports[i]; e.Name == iface && e.Instance != nil {
				types = e.Instance.Exports
			}
		}
	}
	v, ok := exports.exports[name]
	if !ok || v.sort != ctype.Funcs || v.function.lift < 0 {
		return nil
	}
	f := &Func{Name: name, lift: &p.lifts[v.function.lift]}
	f.Type = f.lift.def.Type
	for i := range types {
		if types[i].Name == name && types[i].Func != nil {
			f.Type = types[i].Func
		}
	}
	return f
}

// ErrDead is what calls of an instance get after a trap.
var ErrDead = errors.New("the instance has trapped before and cannot be entered any more")

// Call calls a function that the component exports. After an error the instance is dead.
func (in *Instance) Call(ctx context.Context, f *Func, args ...any) (v any, err error) {
	if in.dead != nil {
		return nil, fmt.Errorf("%w: %w", ErrDead, in.dead)
	}
	in.ctx = context.WithValue(ctx, instanceKey{}, in)
	defer func() {
		if r := recover(); r != nil {
			err = in.failed(r)
		}
	}()
	return in.lifted(f.lift, -1, args, false), nil
}

// Drop ends a resource that the host owns.
func (in *Instance) Drop(ctx context.Context, h *canon.Handle) (err error) {
	if in.dead != nil {
		return fmt.Errorf("%w: %w", ErrDead, in.dead)
	}
	in.ctx = context.WithValue(ctx, instanceKey{}, in)
	defer func() {
		if r := recover(); r != nil {
			err = in.failed(r)
		}
	}()
	for i, r := range in.resources {
		if r == h.Resource && h.Own {
			in.destroy(i, h.Rep, -1)
			return nil
		}
	}
	return fmt.Errorf("the handle is none of an owner of a resource of this instance")
}

// failed makes an error of a panic. What is no error is a mistake in this program, and goes on.
func (in *Instance) failed(r any) error {
	err, ok := r.(error)
	if !ok {
		panic(r)
	}
	in.dead = err
	in.depth = 0
	return err
}

// Program is what the instances are made of.
func (l *Linked) Program() *Program { return l.program }

// State is what an instance has of its own, besides what its core instances have.
type State struct{ tables []*canon.Table }

// Snapshot remembers the handles, for Restore; memories and globals are whose who keeps the core instances.
func (in *Instance) Snapshot() *State {
	s := &State{}
	for i := range in.parts {
		s.tables = append(s.tables, in.parts[i].table.Snapshot())
	}
	return s
}

// Restore puts the handles back to what they were. No call may run.
func (in *Instance) Restore(s *State) {
	for i := range in.parts {
		in.parts[i].table.Restore(s.tables[i])
	}
}
