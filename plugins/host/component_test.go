// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// library is a core module of its own, which the plugin's main module shares: memory, allocation, and work.
const library = `(module
	(memory (export "memory") 1)
	(global $free (mut i32) (i32.const 4096))
	(global $calls (mut i32) (i32.const 0))
	(func (export "realloc") (param i32 i32 i32 i32) (result i32)
		(global.set $free (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
		(global.get $free)
		(global.set $free (i32.add (global.get $free) (local.get 3))))
	(func (export "reset") (param i32) (global.set $free (i32.const 4096)))
	(func (export "count") (result i32)
		(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
		(global.get $calls))
	(func (export "burn") (loop $l (br $l)))
	(func (export "grow") (loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))))
	(data (i32.const 64) "{\"abi\":1,\"name\":\"c\"}"))`

// mainModule answers operation 1 with its input, 2 with how often it was called, 3 never; 4 fails, 5 takes all
// memory, 6 calls itself, 7 the host.
const mainModule = `(module
	(import "lib" "count" (func $count (result i32)))
	(import "lib" "burn" (func $burn))
	(import "lib" "grow" (func $grow))
	(import "lib" "memory" (memory 1))
	(import "host" "call" (func $host (param i32 i32 i32 i32 i32)))
	(func $deep (param i64 i64 i64 i64) (result i64)
		(i64.add (call $deep (local.get 0) (local.get 1) (local.get 2) (local.get 3)) (i64.const 1)))
	(func (export "describe") (result i32) (i32.store (i32.const 16) (i32.const 64)) (i32.store (i32.const 20) (i32.const 20)) (i32.const 16))
	(func $some (param $at i32) (param $n i32) (result i32)
		(i32.store (i32.const 16) (i32.const 0)) (i32.store (i32.const 20) (i32.const 1))
		(i32.store (i32.const 24) (local.get $at)) (i32.store (i32.const 28) (local.get $n)) (i32.const 16))
	(func (export "call") (param $op i32) (param $at i32) (param $n i32) (result i32)
		(if (i32.eq (local.get $op) (i32.const 2)) (then
			(i32.store8 (i32.const 1000) (i32.add (i32.const 48) (call $count))) (return (call $some (i32.const 1000) (i32.const 1)))))
		(if (i32.eq (local.get $op) (i32.const 3)) (then (call $burn)))
		(if (i32.eq (local.get $op) (i32.const 4)) (then
			(i32.store (i32.const 16) (i32.const 1)) (i32.store (i32.const 20) (local.get $at))
			(i32.store (i32.const 24) (local.get $n)) (return (i32.const 16))))
		(if (i32.eq (local.get $op) (i32.const 5)) (then (call $grow)))
		(if (i32.eq (local.get $op) (i32.const 6)) (then (drop (call $deep (i64.const 1) (i64.const 1) (i64.const 1) (i64.const 1)))))
		(if (i32.eq (local.get $op) (i32.const 7)) (then
			(call $host (local.get $at) (local.get $n) (local.get $at) (local.get $n) (i32.const 32))
			(if (i32.load8_u (i32.const 32)) (then (return (call $some (i32.load (i32.const 40)) (i32.load (i32.const 44))))))
			(return (call $some (i32.load (i32.const 36)) (i32.load (i32.const 40))))))
		(call $some (local.get $at) (local.get $n))))`

// plugin is a component of the world "plugin", of two core modules and the shim for what they import.
func plugin() []byte { return pluginOf(library, mainModule) }

// pluginOf is the same of other modules.
func pluginOf(library, mainModule string) []byte {
	c := ct.New()
	octets := c.List(ct.U8)
	host := &ct.InstanceType{}
	list := ct.Ref(host.Type(byte(0x70), ct.U8))
	failure := ct.Ref(host.Type(byte(0x71), 2, "refused", byte(1), ct.String, byte(0), "failed", byte(1), ct.String, byte(0)))
	named := ct.Ref(host.Export("call-error", failure))
	host.Func("call", ct.Ref(host.Type(byte(0x6a), byte(1), list, byte(1), named)), ct.String, list)
	in := c.ImportInstance("wasmplane:plugin/host@1.0.0", c.InstanceType(host))
	hostCall := c.Alias(ct.Func, in, "call")

	lib := c.Instantiate(c.Core(library))
	memory, realloc := ct.Mem(c.Memory(lib, "memory")), ct.Realloc(c.CoreFunc(lib, "realloc"))
	env := c.Bundle(ct.Arg{Name: "call", Index: c.Lower(hostCall, memory, realloc)})
	main := c.Instantiate(c.Core(mainModule), ct.Arg{Name: "lib", Index: lib}, ct.Arg{Name: "host", Index: env})
	post := ct.PostReturn(c.CoreFunc(lib, "reset"))
	c.Export("describe", ct.Func, c.Lift(c.CoreFunc(main, "describe"), c.FuncType(ct.String), memory, realloc))
	result := c.Result(c.Option(octets), ct.String)
	c.Export("call", ct.Func, c.Lift(c.CoreFunc(main, "call"), c.FuncType(result, ct.S32, octets), memory, realloc, post))
	return c.Bytes()
}

// TestComponentsAreEqualsOfModules: they describe themselves, answer, fail, and run out of the same budgets, over
// all of their core modules together.
func TestComponentsAreEqualsOfModules(t *testing.T) {
	for _, interpreter := range []bool{false, true} {
		h := newHost(t, interpreter)
		m := load(t, h, plugin(), host.Options{Limits: host.Limits{Deadline: 5 * time.Minute, Fuel: 20_000_000}, Funcs: map[string]host.Func{
			"hello": func(_ context.Context, input []byte) ([]byte, error) { return append([]byte("hi "), input...), nil },
			"fail":  func(context.Context, []byte) ([]byte, error) { return nil, errors.New("no luck") },
		}})
		var described []byte
		if err := m.With(t.Context(), func(in *host.Instance) (err error) {
			described, err = in.Describe(t.Context())
			return err
		}); err != nil || string(described) != `{"abi":1,"name":"c"}` {
			t.Fatalf("described as %q, %v", described, err)
		}
		out, u, err := m.Call(t.Context(), 1, []byte("input"))
		if err != nil || string(out) != "input" || u.Fuel < 100 || u.Fuel > 20_000 || u.Memory != 1<<16 {
			t.Errorf("got %q, %+v, %v", out, u, err)
		}
		for input, want := range map[string]string{
			"hello": "hi hello", "fail": "no luck",
			"read": `host function "read" is not granted to plugin "hostile" (grants)`,
		} {
			if out, _, err := m.Call(t.Context(), 7, []byte(input)); err != nil || string(out) != want {
				t.Errorf("the host answers %q, %v; want %q", out, err, want)
			}
		}
		var said *host.GuestError
		if _, _, err := m.Call(t.Context(), 4, []byte("no")); !errors.As(err, &said) || said.Message != "no" {
			t.Errorf("its own error: %v", err)
		}
		_, _, err = m.Call(t.Context(), 3, nil)
		wantFault(t, err, host.Fuel, "limits.fuel")
		_, _, err = m.Call(t.Context(), 6, nil)
		wantFault(t, err, host.StackDepth,
			map[bool]string{false: "limits.stack", true: "stack overflow"}[interpreter]) // the interpreter's own stack is smaller
		if out, _, err := m.Call(t.Context(), 1, []byte("again")); err != nil || string(out) != "again" {
			t.Errorf("after faults: %q, %v", out, err)
		}
	}
}

// TestFuelOfComponentsIsDeterministic: what a call costs is the same each time, and on both engines.
func TestFuelOfComponentsIsDeterministic(t *testing.T) {
	var spent []int64
	for _, interpreter := range []bool{false, true} {
		m := load(t, newHost(t, interpreter), plugin(), host.Options{PerCall: true})
		for range 3 {
			_, u, err := m.Call(t.Context(), 1, []byte(strings.Repeat("x", 1000)))
			if err != nil {
				t.Fatal(err)
			}
			spent = append(spent, u.Fuel)
		}
	}
	for _, n := range spent {
		if n != spent[0] {
			t.Errorf("calls cost %v", spent)
		}
	}
}

// TestComponentsArePutBack: isolated per call, a component finds every module's globals and memory as they were.
func TestComponentsArePutBack(t *testing.T) {
	for perCall, want := range map[bool]string{true: "111", false: "123"} {
		m := load(t, newHost(t, false), plugin(), host.Options{PerCall: perCall, Limits: host.Limits{Instances: 1}})
		got := ""
		for range 3 {
			out, _, err := m.Call(t.Context(), 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			got += string(out)
		}
		if got != want {
			t.Errorf("per call %t: counted %s, want %s", perCall, got, want)
		}
	}
}

// TestMemoriesOfComponentsAreBoundedTogether: what one takes, no other gets.
func TestMemoriesOfComponentsAreBoundedTogether(t *testing.T) {
	m := load(t, newHost(t, false), plugin(), host.Options{Limits: host.Limits{Memory: 1 << 20}})
	_, u, err := m.Call(t.Context(), 5, nil)
	if err != nil || u.Memory != 1<<20 {
		t.Errorf("it has %d bytes, %v", u.Memory, err)
	}
}

// TestWhatIsNoPluginIsRefused: a component without the exports, one that wants more than it is given, one that is broken.
func TestWhatIsNoPluginIsRefused(t *testing.T) {
	greedy := ct.New()
	it := &ct.InstanceType{}
	it.Func("handle", "", ct.U32)
	greedy.ImportInstance("wasi:http/outgoing-handler@0.2.3", greedy.InstanceType(it))
	lib := greedy.Instantiate(greedy.Core(`(module (memory (export "memory") 1) (func (export "describe") (result i32) (i32.const 8)) (func (export "validate") (param i32 i32) (result i32) (i32.const 8))
		(func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))`))
	memory, realloc := ct.Mem(greedy.Memory(lib, "memory")), ct.Realloc(greedy.CoreFunc(lib, "realloc"))
	greedy.Export("describe", ct.Func, greedy.Lift(greedy.CoreFunc(lib, "describe"), greedy.FuncType(ct.String), memory))
	answer := greedy.Result(greedy.Option(ct.String), ct.String)
	greedy.Export("validate", ct.Func, greedy.Lift(greedy.CoreFunc(lib, "validate"), greedy.FuncType(answer, ct.String), memory, realloc))
	for want, wasm := range map[string][]byte{
		"exports no function describe":                          ct.New().Bytes(),
		"is not given: wasi:http/outgoing-handler@0.2.3#handle": greedy.Bytes(),
		"not a valid component: malformed section id: 77":       append(ct.New().Bytes(), 77, 0),
	} {
		_, err := newHost(t, false).Compile(t.Context(), wasm, host.Options{Name: "bad"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// large is the same plugin with so many bytes of data, at the end of which its calls are counted (operation 2).
func large(bytes int) []byte {
	pages := bytes>>16 + 4
	content := strings.Repeat("0123456789abcdef", bytes/16-1) + strings.Repeat("\\00", 16)
	more := strings.NewReplacer(`(memory (export "memory") 1)`, fmt.Sprintf(`(memory (export "memory") %d)`, pages),
		`(global.set $calls (i32.add (global.get $calls) (i32.const 1)))`, fmt.Sprintf(`
			(i32.store8 (i32.const %[1]d) (i32.add (i32.load8_u (i32.const %[1]d)) (i32.const 1)))
			(global.set $calls (i32.load8_u (i32.const %[1]d)))`, bytes+1<<16-1),
		`"c\"}"))`, fmt.Sprintf(`"c\"}") (data (i32.const 65536) "%s"))`, content))
	return pluginOf(more.Replace(library), mainModule)
}

// TestInstancesBeginWithWhatTheirDataIs: a component with much data has it mapped, not copied, into all instances but the first, and
// none of them sees what others write.
func TestInstancesBeginWithWhatTheirDataIs(t *testing.T) {
	for _, c := range []struct {
		data                 int
		interpreter, perCall bool
		kept                 bool
		again                string // what one counts that was used before
	}{
		{data: 1 << 16, again: "2"},
		{data: 2 << 20, kept: true, again: "2"},
		{data: 2 << 20, kept: true, perCall: true, again: "1"},
		{data: 2 << 20, kept: true, interpreter: true, perCall: true, again: "1"},
	} {
		m := load(t, newHost(t, c.interpreter), large(c.data), host.Options{PerCall: c.perCall, Limits: host.Limits{Instances: 3}})
		count := func(want string) *host.Instance {
			in, err := m.Lease(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if out, _, err := in.Call(t.Context(), 2, nil); err != nil || string(out) != want {
				t.Errorf("%+v: it counted %q, %v; want %s", c, out, err, want)
			}
			if b, err := in.Describe(t.Context()); err != nil || string(b) != `{"abi":1,"name":"c"}` {
				t.Errorf("%+v: it describes itself as %q, %v", c, b, err)
			}
			return in
		}
		for _, want := range []string{"1", c.again} {
			for _, in := range []*host.Instance{count(want), count(want), count(want)} {
				m.Release(in, nil)
			}
		}
		if m.Kept() != c.kept {
			t.Errorf("%+v: an image is kept: %t", c, m.Kept())
		}
	}
}

// TestComponentsAreCompiledInChildren: each core module in a child process with its limits, and kept for the next start.
func TestComponentsAreCompiledInChildren(t *testing.T) {
	cache := t.TempDir()
	for range 2 {
		h, err := host.New(t.Context(), host.Config{CacheDir: cache})
		if err != nil {
			t.Fatal(err)
		}
		m := load(t, h, plugin(), host.Options{})
		if out, _, err := m.Call(t.Context(), 1, []byte("input")); err != nil || string(out) != "input" {
			t.Errorf("got %q, %v", out, err)
		}
		if err := errors.Join(m.Close(), h.Close()); err != nil {
			t.Error(err)
		}
	}
	kept, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(kept) < 2 {
		t.Errorf("%d files are kept, %v", len(kept), err)
	}
}
