// SPDX-License-Identifier: Apache-2.0

package encode_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/component/encode"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

const iface = "test:test/host@1.0.0"

// everything is a world with an import of each kind: functions that need memory and that don't, one without an
// interface, a resource; and exports that do and don't.
func everything() *ct.World {
	host := &ct.InstanceType{}
	host.Func("ask", ct.String, ct.String)
	host.Func("add", ct.U32, ct.U32, ct.U32)
	file := host.Resource("file")
	host.Func("open", ct.Ref(host.Type(byte(0x69), file)))
	w := &ct.World{}
	w.ImportInstance(iface, w.InstanceType(host))
	w.Import("tell", ct.Func, w.FuncType("", ct.String))
	w.Export("greet", ct.Func, w.FuncType(ct.String, ct.String))
	w.Export("twice", ct.Func, w.FuncType(ct.U32, ct.U32))
	return w
}

// guest answers greet with what ask answers, and twice without memory.
const guest = `(module
	(import "test:test/host@1.0.0" "ask" (func $ask (param i32 i32 i32)))
	(import "test:test/host@1.0.0" "add" (func $add (param i32 i32) (result i32)))
	(import "$root" "tell" (func $tell (param i32 i32)))
	(import "test:test/host@1.0.0" "open" (func $open (result i32)))
	(import "test:test/host@1.0.0" "[resource-drop]file" (func $drop (param i32)))
	(memory (export "memory") 1)
	(data (i32.const 64) "begun freed")
	(global $free (mut i32) (i32.const 4096))
	(func (export "_initialize") (call $tell (i32.const 64) (i32.const 5)))
	(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
		(global.get $free)
		(global.set $free (i32.add (global.get $free) (local.get 3))))
	(func (export "greet") (param i32 i32) (result i32)
		(call $drop (call $open))
		(call $ask (local.get 0) (local.get 1) (i32.const 8))
		(i32.const 8))
	(func (export "cabi_post_greet") (param i32) (i32.store (i32.const 128) (i32.load (local.get 0))))
	(func (export "twice") (param i32) (result i32)
		(call $add (local.get 0) (i32.add (local.get 0) (i32.load (i32.const 128))))))`

// host answers, and keeps what it was told.
type host struct{ told []string }

func (h *host) Func(of, name string) link.HostFunc {
	return map[string]link.HostFunc{
		iface + "#ask": func(_ *link.Call, args []any) any { return "hello, " + link.Arg[string](args, 0) },
		iface + "#add": func(_ *link.Call, args []any) any { return link.Arg[uint32](args, 0) + link.Arg[uint32](args, 1) },
		iface + "#open": func(c *link.Call, _ []any) any {
			return &canon.Handle{Resource: c.Resource(iface, "file"), Rep: 7, Own: true}
		},
		"#tell": func(_ *link.Call, args []any) any {
			h.told = append(h.told, link.Arg[string](args, 0))
			return nil
		},
	}[of+"#"+name]
}

func (h *host) Drop(*link.Call, string, string, uint32) { h.told = append(h.told, "dropped") }

func assemble(tb testing.TB, text string) []byte {
	tb.Helper()
	b, err := wat.Assemble(text)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// running is an instance of a component.
func running(t *testing.T, wasm []byte, h link.Host) func(name string, args ...any) any {
	t.Helper()
	c, _, err := binary.Decode(wasm)
	if err != nil {
		t.Fatal(err)
	}
	p, err := link.Plan(c)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := p.Modules()
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
	var compiled []wazero.CompiledModule
	for _, m := range modules {
		code, err := r.CompileModule(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		compiled = append(compiled, code)
	}
	l, err := link.Link(t.Context(), r, p, compiled, h)
	if err != nil {
		t.Fatal(err)
	}
	in, err := l.Instantiate(t.Context(), link.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return func(name string, args ...any) any {
		v, err := in.Call(t.Context(), p.Func("", name), args...)
		if err != nil {
			t.Fatal(name, err)
		}
		return v
	}
}

// TestAModuleBecomesAComponent: every kind of import and export works, and the module's own function comes first.
func TestAModuleBecomesAComponent(t *testing.T) {
	wasm, err := encode.Component(assemble(t, guest), everything().Encode("w", 0))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{}
	call := running(t, wasm, h)
	if v := call("twice", uint32(21)); v != uint32(42) {
		t.Errorf("twice: %v", v)
	}
	if v := call("greet", "Ada"); v != "hello, Ada" {
		t.Errorf("greet: %v", v)
	}
	if v := call("twice", uint32(21)); v == uint32(42) { // greet's function for afterwards has left a number
		t.Error("nothing was called after greet")
	}
	if got := strings.Join(h.told, " "); got != "begun dropped" {
		t.Errorf("the host was told %q", got)
	}
}

// TestWithoutMemoryThereIsNoTable: functions of numbers alone are lowered directly.
func TestWithoutMemoryThereIsNoTable(t *testing.T) {
	w := &ct.World{}
	in := &ct.InstanceType{}
	in.Func("add", ct.U32, ct.U32, ct.U32)
	w.ImportInstance(iface, w.InstanceType(in))
	w.Export("twice", ct.Func, w.FuncType(ct.U32, ct.U32))
	wasm, err := encode.Component(assemble(t, `(module (import "test:test/host@1.0.0" "add" (func $add (param i32 i32) (result i32)))
		(func (export "twice") (param i32) (result i32) (call $add (local.get 0) (local.get 0))))`), w.Encode("w", 0))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(wasm, []byte("\x00asm\x01\x00\x00\x00")); n != 1 {
		t.Errorf("%d core modules, want 1", n)
	}
	if v := running(t, wasm, &host{})("twice", uint32(21)); v != uint32(42) {
		t.Errorf("twice: %v", v)
	}
}

// TestTypesOfInterfacesAreUsed: a record of an interface that the world names, in an export, and UTF-16.
func TestTypesOfInterfacesAreUsed(t *testing.T) {
	types := &ct.InstanceType{}
	types.Export("pair", ct.Ref(types.Type(byte(0x72), 2, "a", ct.U32, "b", ct.String)))
	w := &ct.World{}
	pair := w.Alias(w.ImportInstance("test:test/types@1.0.0", w.InstanceType(types)), "pair")
	w.Import("pair", ct.TypeSort, pair)
	w.Export("first", ct.Func, w.FuncType(ct.U32, ct.Ref(pair)))
	w.Export("second", ct.Func, w.FuncType(ct.String, ct.Ref(pair)))
	wasm, err := encode.Component(assemble(t, `(module (memory (export "memory") 1)
		(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
		(func (export "first") (param i32 i32 i32) (result i32) (i32.add (local.get 0) (i32.load16_u (local.get 1))))
		(func (export "second") (param i32 i32 i32) (result i32)
			(i32.store (i32.const 8) (local.get 1)) (i32.store (i32.const 12) (local.get 2)) (i32.const 8)))`), w.Encode("w", 1))
	if err != nil {
		t.Fatal(err)
	}
	call := running(t, wasm, &host{})
	if v := call("first", []any{uint32(1), "é"}); v != uint32(1+0xe9) {
		t.Errorf("first: %v", v)
	}
	if v := call("second", []any{uint32(1), "né€"}); v != "né€" {
		t.Errorf("second: %v", v)
	}
}

// withSection adds a custom section to a module.
func withSection(module []byte, name string, content []byte) []byte {
	body := ct.Join(name, content)
	return append(bytes.Clone(module), ct.Join(byte(0), len(body), body)...)
}

// TestTheModulesOwnWorldGoesBefore: it is taken, and the component has it no more.
func TestTheModulesOwnWorldGoesBefore(t *testing.T) {
	world := everything().Encode("w", 0)
	module := withSection(assemble(t, guest), "component-type:test", world)
	other := (&ct.World{}).Encode("other", 0)
	wasm, err := encode.Component(module, other)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(wasm, []byte("component-type")) {
		t.Error("the module's section is there still")
	}
	if _, err := encode.Component(withSection(module, "component-type:test", world), nil); err != nil {
		t.Errorf("the same world twice: %v", err)
	}
	_, err = encode.Component(withSection(module, "component-type:other", other), nil)
	if err == nil || !strings.Contains(err.Error(), "several worlds") {
		t.Errorf("two worlds: %v", err)
	}
}

// TestWhatDoesNotFitIsNamed: each error names the function, what was wanted and what was found.
func TestWhatDoesNotFitIsNamed(t *testing.T) {
	world := everything().Encode("w", 0)
	exporting := &ct.World{}
	exporting.Type(byte(0x42), 0)
	exporting.Export("test:test/out@1.0.0", ct.Instances, 0)
	for name, c := range map[string]struct {
		from, to string
		world    []byte
		want     string
	}{
		"an export is missing": {
			`(export "twice")`, ``, world,
			"export twice: the module does not have it: a function (func (param i32) (result i32)) was expected",
		},
		"an export of another type": {
			`(export "cabi_post_greet") (param i32)`, `(export "cabi_post_greet") (param i64)`, world,
			"export cabi_post_greet: the canonical ABI wants (func (param i32)), the module has (func (param i64))",
		},
		"an import of another type": {
			`"open" (func $open (result i32))`, `"open" (func $open (param i32) (result i32))`, world,
			"import open of test:test/host@1.0.0: the world wants (func (result i32)), the module has (func (param i32) (result i32))",
		},
		"an interface that isn't": {
			`"$root" "tell"`, `"wasi_snapshot_preview1" "tell"`, world,
			"import tell of wasi_snapshot_preview1: the world does not import this interface, but test:test/host@1.0.0",
		},
		"a function that isn't": {`"ask"`, `"asks"`, world, "import asks of test:test/host@1.0.0: the world has no such function there"},
		"a resource that isn't": {`[resource-drop]file`, `[resource-drop]ask`, world, "the interface has no resource ask"},
		"no memory": {
			`(memory (export "memory") 1)`, `(memory 1)`, world,
			"import ask of test:test/host@1.0.0: its values go by memory: the module has to export it as memory",
		},
		"no room in memory": {
			`"cabi_realloc"`, `"realloc"`, world,
			"the module has to export cabi_realloc, (func (param i32 i32 i32 i32) (result i32))",
		},
		"no world":                     {``, ``, nil, "the module has no section component-type"},
		"a world that is none":         {``, ``, []byte("world"), "the world: not a valid component"},
		"a world that is a component":  {``, ``, ct.New().Bytes(), "not in the form in which generators of bindings write one"},
		"a world exports an interface": {``, ``, exporting.Encode("w", 0), "exports the instance test:test/out@1.0.0: only functions are lifted"},
		"strings of an unknown kind":   {``, ``, everything().Encode("w", 3), "strings are encoded in the way 3"},
		"a world of a later version":   {``, ``, bytes.Replace(world, []byte("encoding\x04"), []byte("encoding\x05"), 1), "its encoding is of version 5, 4 is known"},
		"a world that is too large":    {``, ``, make([]byte, 1<<20+1), "1048577 bytes: at most 1048576 are allowed"},
	} {
		_, err := encode.Component(assemble(t, strings.Replace(guest, c.from, c.to, 1)), c.world)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
	}
	for module, want := range map[string]string{
		"no module": "not a valid module",
		"\x00asm\x01\x00\x00\x00\x02\x0f\x01\x03env\x06memory\x02\x00\x01": "import memory of env: it is a memory: only functions are imported",
	} {
		if _, err := encode.Component([]byte(module), world); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", module, err)
		}
	}
}

// FuzzComponent: no module and no world makes it panic, or write what the validator refuses.
func FuzzComponent(f *testing.F) {
	module, world := assemble(f, guest), everything().Encode("w", 0)
	f.Add(module, world)
	f.Add(withSection(module, "component-type:test", world), []byte(nil))
	f.Fuzz(func(t *testing.T, module, world []byte) {
		if _, err := encode.Component(module, world); err != nil && strings.Contains(err.Error(), "what was encoded") {
			t.Error(err)
		}
	})
}
