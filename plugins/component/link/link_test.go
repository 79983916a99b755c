// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/component/link"
)

// given is a host with these functions.
type given map[string]link.HostFunc

func (g given) Func(iface, name string) link.HostFunc { return g[iface+"#"+name] }

func (g given) Drop(_ *link.Call, iface, name string, rep uint32) {
	if f := g["drop "+iface+"#"+name]; f != nil {
		f(nil, []any{rep})
	}
}

// made is an instance with what it is made of.
type made struct {
	*link.Instance
	t      *testing.T
	p      *link.Program
	linked *link.Linked
}

func load(t *testing.T, wasm []byte, h given) (*made, error) {
	t.Helper()
	c, _, err := binary.Decode(wasm)
	if err != nil {
		t.Fatal(err)
	}
	p, err := link.Plan(c)
	if err != nil {
		return nil, err
	}
	modules, err := p.Modules()
	if err != nil {
		return nil, err
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() { _ = r.Close(t.Context()) })
	var compiled []wazero.CompiledModule
	for _, m := range modules {
		code, err := r.CompileModule(t.Context(), m)
		if err != nil {
			return nil, err
		}
		compiled = append(compiled, code)
	}
	l, err := link.Link(t.Context(), r, p, compiled, h)
	if err != nil {
		return nil, err
	}
	in, err := l.Instantiate(t.Context(), link.Config{})
	return &made{Instance: in, t: t, p: p, linked: l}, err
}

func mustLoad(t *testing.T, c *ct.Component, h given) *made {
	t.Helper()
	m, err := load(t, c.Bytes(), h)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// call calls an exported function.
func (m *made) call(name string, args ...any) (any, error) {
	m.t.Helper()
	f := m.p.Func("", name)
	if f == nil {
		m.t.Fatalf("no function %s is exported", name)
	}
	return m.Call(m.t.Context(), f, args...)
}

// trapsWith calls a function, which has to trap with these words.
func (m *made) trapsWith(want, name string, args ...any) {
	m.t.Helper()
	v, err := m.call(name, args...)
	if err == nil || !strings.Contains(err.Error(), want) {
		m.t.Errorf("%s: got %v, %v; want a trap with %q", name, v, err, want)
	}
}

// guest has a memory, a realloc that takes what comes next, and functions with what lies in memory at 8: address and length.
const guest = `(module
	(memory (export "memory") 1)
	(global $free (mut i32) (i32.const 4096))
	(func (export "realloc") (param i32 i32 i32 i32) (result i32)
		(global.set $free (i32.and (i32.add (global.get $free) (i32.sub (local.get 2) (i32.const 1))) (i32.sub (i32.const 0) (local.get 2))))
		(memory.copy (global.get $free) (local.get 0) (select (local.get 1) (local.get 3) (i32.lt_u (local.get 1) (local.get 3))))
		(global.get $free)
		(global.set $free (i32.add (global.get $free) (local.get 3))))
	(func $answer (param i32 i32) (result i32)
		(i32.store (i32.const 8) (local.get 0))
		(i32.store (i32.const 12) (local.get 1))
		(i32.const 8))
	(func (export "echo") (param i32 i32) (result i32) (call $answer (local.get 0) (local.get 1)))
	(func (export "answer") (param i32 i32) (result i32) (call $answer (local.get 0) (local.get 1)))
	(func (export "surrogate") (result i32) (i32.store (i32.const 64) (i32.const 0x0041d800)) (call $answer (i32.const 64) (i32.const 2)))
	(func (export "same") (param i32) (result i32) (local.get 0))
	(func (export "trap") unreachable)
	(func (export "nothing"))
	(func (export "forever") (loop $l (br $l))))`

// lifted is a component of the guest with functions by name: of a core function, a result and parameters.
type lifted struct {
	*ct.Component
	in            int
	memory, alloc ct.Option
}

func newGuest() *lifted {
	c := ct.New()
	in := c.Instantiate(c.Core(guest))
	return &lifted{c, in, ct.Mem(c.Memory(in, "memory")), ct.Realloc(c.CoreFunc(in, "realloc"))}
}

func (g *lifted) export(name, core string, result ct.Type, opts []ct.Option, params ...ct.Type) {
	f := g.Lift(g.CoreFunc(g.in, core), g.FuncType(result, params...), append(opts, g.memory, g.alloc)...)
	g.Export(name, ct.Func, f)
}

func TestValuesGoThereAndBack(t *testing.T) {
	g := newGuest()
	g.export("echo", "echo", ct.String, nil, ct.String)
	g.export("echo-wide", "echo", ct.String, []ct.Option{ct.UTF16()}, ct.String)
	g.export("echo-latin", "echo", ct.String, []ct.Option{ct.Latin1()}, ct.String)
	list := g.List(g.Tuple(ct.String, g.Option(ct.U64), g.Result(ct.F64, ct.Char)))
	g.export("echo-list", "echo", list, nil, list)
	octets := g.List(ct.U8)
	g.export("echo-bytes", "echo", octets, nil, octets)
	g.export("same", "same", ct.Char, nil, ct.Char)
	m := mustLoad(t, g.Component, nil)
	values := []any{
		[]any{"a", canon.None(), canon.OK(1.5)},
		[]any{"grün", canon.Some(uint64(1) << 63), canon.Error('é')},
	}
	for _, c := range []struct {
		name string
		v    any
	}{
		{"echo", "hello, grün and 𝄞"},
		{"echo", ""},
		{"echo-wide", "hello, grün and 𝄞"},
		{"echo-latin", "grün"},
		{"echo-latin", "𝄞"},
		{"echo-list", values},
		{"echo-bytes", []byte{0, 1, 255}},
		{"same", '𝄞'},
	} {
		got, err := m.call(c.name, c.v)
		if err != nil || !reflect.DeepEqual(got, c.v) {
			t.Errorf("%s: got %v, %v; want %v", c.name, got, err, c.v)
		}
	}
	if got := m.Modules()[0].Memory().Size(); got != 1<<16 {
		t.Errorf("the guest's memory has %d bytes", got)
	}
}

// TestLiesAreTraps: a guest that lies about what it answers is stopped, and dead from then on.
func TestLiesAreTraps(t *testing.T) {
	for _, c := range []struct {
		what, want string
		result     func(g *lifted) ct.Type
		opts       []ct.Option
		core       string
		args       []any
	}{
		{what: "a string past memory", want: "out of bounds", args: []any{uint32(65530), uint32(10)}},
		{what: "a string of four billion bytes", want: "too long", args: []any{uint32(0), uint32(0xffffffff)}},
		{what: "a list past memory", want: "out of bounds", result: func(g *lifted) ct.Type { return g.List(ct.U64) }, args: []any{uint32(8), uint32(9000)}},
		{what: "a list whose size overflows", want: "too long", result: func(g *lifted) ct.Type { return g.List(ct.U64) }, args: []any{uint32(8), uint32(0x20000001)}},
		{what: "a list that is not aligned", want: "unaligned", result: func(g *lifted) ct.Type { return g.List(ct.U32) }, args: []any{uint32(2), uint32(1)}},
		{what: "half a surrogate pair", want: "surrogate", opts: []ct.Option{ct.UTF16()}, core: "surrogate"},
		{what: "a handle that is not there", want: "unknown handle", core: "same", result: func(g *lifted) ct.Type {
			r := g.Resource(-1)
			return g.Own(g.Export("r", ct.TypeSort, r))
		}, args: []any{uint32(7)}},
		{what: "no character", want: "surrogate", core: "same", result: func(*lifted) ct.Type { return ct.Char }, args: []any{uint32(0xdfff)}},
		{what: "a case that is not there", want: "discriminant", core: "same", result: func(g *lifted) ct.Type {
			return ct.Ref(g.Export("e", ct.TypeSort, g.Type(byte(0x6d), 2, "a", "b")))
		}, args: []any{uint32(2)}},
	} {
		t.Run(c.what, func(t *testing.T) {
			g := newGuest()
			result, core := ct.String, "answer"
			if c.result != nil {
				result = c.result(g)
			}
			if c.core != "" {
				core = c.core
			}
			g.export("nothing", "nothing", "", nil)
			g.export("f", core, result, c.opts, []ct.Type{ct.U32, ct.U32}[:len(c.args)]...)
			m := mustLoad(t, g.Component, nil)
			m.trapsWith(c.want, "f", c.args...)
			if _, err := m.call("nothing"); !errors.Is(err, link.ErrDead) {
				t.Errorf("after a trap: %v", err)
			}
		})
	}
}

// TestReallocIsNotBelieved: where it says that there is room is checked, and it may not call out.
func TestReallocIsNotBelieved(t *testing.T) {
	for want, realloc := range map[string]string{
		"out of bounds":     `(i32.const 65536)`,
		"unaligned pointer": `(i32.const 4097)`,
		"unreachable":       `unreachable`,
	} {
		c := ct.New()
		in := c.Instantiate(c.Core(`(module (memory (export "memory") 1)
			(func (export "realloc") (param i32 i32 i32 i32) (result i32) ` + realloc + `)
			(func (export "take") (param i32 i32)))`))
		f := c.Lift(c.CoreFunc(in, "take"), c.FuncType("", c.List(ct.U32)), ct.Mem(c.Memory(in, "memory")), ct.Realloc(c.CoreFunc(in, "realloc")))
		c.Export("take", ct.Func, f)
		mustLoad(t, c, nil).trapsWith(want, "take", []any{uint32(1)})
	}
}

// TestMemoryThatMovesIsLookedUpAgain: a realloc that grows memory, between the parts of one value.
func TestMemoryThatMovesIsLookedUpAgain(t *testing.T) {
	c := ct.New()
	in := c.Instantiate(c.Core(`(module (memory (export "memory") 1)
		(func (export "realloc") (param i32 i32 i32 i32) (result i32)
			(i32.mul (memory.grow (i32.const 1)) (i32.const 65536)))
		(func (export "sum") (param i32 i32) (result i32)
			(i32.add (i32.load8_u (i32.load (local.get 0))) (i32.load8_u (i32.load (i32.add (local.get 0) (i32.const 8)))))))`))
	f := c.Lift(c.CoreFunc(in, "sum"), c.FuncType(ct.U32, c.List(ct.String)), ct.Mem(c.Memory(in, "memory")),
		ct.Realloc(c.CoreFunc(in, "realloc")))
	c.Export("sum", ct.Func, f)
	if got, err := mustLoad(t, c, nil).call("sum", []any{"\x01", "\x02"}); err != nil || got != uint32(3) {
		t.Errorf("got %v, %v", got, err)
	}
}

// calling is a component whose export "run" calls the import "out", in the place that wasm says.
func calling(module string, opts func(c *ct.Component, in int) []ct.Option) *ct.Component {
	c := ct.New()
	out := c.Lower(c.ImportFunc("out", c.FuncType("")))
	env := c.Bundle(ct.Arg{Name: "out", Index: out})
	in := c.Instantiate(c.Core(module), ct.Arg{Name: "env", Index: env})
	c.Export("run", ct.Func, c.Lift(c.CoreFunc(in, "run"), c.FuncType(ct.U32), opts(c, in)...))
	return c
}

// TestNobodyLeavesInPostReturn: nor calls out of it.
func TestNobodyLeavesInPostReturn(t *testing.T) {
	c := calling(`(module (import "env" "out" (func $out)) (func (export "run") (result i32) (i32.const 1)) (func (export "post") (param i32) (call $out)))`,
		func(c *ct.Component, in int) []ct.Option { return []ct.Option{ct.PostReturn(c.CoreFunc(in, "post"))} })
	mustLoad(t, c, given{"#out": func(*link.Call, []any) any { return nil }}).trapsWith("cannot leave component instance", "run")
}

// TestNobodyEntersTwice: a host function that calls back into the instance is refused.
func TestNobodyEntersTwice(t *testing.T) {
	c := calling(`(module (import "env" "out" (func $out)) (func (export "run") (result i32) (call $out) (i32.const 1)))`,
		func(*ct.Component, int) []ct.Option { return nil })
	var m *made
	var again error
	m = mustLoad(t, c, given{"#out": func(call *link.Call, _ []any) any {
		_, again = call.Instance.Call(call.Context, m.p.Func("", "run"))
		return nil
	}})
	_, err := m.call("run")
	if again == nil || !strings.Contains(again.Error(), "cannot enter component instance") {
		t.Errorf("entered again: %v (%v)", again, err)
	}
}

// TestResourcesEndOnce: a handle is dropped once, its destructor runs once, and no other handle is taken for it.
func TestResourcesEndOnce(t *testing.T) {
	build := func() *ct.Component {
		c := ct.New()
		d := c.Instantiate(c.Core(`(module (global $n (mut i32) (i32.const 0))
			(func (export "dtor") (param i32) (global.set $n (i32.add (global.get $n) (local.get 0))))
			(func (export "ended") (result i32) (global.get $n)))`))
		r := c.Resource(c.CoreFunc(d, "dtor"))
		other := c.Resource(-1)
		env := c.Bundle(ct.Arg{Name: "new", Index: c.Builtin(2, r)}, ct.Arg{Name: "drop", Index: c.Builtin(3, r)},
			ct.Arg{Name: "drop-other", Index: c.Builtin(3, other)})
		in := c.Instantiate(c.Core(`(module
			(import "env" "new" (func $new (param i32) (result i32)))
			(import "env" "drop" (func $drop (param i32)))
			(import "env" "drop-other" (func $other (param i32)))
			(func (export "make") (param i32) (result i32) (call $new (local.get 0)))
			(func (export "drop") (param i32) (call $drop (local.get 0)))
			(func (export "twice") (param i32) (call $drop (local.get 0)) (call $drop (local.get 0)))
			(func (export "wrong") (param i32) (call $other (local.get 0)))
			(func (export "many") (loop $l (drop (call $new (i32.const 1))) (br $l))))`), ct.Arg{Name: "env", Index: env})
		c.Export("ended", ct.Func, c.Lift(c.CoreFunc(d, "ended"), c.FuncType(ct.U32)))
		c.Export("make", ct.Func, c.Lift(c.CoreFunc(in, "make"), c.FuncType(ct.U32, ct.U32)))
		for _, name := range []string{"drop", "twice", "wrong"} {
			c.Export(name, ct.Func, c.Lift(c.CoreFunc(in, name), c.FuncType("", ct.U32)))
		}
		c.Export("many", ct.Func, c.Lift(c.CoreFunc(in, "many"), c.FuncType("")))
		return c
	}
	m := mustLoad(t, build(), nil)
	h, err := m.call("make", uint32(40))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.call("drop", h); err != nil {
		t.Fatal(err)
	}
	if n, err := m.call("ended"); err != nil || n != uint32(40) {
		t.Errorf("the destructor's count is %v, %v", n, err)
	}
	m.trapsWith("unknown handle index", "drop", h)
	for name, want := range map[string]string{"twice": "unknown handle index", "wrong": "wrong type", "many": "more than 65536 handles"} {
		m := mustLoad(t, build(), nil)
		h, err := m.call("make", uint32(1))
		if err != nil {
			t.Fatal(err)
		}
		if name == "many" {
			m.trapsWith(want, name)
			continue
		}
		m.trapsWith(want, name, h)
	}
}

// TestWhatIsNotGivenIsNamed: by the names of WIT.
func TestWhatIsNotGivenIsNamed(t *testing.T) {
	c := ct.New()
	it := &ct.InstanceType{}
	it.Func("get", ct.U32)
	it.Func("put", "", ct.U32)
	c.ImportInstance("acme:store/table@1.2.0", c.InstanceType(it))
	_, err := load(t, c.Bytes(), given{"acme:store/table@1.2.0#get": func(*link.Call, []any) any { return uint32(1) }})
	var missing *link.MissingError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "acme:store/table@1.2.0#put") || strings.Contains(err.Error(), "#get") {
		t.Errorf("got %v", err)
	}
}

// TestTheHostIsNotBelievedEither: an answer of another type than the component declares is a trap.
func TestTheHostIsNotBelievedEither(t *testing.T) {
	c := ct.New()
	f := c.Lower(c.ImportFunc("get", c.FuncType(ct.U32)))
	env := c.Bundle(ct.Arg{Name: "get", Index: f})
	in := c.Instantiate(c.Core(`(module (import "env" "get" (func $get (result i32))) (func (export "run") (result i32) (call $get)))`), ct.Arg{Name: "env", Index: env})
	c.Export("run", ct.Func, c.Lift(c.CoreFunc(in, "run"), c.FuncType(ct.U32)))
	mustLoad(t, c, given{"#get": func(*link.Call, []any) any { return "seven" }}).trapsWith("expected a value of u32, found string", "run")
}

// TestPlansAreBounded: each of 20 components makes two instances of the one before, which would be a million.
func TestPlansAreBounded(t *testing.T) {
	c := ct.New()
	for range 20 {
		outer := ct.New()
		inner := outer.Add(c)
		outer.Make(inner)
		outer.Make(inner)
		c = outer
	}
	if _, err := load(t, c.Bytes(), nil); err == nil || !strings.Contains(err.Error(), "more than 512 component instances") {
		t.Errorf("got %v", err)
	}
}

// counting is an account with a budget.
type counting struct{ fuel, room int64 }

func (a *counting) Charge(n int64) {
	if a.fuel -= n; a.fuel < 0 {
		canon.Fail("out of fuel")
	}
}

func (a *counting) Hold(n int64) {
	if a.room -= n; a.room < 0 {
		canon.Fail("out of room")
	}
}

// TestListsOfOneAddressCost: a thousand strings that are all the same megabyte cost what a thousand
// megabytes do, and are not made.
func TestListsOfOneAddressCost(t *testing.T) {
	for want, account := range map[string]*counting{
		"out of fuel": {fuel: 1 << 20, room: 1 << 40},
		"out of room": {fuel: 1 << 40, room: 1 << 20},
	} {
		c := ct.New()
		in := c.Instantiate(c.Core(`(module (memory (export "memory") 32)
			(func (export "bomb") (result i32) (local $i i32)
				(loop $l
					(i32.store (i32.add (i32.const 65536) (i32.mul (local.get $i) (i32.const 8))) (i32.const 1048576))
					(i32.store (i32.add (i32.const 65540) (i32.mul (local.get $i) (i32.const 8))) (i32.const 1000000))
					(local.set $i (i32.add (local.get $i) (i32.const 1)))
					(br_if $l (i32.lt_u (local.get $i) (i32.const 1000))))
				(i32.store (i32.const 8) (i32.const 65536))
				(i32.store (i32.const 12) (i32.const 1000))
				(i32.const 8)))`))
		c.Export("bomb", ct.Func, c.Lift(c.CoreFunc(in, "bomb"), c.FuncType(c.List(ct.String)), ct.Mem(c.Memory(in, "memory"))))
		m := mustLoad(t, c, nil)
		m.SetAccount(account)
		m.trapsWith(want, "bomb")
	}
}

// TestCallsBetweenComponents: a string goes through a component that knows it in another encoding.
func TestCallsBetweenComponents(t *testing.T) {
	callee := newGuest()
	callee.export("echo", "echo", ct.String, []ct.Option{ct.Latin1()}, ct.String)

	caller := ct.New()
	fn := caller.ImportFunc("echo", caller.FuncType(ct.String, ct.String))
	libc := caller.Instantiate(caller.Core(guest))
	mem, alloc := ct.Mem(caller.Memory(libc, "memory")), ct.Realloc(caller.CoreFunc(libc, "realloc"))
	env := caller.Bundle(ct.Arg{Name: "echo", Index: caller.Lower(fn, mem, alloc, ct.UTF16())})
	in := caller.Instantiate(caller.Core(`(module (import "env" "echo" (func $echo (param i32 i32 i32)))
		(func (export "run") (param i32 i32) (result i32) (call $echo (local.get 0) (local.get 1) (i32.const 8)) (i32.const 8)))`), ct.Arg{Name: "env", Index: env})
	caller.Export("run", ct.Func, caller.Lift(caller.CoreFunc(in, "run"), caller.FuncType(ct.String, ct.String), mem, alloc, ct.UTF16()))

	c := ct.New()
	to, from := c.Add(callee.Component), c.Add(caller)
	echo := c.Alias(ct.Func, c.Make(to), "echo")
	run := c.Alias(ct.Func, c.Make(from, ct.Arg{Name: "echo", Sort: ct.Func, Index: echo}), "run")
	c.Export("run", ct.Func, run)
	m := mustLoad(t, c, nil)
	for _, s := range []string{"", "plain", "grün", "𝄞 and grün"} {
		if got, err := m.call("run", s); err != nil || got != s {
			t.Errorf("got %q, %v; want %q", got, err, s)
		}
	}
	if fmt.Sprint(m.p.Func("", "run").Type.Result) != "string" {
		t.Error("the export has another type")
	}
}

// regions gives memories that are full of a byte, as a host does that maps images of them.
type regions struct{ full byte }

func (r regions) Allocate(_, most uint64) experimental.LinearMemory {
	return filled(bytes.Repeat([]byte{r.full}, int(most)))
}

type filled []byte

func (f filled) Reallocate(size uint64) []byte { return f[:size] }
func (filled) Free()                           {}

// spread is a component whose modules share a memory: the second writes to where the first says, over some of what it
// wrote; the third has a start function, which needs its data; the fourth writes after that has run.
func spread() []byte {
	c := ct.New()
	lib := c.Instantiate(c.Core(`(module (memory (export "memory") 1 1) (global (export "base") i32 (i32.const 100))
		(data (i32.const 98) "abcdef") (data (i32.const 65536) "") (data "passive")
		(func (export "init") (memory.init 2 (i32.const 0) (i32.const 0) (i32.const 7))))`))
	c.Instantiate(c.Core(`(module (import "lib" "memory" (memory 1 1)) (import "lib" "base" (global $base i32))
		(data (global.get $base) "CD") (data (i32.const 60) "x"))`), ct.Arg{Name: "lib", Index: lib})
	c.Instantiate(c.Core(`(module (import "lib" "memory" (memory 1 1)) (import "lib" "init" (func $init))
		(data (i32.const 70) "7") (func $go (call $init) (i32.store8 (i32.const 71) (i32.load8_u (i32.const 70)))) (start $go))`), ct.Arg{Name: "lib", Index: lib})
	c.Instantiate(c.Core(`(module (import "lib" "memory" (memory 1 1)) (data (i32.const 6) "!"))`), ct.Arg{Name: "lib", Index: lib})
	return c.Bytes()
}

// TestDataIsThereBeforeCodeThatNeedsIt: it is written at each place, in order, and not at all where the memory holds it already.
func TestDataIsThereBeforeCodeThatNeedsIt(t *testing.T) {
	m, err := load(t, spread(), given{})
	if err != nil {
		t.Fatal(err)
	}
	if data := m.p.Data(); data != 9 {
		t.Errorf("%d bytes of data before code has run, want 9", data)
	}
	modules, err := m.p.Modules()
	if err != nil {
		t.Fatal(err)
	}
	for i, wants := range []string{"passive", "", "7", ""} {
		m := string(modules[i])
		if strings.Contains(m, "abcdef") || strings.Contains(m, "CD") || !strings.Contains(m, wants) {
			t.Errorf("module %d: it has data that is written here, or lacks %q: %q", i, wants, m)
		}
	}
	const zero, full = "\x00", "\xaa"
	for _, c := range []struct {
		fill                byte
		known               bool
		before, after, none string
	}{
		{0, false, "abCDef", "abCDef", zero},
		{0xaa, true, strings.Repeat(full, 6), strings.Repeat(full, 6), full},
	} {
		found := ""
		memory := func(in *link.Instance, at, n uint32) string {
			b, _ := in.Modules()[0].Memory().Read(at, n)
			return string(b)
		}
		var first api.Module
		in, err := m.linked.Instantiate(experimental.WithMemoryAllocator(t.Context(), regions{c.fill}), link.Config{
			Filled: c.known,
			Made: func(mod api.Module) {
				if first == nil {
					first = mod
				}
			},
			Untouched: func() error {
				b, _ := first.Memory().Read(0, 110)
				found += string(b[98:104]) + string(b[60]) + string(b[70])
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]string{false: c.before + "x" + zero}[c.known]; found != want {
			t.Errorf("filled %t: before code runs the memory has %q, want %q", c.known, found, want)
		}
		if got, want := memory(in, 98, 6)+memory(in, 0, 7)+memory(in, 70, 3), c.after+"passiv!"+"77"+c.none; got != want {
			t.Errorf("filled %t: the memory has %q, want %q", c.known, got, want)
		}
	}
}

// TestDataBesideTheMemoryIsAnError as it is of the engine's; what is no data is left to the engine.
func TestDataBesideTheMemoryIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		`(module (memory 1) (data (i32.const 65535) "ab"))`:                        "out of bounds memory access",
		`(module (memory 1) (data (i32.const -1) "a"))`:                            "out of bounds memory access",
		`(module (data (i32.const 0) "a"))`:                                        "memory",
		`(module (memory 1) (data (i64.const 0) "a"))`:                             "offset",
		`(module (memory 1) (data (f32.const 0) "a"))`:                             "offset",
		`(module (memory 1) (global i32 (i32.const 0)) (data (global.get 0) "a"))`: "global",
	} {
		c := ct.New()
		c.Instantiate(c.Core(text))
		_, err := load(t, c.Bytes(), given{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
