// SPDX-License-Identifier: Apache-2.0

package encode_test

import (
	"bytes"
	"strings"
	"testing"

	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/component/encode"
)

// adapted calls an older interface: it has no cabi_realloc, and greet is made of another function.
const adapted = `(module
	(import "old" "length" (func $length (param i32) (result i32)))
	(import "$root" "tell" (func $tell (param i32 i32)))
	(memory (export "memory") 1)
	(data (i32.const 64) "begun")
	(func (export "_initialize") (call $tell (i32.const 64) (i32.const 5)))
	(func (export "room") (param i32) (result i32) (i32.const 1024))
	(func (export "double") (param i32) (i32.store8 (local.get 0) (i32.const 50)))
	(func (export "twice") (param i32) (result i32) (call $length (local.get 0))))`

// old answers the older interface with the memory of its own, in which the host's answer is put.
const old = `(module
	(import "test:test/host@1.0.0" "ask" (func $ask (param i32 i32 i32)))
	(memory (export "memory") 1)
	(global $begun (mut i32) (i32.const 0))
	(data (i32.const 64) "Ada Lovelace")
	(func (export "_initialize") (global.set $begun (i32.const 1)))
	(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
	(func (export "length") (param i32) (result i32)
		(call $ask (i32.const 64) (local.get 0) (i32.const 8))
		(if (i32.ne (i32.load (i32.const 8)) (i32.const 4096)) (then (unreachable)))
		(if (i32.ne (i32.load8_u (i32.const 4103)) (i32.const 65)) (then (unreachable)))
		(i32.mul (global.get $begun) (i32.load (i32.const 12)))))`

// front has greet, and what that needs of the module's memory.
const front = `(module
	(import "__main_module__" "memory" (memory 1))
	(import "__main_module__" "room" (func $room (param i32) (result i32)))
	(import "__main_module__" "double" (func $double (param i32)))
	(import "old" "length" (func $length (param i32) (result i32)))
	(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (call $room (local.get 3)))
	(func (export "greet") (param i32 i32) (result i32)
		(call $double (local.get 0))
		(i32.store8 offset=1 (local.get 0) (i32.add (i32.const 48) (call $length (i32.const 1))))
		(i32.store (i32.const 16) (local.get 0)) (i32.store (i32.const 20) (i32.const 2)) (i32.const 16)))`

func adapters(tb testing.TB) []encode.Adapter {
	tb.Helper()
	return []encode.Adapter{{Name: "old", Module: assemble(tb, old)}, {Module: assemble(tb, front)}}
}

// TestAdaptersStandBetween: one answers what the module imports, with a memory of its own, another makes an export of the
// module's functions, in the module's memory. Both are initialized before the module.
func TestAdaptersStandBetween(t *testing.T) {
	wasm, err := encode.Component(assemble(t, adapted), everything().Encode("w", 0), adapters(t)...)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{}
	call := running(t, wasm, h)
	if v := call("twice", uint32(3)); v != uint32(len("hello, Ada")) {
		t.Errorf("twice: %v", v)
	}
	if v := call("greet", "xx"); v != "28" { // what double has written, and the length of "hello, A"
		t.Errorf("greet: %v", v)
	}
	if got := strings.Join(h.told, " "); got != "begun" {
		t.Errorf("the host was told %q", got)
	}
}

// TestAnAdapterBringsItsWorld: what it needs is imported with what the module needs, and nothing that neither calls. It
// has strings as its own world says, which is not how the module has them.
func TestAnAdapterBringsItsWorld(t *testing.T) {
	own := &ct.World{}
	unused := &ct.InstanceType{}
	unused.Func("never", ct.U32)
	own.ImportInstance("test:test/unused@1.0.0", own.InstanceType(unused))
	names := &ct.InstanceType{}
	names.Export("pair", ct.Ref(names.Type(byte(0x72), 2, "a", ct.U32, "b", ct.String)))
	pair := own.Alias(own.ImportInstance("test:test/names@1.0.0", own.InstanceType(names)), "pair")
	own.Import("pair", ct.TypeSort, pair)
	asked := &ct.InstanceType{}
	asked.Func("ask", ct.String, ct.String)
	own.ImportInstance(iface, own.InstanceType(asked))

	w := &ct.World{}
	w.ImportInstance("test:test/other@1.0.0", w.InstanceType(unused))
	w.Export("twice", ct.Func, w.FuncType(ct.U32, ct.U32))
	module := assemble(t, `(module (import "old" "length" (func $length (param i32) (result i32)))
		(func (export "twice") (param i32) (result i32) (call $length (local.get 0))))`)
	adapter := encode.Adapter{Name: "old", Module: withSection(assemble(t, old), "component-type:old", own.Encode("own", 0))}
	wasm, err := encode.Component(module, w.Encode("w", 1), adapter)
	if err != nil {
		t.Fatal(err)
	}
	if v := running(t, wasm, &host{})("twice", uint32(3)); v != uint32(len("hello, Ada")) {
		t.Errorf("twice: %v", v)
	}
	for _, name := range []string{"unused", "other", "names"} {
		if strings.Contains(string(wasm), "test:test/"+name) {
			t.Errorf("%s is imported, and nothing calls it", name)
		}
	}
}

// TestHostileAdaptersAreRefused: each error names the adapter, and what is wrong with it.
func TestHostileAdaptersAreRefused(t *testing.T) {
	module := assemble(t, adapted)
	imports := func(fields string) encode.Adapter {
		return encode.Adapter{Name: "new", Module: assemble(t, "(module "+fields+")")}
	}
	exporting := &ct.World{}
	exporting.Export("twice", ct.Func, exporting.FuncType(ct.U32, ct.U32))
	poorer, resource := &ct.World{}, &ct.InstanceType{}
	resource.Resource("unheard-of")
	poorer.Import("alias", ct.TypeSort, poorer.Alias(poorer.ImportInstance(iface, poorer.InstanceType(resource)), "unheard-of"))
	typed := &ct.World{}
	typed.Import(iface, ct.Func, typed.FuncType(ct.U32))
	asking := assemble(t, `(module (import "test:test/host@1.0.0" "add" (func (param i32 i32) (result i32))))`)
	later, within := &ct.World{}, &ct.InstanceType{}
	within.Func("later", "")
	later.ImportInstance("test:test/later@1.0.0", later.InstanceType(within))
	async := bytes.Replace(later.Encode("own", 0), []byte("\x40\x00\x01\x00"), []byte("\x43\x00\x01\x00"), 1)
	for name, c := range map[string]struct {
		more []encode.Adapter // behind those that fit
		want string
	}{
		"no module": {[]encode.Adapter{{Name: "new", Module: []byte("module")}}, "adapter 3 (new): not a valid module"},
		"the name of another": {
			[]encode.Adapter{{Name: "old", Module: assemble(t, old)}},
			"adapter 3 (old): there is another one of this name",
		},
		"the name of an interface":  {[]encode.Adapter{{Name: iface}}, "adapter 3 (test:test/host@1.0.0): not a valid module"},
		"clashes with an interface": {[]encode.Adapter{{Name: iface, Module: assemble(t, old)}}, "imports an interface of this name"},
		"the module's name": {
			[]encode.Adapter{{Name: encode.MainModule, Module: assemble(t, old)}},
			`"__main_module__" names something else`,
		},
		"the world's name": {[]encode.Adapter{{Name: "$root", Module: assemble(t, old)}}, `"$root" names something else`},
		"imports of itself": {
			[]encode.Adapter{imports(`(import "new" "f" (func)) (func (export "f"))`)},
			"adapter 3 (new): import f of new: an adapter imports of the module and of adapters before it, so that there is no cycle",
		},
		"a cycle of two": {
			[]encode.Adapter{
				imports(`(import "newer" "g" (func)) (func (export "f"))`),
				{Name: "newer", Module: assemble(t, `(module (import "new" "f" (func)) (func (export "g")))`)},
			},
			"adapter 3 (new): import g of newer: an adapter imports of the module and of adapters before it",
		},
		"a function that the module does not have": {
			[]encode.Adapter{imports(`(import "__main_module__" "nothing" (func))`)}, "import nothing of __main_module__: there is no such export",
		},
		"a function of another type": {
			[]encode.Adapter{imports(`(import "__main_module__" "room" (func (param i64) (result i32)))`)},
			"import room of __main_module__: type mismatch: expected: (func (param i64) (result i32)), found: (func (param i32) (result i32))",
		},
		"a memory that is a function": {
			[]encode.Adapter{imports(`(import "__main_module__" "room" (memory 1))`)},
			"expected memory, found func",
		},
		"more memory than there is": {
			[]encode.Adapter{imports(`(import "__main_module__" "memory" (memory 2))`)},
			"mismatch in memory limits",
		},
		"a memory of nobody": {
			[]encode.Adapter{imports(`(import "env" "memory" (memory 1))`)},
			"import memory of env: it is a memory: only functions are imported",
		},
		"an interface that is not there": {
			[]encode.Adapter{imports(`(import "wasi:cli/exit@0.2.0" "exit" (func (param i32)))`)},
			"adapter 3 (new): import exit of wasi:cli/exit@0.2.0: the world does not import this interface, but test:test/host@1.0.0",
		},
		"no room for what the world answers": {
			[]encode.Adapter{imports(`(import "test:test/host@1.0.0" "ask" (func (param i32 i32 i32))) (memory (export "memory") 1)`)},
			"adapter 3 (new): import ask of test:test/host@1.0.0: its values need room in memory",
		},
		"a realloc of another type": {
			[]encode.Adapter{imports(`(func (export "cabi_realloc") (param i32) (result i32) (i32.const 0))`)},
			"export cabi_realloc: the canonical ABI wants",
		},
		"an export that two have": {[]encode.Adapter{{Module: assemble(t, front)}}, "export greet: two adapters have it"},
		"an export of another type": {
			[]encode.Adapter{{Module: assemble(t, `(module (func (export "twice")))`)}},
			"export twice: the world wants (func (param i32) (result i32)), the module has (func)",
		},
		"a world that exports": {
			[]encode.Adapter{{Name: "new", Module: withSection(asking, "component-type:x", exporting.Encode("own", 0))}},
			"its world test:test/own exports functions: that of an adapter has imports alone",
		},
		"a world that is none": {
			[]encode.Adapter{{Name: "new", Module: withSection(asking, "component-type:x", []byte("world"))}},
			"adapter 3 (new): the world: not a valid component",
		},
		"an interface without a type": {
			[]encode.Adapter{{Name: "new", Module: withSection(assemble(t, `(module (import "$root" "alias" (func))
				(import "test:test/host@1.0.0" "add" (func (param i32 i32) (result i32))))`), "component-type:x", poorer.Encode("own", 0))}},
			"its world test:test/own: it needs unheard-of of test:test/host@1.0.0, which was imported before without that",
		},
		"a function instead of the interface": {
			[]encode.Adapter{{Name: "new", Module: withSection(asking, "component-type:x", typed.Encode("own", 0))}},
			"its world test:test/own: it imports test:test/host@1.0.0 as func, which was imported before as instance",
		},
		"an asynchronous function": {
			[]encode.Adapter{{
				Name:   "new",
				Module: withSection(assemble(t, `(module (import "test:test/later@1.0.0" "later" (func)))`), "component-type:x", async),
			}},
			"adapter 3 (new): import later of test:test/later@1.0.0: it is asynchronous in the world, which is not supported",
		},
		"too many": {make([]encode.Adapter, 15), "17 adapters: at most 16 are allowed"},
	} {
		_, err := encode.Component(module, everything().Encode("w", 0), append(adapters(t), c.more...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
	}
	for lie, want := range map[string]string{
		`(func (export "length") (param i64) (result i32) (i32.const 0))`: "import length of old: type mismatch: expected: (func (param i32) (result i32)), found: (func (param i64) (result i32))",
		`(global (export "length") i32 (i32.const 0))`:                    "import length of old: type mismatch: expected func, found global",
		``: "import length of old: there is no such export",
	} {
		_, err := encode.Component(module, everything().Encode("w", 0), encode.Adapter{Name: "old", Module: assemble(t, "(module "+lie+")")})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", lie, err, want)
		}
	}
}

// FuzzAdapter: no adapter and no world of one makes it panic, or write what the validator refuses.
func FuzzAdapter(f *testing.F) {
	world, section := &ct.World{}, &ct.InstanceType{}
	section.Func("ask", ct.String, ct.String)
	world.ImportInstance(iface, world.InstanceType(section))
	module := assemble(f, adapted)
	f.Add(assemble(f, old), assemble(f, front), []byte(nil))
	f.Add(assemble(f, old), assemble(f, front), world.Encode("own", 0))
	f.Fuzz(func(t *testing.T, named, unnamed, own []byte) {
		if len(own) > 0 {
			named = withSection(named, "component-type:own", own)
		}
		both := []encode.Adapter{{Name: "old", Module: named}, {Module: unnamed}}
		_, err := encode.Component(module, everything().Encode("w", 0), both...)
		if err != nil && strings.Contains(err.Error(), "what was encoded") {
			t.Error(err)
		}
	})
}
