// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/wasmplane/wasmplane/plugins/host/preview1"
)

// ABI describes modules that speak something other than the plugin ABI: what
// they are given, how they begin and what they have to export. An adapter holds
// one for all its modules. They run under the same budgets as every other.
type ABI struct {
	// Name is unique, and shown in errors.
	Name string
	// Imports are the host functions that such modules may import, besides those of WASI.
	Imports []Import
	// ImportedMemory: modules import their memory as env.memory. They get one of their own, exported as "memory".
	ImportedMemory bool
	// Command: modules are commands of WASI. Each instance is used for one call of Instance.Command.
	Command bool
	// Start runs in every new instance, within the start-up budget; nil = nothing runs.
	Start func(in *Instance) error
	// Check looks at the functions that a module exports.
	Check func(exports map[string]FuncType) error
}

// Import is a host function. All its parameters are i32: what a guest leaves in the
// upper halves of the stack's slots never arrives.
type Import struct {
	Module, Name string
	Params       int
	Result       bool  // whether it answers an i32
	Cost         int64 // fuel for each call; it charges by size itself
	Run          func(in *Instance, p []uint32) uint32
}

// FuncType is a function's signature, with types as they are written: "i32".
type FuncType struct{ Params, Results []string }

// String is the signature as it is written in the text format's manner.
func (t FuncType) String() string {
	text := "(" + strings.Join(t.Params, ", ") + ")"
	if len(t.Results) > 0 {
		text += " -> " + strings.Join(t.Results, ", ")
	}
	return text
}

// NewFuncType is the signature of n parameters of type i32 and the results.
func NewFuncType(n int, results ...string) FuncType {
	return FuncType{Params: slices.Repeat([]string{"i32"}, n), Results: results}
}

// Equal compares signatures.
func (t FuncType) Equal(o FuncType) bool {
	return slices.Equal(t.Params, o.Params) && slices.Equal(t.Results, o.Results)
}

// foreignImports are the host modules of one ABI. Their functions find what they
// run in the ABI of the calling module, by number.
type foreignImports struct {
	table   []Import
	modules map[string]api.Module
}

// offer defines an ABI's host modules, once.
func (h *Host) offer(abi *ABI) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.foreign[abi.Name]; known != nil {
		if !slices.EqualFunc(known.table, abi.Imports, sameImport) {
			return fmt.Errorf("ABI %s was defined with other imports before", abi.Name)
		}
		return nil
	}
	set := &foreignImports{table: abi.Imports, modules: map[string]api.Module{}}
	names := []string{preview1.Unstable}
	for _, i := range abi.Imports {
		if !slices.Contains(names, i.Module) {
			names = append(names, i.Module)
		}
	}
	for _, name := range names {
		mod, err := h.offerModule(abi, name)
		if err != nil {
			return fmt.Errorf("define %s for ABI %s: %w", name, abi.Name, err)
		}
		set.modules[name] = mod
	}
	if h.foreign == nil {
		h.foreign = map[string]*foreignImports{}
	}
	h.foreign[abi.Name] = set
	return nil
}

func sameImport(a, b Import) bool {
	return a.Module == b.Module && a.Name == b.Name && a.Params == b.Params && a.Result == b.Result
}

func (h *Host) offerModule(abi *ABI, module string) (api.Module, error) {
	b := h.engine.Runtime().NewHostModuleBuilder(module)
	for name, f := range standard(module) {
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
			in := instanceOf(ctx, mod)
			in.enterHost(f.cost)
			f.run(in, s)
		}), f.params, f.results).Export(name)
	}
	for i, f := range abi.Imports {
		if f.Module != module {
			continue
		}
		params, results := f.types()
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
			in := instanceOf(ctx, mod)
			in.runImport(i, s)
		}), params, results).Export(f.Name)
	}
	code, err := b.Compile(h.base)
	if err != nil {
		return nil, err
	}
	// It stands under a name that no module can import; the resolver leads to it.
	return h.engine.Runtime().InstantiateModule(h.base, code, wazero.NewModuleConfig().WithName("wasmplane:"+abi.Name+"/"+module))
}

func (f *Import) types() (params, results []api.ValueType) {
	params = slices.Repeat([]api.ValueType{i32}, f.Params)
	if f.Result {
		results = []api.ValueType{i32}
	}
	return params, results
}

// standard are the functions that every module may import from a module of that name.
func standard(module string) map[string]hostFunction {
	out := map[string]hostFunction{}
	for name, f := range hostFunctions {
		if short, ok := strings.CutPrefix(name, module+"."); ok {
			out[short] = f
		}
	}
	return out
}

// function finds an import by name: the ABI's own, or one that every module may have.
func (a *ABI) function(module, name string) (hostFunction, bool) {
	if a != nil {
		for _, f := range a.Imports {
			if f.Module == module && f.Name == name {
				params, results := f.types()
				return hostFunction{params: params, results: results}, true
			}
		}
	}
	if a == nil && module == preview1.Unstable {
		return hostFunction{}, false
	}
	f, ok := hostFunctions[module+"."+name]
	if a != nil && module == "wasmplane" {
		return f, false // our own host call goes by our own rules
	}
	return f, ok
}

func (a *ABI) once() bool { return a != nil && a.Command }

func (a *ABI) check(code wazero.CompiledModule) error {
	exports := map[string]FuncType{}
	for name, f := range code.ExportedFunctions() {
		exports[name] = FuncType{Params: typeNames(f.ParamTypes()), Results: typeNames(f.ResultTypes())}
	}
	if a.Check == nil {
		return nil
	}
	return a.Check(exports)
}

func typeNames(types []api.ValueType) []string {
	var out []string
	for _, t := range types {
		out = append(out, api.ValueTypeName(t))
	}
	return out
}

// resolver leads imports to the ABI's host modules.
func (h *Host) resolver(abi *ABI) experimental.ImportResolver {
	h.mu.Lock()
	defer h.mu.Unlock()
	set := h.foreign[abi.Name]
	return func(name string) api.Module {
		if m, ok := set.modules[name]; ok {
			return m
		}
		return nil
	}
}

// runImport calls an import of the module's ABI.
func (in *Instance) runImport(number int, s []uint64) {
	f := &in.module.opts.ABI.Imports[number]
	in.enterHost(f.Cost)
	var params [8]uint32
	for i := range f.Params {
		params[i] = uint32(s[i])
	}
	result := f.Run(in, params[:f.Params])
	if f.Result {
		s[0] = uint64(result)
	}
}

// Account runs f within the budget of one call. In it, Run, Command and Write are
// for f, and errors that it returns are judged as those of With. The first call of an instance
// has the start-up's budget besides: other people's runtimes and policies do then what they do
// once (patterns, tables, memory). One that could not pay for it would never get to a second.
func (in *Instance) Account(ctx context.Context, f func() error) (Usage, error) {
	limits := &in.module.opts.Limits
	allowed := limits.forCall()
	if !in.warm {
		allowed = allowance{fuel: limits.Fuel + limits.StartFuel, time: limits.Deadline + limits.StartDeadline, start: true}
	}
	in.warm = true
	return in.account(ctx, allowed, f)
}

// StartAccount is Account with the start-up budget, for what a load asks of a module.
func (in *Instance) StartAccount(ctx context.Context, f func() error) (Usage, error) {
	limits := &in.module.opts.Limits
	return in.account(ctx, limits.forStart(), f)
}

func (in *Instance) account(ctx context.Context, allowed allowance, f func() error) (u Usage, err error) {
	in.open(ctx, allowed)
	start := in.meter.lastPoint
	defer func() {
		u = in.spent(start)
	}()
	return u, in.contain(f)
}

// contain makes a fault of what ends the guest while the host works for it
// between two of its functions: a charge that it cannot pay.
func (in *Instance) contain(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *stop:
			err = in.fault(r)
		default:
			panic(r)
		}
	}()
	return f()
}

// nested is how many exports may run inside of one another: an import may call
// the guest back (to allocate), and what it calls there may not do so again.
const nested = 2

// Run calls an export within the account that is open: one of Account, of
// ABI.Start, or of Options.Setup. Arguments are widened to u64. It returns the first result, 0 where there is none.
func (in *Instance) Run(name string, args ...uint64) (uint64, error) {
	f, ok := in.extra[name]
	if !ok {
		if f = in.mod.ExportedFunction(name); f == nil {
			return 0, &Fault{Plugin: in.module.name, Kind: Refused, Detail: fmt.Sprintf("it exports no function %s", name)}
		}
		in.extra[name] = f
	}
	def := f.Definition()
	if len(def.ParamTypes()) != len(args) || len(def.ResultTypes()) > 1 {
		return 0, &Fault{Plugin: in.module.name, Kind: Refused, Detail: fmt.Sprintf("its function %s has the wrong signature", name)}
	}
	if len(in.running) >= nested || slices.Contains(in.running, name) {
		return 0, &Fault{Plugin: in.module.name, Kind: Refused, Detail: fmt.Sprintf("its function %s was to run inside of itself", name)}
	}
	in.running = append(in.running, name)
	defer func() { in.running = in.running[:len(in.running)-1] }()
	var stack [8]uint64
	copy(stack[:], args)
	if err := f.CallWithStack(&in.ctx, stack[:max(1, len(args))]); err != nil {
		return 0, in.fault(err)
	}
	if len(def.ResultTypes()) == 0 {
		return 0, nil
	}
	return stack[0], nil
}

// Start runs an export that may end in exit(0), as main functions do.
func (in *Instance) Start(name string) error {
	_, err := in.Run(name)
	var f *Fault
	if errors.As(err, &f) && f.Kind == Exit && f.ExitCode == 0 {
		return nil
	}
	if errors.As(err, &f) {
		f.Detail = "while it started: " + f.Detail
	}
	return err
}

// Has says whether the module exports a function.
func (in *Instance) Has(name string) bool { return in.mod.ExportedFunction(name) != nil }

// Name is the plugin's name.
func (in *Instance) Name() string { return in.module.name }

// Data is what the adapter keeps with the instance.
func (in *Instance) Data() any { return in.data }

// SetData keeps something with the instance.
func (in *Instance) SetData(v any) { in.data = v }

// Limits are the bounds in force.
func (in *Instance) Limits() Limits { return in.module.opts.Limits }

// Charge takes fuel for work that the host does for the guest.
func (in *Instance) Charge(units int64) { in.charge(units) }

// Now is the granted clock, or the fake one, in nanoseconds.
func (in *Instance) Now() time.Time { return time.Unix(0, in.now()).UTC() }

// Random fills b with the granted randomness, or with the same numbers each time.
func (in *Instance) Random(b []byte) {
	in.charge(int64(len(b)) / 4)
	in.random(b)
}

// Fail ends the guest from within an import.
func (in *Instance) Fail(kind Kind, format string, args ...any) {
	panic(&stop{kind: kind, detail: fmt.Sprintf(format, args...)})
}

// Abort ends the guest from within an import with an error, such as that of a nested Run.
func (in *Instance) Abort(err error) {
	s := &stop{kind: Trap, detail: err.Error(), err: err}
	var f *Fault
	if errors.As(err, &f) {
		s.kind, s.detail = f.Kind, f.Detail
	}
	panic(s)
}

// Bytes are n bytes at an address, not copied, for an import; outside of the
// memory the guest ends. They are charged.
func (in *Instance) Bytes(at, n uint32) []byte {
	b, ok := in.memory.Read(at, n)
	if !ok {
		in.Fail(BadPointer, "it passed the host %d bytes at %#x, which is outside of its memory of %d bytes", n, at, in.memory.Size())
	}
	in.charge(int64(n) / 4)
	return b
}

// Put writes to an address from within an import; outside of the memory the guest ends.
func (in *Instance) Put(at uint32, b []byte) {
	in.charge(int64(len(b)) / 4)
	if !in.memory.Write(at, b) {
		in.Fail(BadPointer, "it wants %d bytes at %#x, which is outside of its memory of %d bytes", len(b), at, in.memory.Size())
	}
}

// Write writes to an address; false where it is outside of the memory.
func (in *Instance) Write(at uint32, b []byte) bool { return in.memory.Write(at, b) }

// Print writes to the plugin's log, up to the limit.
func (in *Instance) Print(text string) {
	in.printed([]byte(strings.TrimSuffix(text, "\n") + "\n"))
}

// Ask calls f for the guest from within an import: it counts as a host call, its
// input and reply are charged, the reply is bounded, and its time is the call's.
func (in *Instance) Ask(f Func, input []byte) ([]byte, error) {
	m := &in.meter
	limits := &in.module.opts.Limits
	if m.hostCalls++; m.hostCalls > limits.HostCalls {
		in.Fail(HostCalls, "it called the host more than %d times (limits.hostCalls)", limits.HostCalls)
	}
	in.charge(100 + int64(len(input))/4)
	ctx, cancel := context.WithDeadline(in.ctx.request, m.deadline)
	defer cancel()
	done := &work{left: m.budget - in.used()}
	in.giveTurn()
	out, err := f(context.WithValue(ctx, workKey{}, done), input)
	in.charge(done.units)
	if err == nil && int64(len(out)) > limits.HostReply {
		out, err = nil, fmt.Errorf("the reply of %d bytes is more than %d", len(out), limits.HostReply)
	}
	in.charge(int64(len(out)) / 4)
	in.checkTime(time.Now())
	return out, err
}

// Output refuses an answer that is longer than the limit, from within an import.
func (in *Instance) Output(n uint32) {
	if limit := in.module.opts.Limits.Output; int64(n) > limit {
		in.Fail(OutputSize, "an answer of %d bytes is more than limits.output (%d)", n, limit)
	}
}

// Input refuses an input that is longer than the limit.
func (in *Instance) Input(n int) error {
	if limit := in.module.opts.Limits.Input; int64(n) > limit {
		return &Fault{Plugin: in.module.name, Kind: Refused, Detail: fmt.Sprintf("an input of %d bytes is more than %d", n, limit)}
	}
	return nil
}

// Guard keeps a panic of f, which works on what a guest has sent, from ending
// more than the guest.
func (in *Instance) Guard(what string, f func()) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *stop:
			panic(r)
		default:
			in.Fail(Trap, "%s: %v", what, r)
		}
	}()
	f()
}

// CString is the text from an address up to a zero byte, for an import; where
// there is none before the memory ends, or before the limit of an answer, the guest ends.
func (in *Instance) CString(at uint32) []byte {
	b, err := in.cstring(at)
	if err != nil {
		in.Abort(err)
	}
	return b
}

// ReadCString is CString outside of an import.
func (in *Instance) ReadCString(at uint32) ([]byte, error) { return in.cstring(at) }

func (in *Instance) cstring(at uint32) ([]byte, error) {
	size := in.memory.Size()
	room := int64(size) - int64(at)
	if room <= 0 {
		return nil, in.badPointer("it", at, 1)
	}
	limit := in.module.opts.Limits.Output
	b, _ := in.memory.Read(at, uint32(min(room, limit+1)))
	n := bytes.IndexByte(b, 0)
	switch {
	case n >= 0:
		in.charge(int64(n) / 4)
		return b[:n:n], nil
	case room > limit:
		return nil, &Fault{Plugin: in.module.name, Kind: OutputSize, Detail: fmt.Sprintf("a text is longer than limits.output (%d bytes)", limit)}
	}
	return nil, in.badPointer("it", at, uint32(room))
}

// Ensure grows the memory until it has n bytes; false where the limit forbids it.
func (in *Instance) Ensure(n uint64) bool {
	have := uint64(in.memory.Size())
	if n <= have {
		return true
	}
	pages := (n - have + 1<<16 - 1) >> 16
	if pages > 1<<16 {
		return false
	}
	in.charge(int64(pages) * 1024)
	_, ok := in.memory.Grow(uint32(pages))
	return ok
}
