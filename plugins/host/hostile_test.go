// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// guest wraps fields of a module into one that a host accepts: it answers what
// the function $run leaves.
func guest(fields string) string {
	return `(module
		(memory (export "memory") 2)
		(global $heap (mut i32) (i32.const 65536))
		(func (export "describe") (result i64) (i64.const 0))
		(func (export "alloc") (param i32) (result i32) (global.get $heap))
		(func (export "call") (param i32 i32 i32) (result i64) (call $run (local.get 1) (local.get 2)))
		` + fields + `)`
}

func assemble(tb testing.TB, source string) []byte {
	tb.Helper()
	wasm, err := wat.Assemble(source)
	if err != nil {
		tb.Fatal(err)
	}
	return wasm
}

func newHost(tb testing.TB, interpreter bool) *host.Host {
	tb.Helper()
	h, err := host.New(tb.Context(), host.Config{InProcess: true, Interpreter: interpreter})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := h.Close(); err != nil {
			tb.Error(err)
		}
	})
	return h
}

func load(tb testing.TB, h *host.Host, wasm []byte, o host.Options) *host.Module {
	tb.Helper()
	if o.Name == "" {
		o.Name = "hostile"
	}
	m, err := h.Compile(tb.Context(), wasm, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := m.Close(); err != nil {
			tb.Error(err)
		}
	})
	return m
}

// exponential is a chain of functions that call the next one twice: no loop and
// no recursion, and more steps than atoms in a cat.
func exponential() string {
	var b strings.Builder
	b.WriteString("(func $f0 (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))\n")
	for i := 1; i < 64; i++ {
		b.WriteString("(func $f" + itoa(i) + " (param i32) (result i32) (call $f" + itoa(i-1) + " (call $f" + itoa(i-1) + " (local.get 0))))\n")
	}
	b.WriteString("(func $run (param i32 i32) (result i64) (i64.extend_i32_u (i32.and (i32.const 0) (call $f63 (i32.const 0)))))")
	return b.String()
}

func itoa(i int) string {
	if i < 10 {
		return string(rune('0' + i))
	}
	return itoa(i/10) + itoa(i%10)
}

// hostile is one shape of a plugin that means no good, or that has lost its way.
type hostile struct {
	name, source string
	want         host.Kind // the fault that it ends in; "" = it answers, and answers what is right
	imports      string
	limits       host.Limits // zero fields: the suite's own
	perCall      bool
	funcs        map[string]host.Func
	answer       string
}

const (
	importsCall   = `(import "wasmplane" "call" (func $host (param i32 i32 i32 i32 i32 i32) (result i64)))`
	importsRandom = `(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))`
	importsExit   = `(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))`
	importsWrite  = `(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))`
	importsPoll   = `(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))`
	// named is a host function's name at address 0.
	named = `(data (i32.const 0) "work") `
)

// forever makes a function that does something over and over.
func forever(body string) string {
	return `(func $run (param i32 i32) (result i64) (local $i i32) (loop $l ` + body + ` (br $l)) unreachable)`
}

// once makes a function that does something and has nothing to say.
func once(body string) string {
	return `(func $run (param i32 i32) (result i64) ` + body + ` (i64.const 0))`
}

// work are the host functions of the suite: one answers, one waits until it is
// told to end, one does more than the plugin can pay for.
var work = map[string]host.Func{"work": func(context.Context, []byte) ([]byte, error) { return []byte("done"), nil }}

var waits = map[string]host.Func{"work": func(ctx context.Context, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}}

var toils = map[string]host.Func{"work": func(ctx context.Context, _ []byte) ([]byte, error) {
	for {
		if err := host.Charge(ctx, 1000); err != nil {
			return nil, err
		}
	}
}}

var hostileGuests = []hostile{
	// Time.
	{name: "endless loop", source: `(func $run (param i32 i32) (result i64) (loop $l (br $l)) unreachable)`, want: host.Fuel},
	{name: "exponential chain without a loop", source: exponential(), want: host.Fuel},
	{name: "deep recursion", source: `(func $r (param i32) (result i32) (i32.add (i32.const 1) (call $r (i32.add (local.get 0) (i32.const 1)))))
		(func $run (param i32 i32) (result i64) (i64.extend_i32_u (call $r (i32.const 0))))`, want: host.StackDepth},
	{name: "recursion through a table", source: `(table 1 funcref) (elem (i32.const 0) $r) (type $t (func (param i32) (result i32)))
		(func $r (param i32) (result i32) (i32.add (i32.const 1) (call_indirect (type $t) (local.get 0) (i32.const 0))))
		(func $run (param i32 i32) (result i64) (i64.extend_i32_u (call $r (i32.const 0))))`, want: host.StackDepth},
	{name: "memory bomb", source: forever(`(drop (memory.grow (i32.const 1)))`), want: host.Fuel},
	{name: "huge memory.fill, over and over", source: `(func $run (param i32 i32) (result i64)
		(drop (memory.grow (i32.const 500)))
		(loop $l (memory.fill (i32.const 0) (i32.const 7) (i32.const 30000000)) (br $l)) unreachable)`, want: host.Fuel},
	{name: "huge memory.copy, over and over", source: `(func $run (param i32 i32) (result i64)
		(drop (memory.grow (i32.const 500)))
		(loop $l (memory.copy (i32.const 1) (i32.const 0) (i32.const 30000000)) (br $l)) unreachable)`, want: host.Fuel},
	{name: "mutual recursion", source: `(func $a (param i32) (result i32) (i32.add (i32.const 1) (call $b (local.get 0))))
		(func $b (param i32) (result i32) (i32.add (i32.const 1) (call $a (local.get 0))))
		(func $run (param i32 i32) (result i64) (i64.extend_i32_u (call $a (i32.const 0))))`, want: host.StackDepth},
	{name: "recursion with huge frames", source: `(func $r (param i64) (result i64) ` + strings.Repeat("(local i64)", 200) + `
		(i64.add (i64.const 1) (call $r (local.get 0))))
		(func $run (param i32 i32) (result i64) (call $r (i64.const 0)))`, want: host.StackDepth},
	{name: "a loop over a branch table", source: forever(`(block $b (block $c (br_table $b $c $l (i32.rem_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 3)))))`), want: host.Fuel},
	{name: "chain of indirect calls", source: `(table 3 funcref) (elem (i32.const 0) $a $b $c) (type $t (func))
		(func $a (call_indirect (type $t) (i32.const 1)) (call_indirect (type $t) (i32.const 1)))
		(func $b (call_indirect (type $t) (i32.const 2)) (call_indirect (type $t) (i32.const 2)))
		(func $c) ` + forever(`(call_indirect (type $t) (i32.const 0))`), want: host.Fuel},
	{name: "straight-line giant", source: `(global $g (mut i64) (i64.const 1)) ` + forever(strings.Repeat(`(global.set $g (i64.mul (global.get $g) (i64.const 3)))`, 2000)), want: host.Fuel},
	{name: "slow instructions", source: `(global $f (mut f64) (f64.const 2)) (global $d (mut i64) (i64.const 9223372036854775807)) ` +
		forever(`(global.set $f (f64.sqrt (f64.div (global.get $f) (f64.const 1.0000001)))) (global.set $d (i64.div_s (global.get $d) (i64.const 1)))`), want: host.Fuel},
	{name: "loads that miss the cache", source: `(func $run (param i32 i32) (result i64) (local $i i32) (drop (memory.grow (i32.const 500)))
		(loop $l (local.set $i (i32.and (i32.add (i32.mul (local.get $i) (i32.const 1103515245)) (i32.const 12345)) (i32.const 0xffffff)))
			(i32.store8 (local.get $i) (i32.const 1)) (br $l)) unreachable)`, want: host.Fuel},
	{name: "an allocator that never answers", source: `(func $run (param i32 i32) (result i64) (i64.const 0))`, imports: "alloc:(loop $l (br $l)) (i32.const 0)", want: host.Fuel},

	// Memory.
	{
		name: "growth to the limit, and every page touched", source: `(func $run (param i32 i32) (result i64) (local $at i32)
		(loop $grow (br_if $grow (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
		(loop $touch (i32.store8 (local.get $at) (i32.const 1)) (local.set $at (i32.add (local.get $at) (i32.const 4096))) (br $touch)) unreachable)`,
		want: host.Trap, limits: host.Limits{Fuel: 100_000_000},
	}, // it runs off the end
	{name: "growth beyond the limit", source: once(`(if (i32.eq (memory.grow (i32.const 60000)) (i32.const -1)) (then unreachable))`), want: host.Trap},
	{name: "memory.init, over and over", source: `(data $d "` + strings.Repeat("x", 120000) + `") ` + forever(`(memory.init $d (i32.const 0) (i32.const 0) (i32.const 120000))`), want: host.Fuel},
	{name: "memory.init out of bounds of its segment", source: `(data $d "` + strings.Repeat("x", 70000) + `") ` + once(`(memory.init $d (i32.const 0) (i32.const 1) (i32.const 70000))`), want: host.Trap},
	{name: "memory.init of a segment that is gone", source: `(data $d "` + strings.Repeat("x", 70000) + `") ` + once(`(data.drop $d) (memory.init $d (i32.const 0) (i32.const 0) (i32.const 70000))`), want: host.Trap},
	{name: "memory.init around the end of the address space", source: `(data $d "` + strings.Repeat("x", 70000) + `") ` + once(`(memory.init $d (i32.const -65536) (i32.const 0) (i32.const 70000))`), want: host.Trap},
	{name: "nothing but a leaf", source: `(func $run (param i32 i32) (result i64) (i64.const 0))`},
	{name: "table.grow, over and over", source: `(table 1 funcref) ` + forever(`(drop (table.grow (ref.null func) (i32.const 1000)))`), want: host.Fuel},
	{name: "table.fill, over and over", source: `(table 60000 funcref) ` + forever(`(table.fill (i32.const 0) (ref.null func) (i32.const 60000))`), want: host.Fuel},
	{name: "table.copy, over and over", source: `(table 60000 funcref) ` + forever(`(table.copy (i32.const 1) (i32.const 0) (i32.const 59999))`), want: host.Fuel},
	{name: "out of bounds", source: `(func $run (param i32 i32) (result i64) (i64.load (i32.const -8)))`, want: host.Trap},
	{name: "fill out of bounds", source: once(`(memory.fill (i32.const 0) (i32.const 1) (i32.const -1))`), want: host.Trap},
	{name: "copy out of bounds", source: once(`(memory.copy (i32.const 131071) (i32.const 0) (i32.const 2))`), want: host.Trap},

	// Traps.
	{name: "trap", source: `(func $run (param i32 i32) (result i64) unreachable)`, want: host.Trap},
	{name: "divide by zero", source: `(func $run (param i32 i32) (result i64) (i64.div_u (i64.const 1) (i64.const 0)))`, want: host.Trap},
	{name: "a number that fits nowhere", source: `(func $run (param i32 i32) (result i64) (i64.trunc_f64_s (f64.const nan)))`, want: host.Trap},
	{name: "an indirect call of another signature", source: `(table 1 funcref) (elem (i32.const 0) $a) (type $t (func (param i64))) (func $a) ` + once(`(call_indirect (type $t) (i64.const 1) (i32.const 0))`), want: host.Trap},
	{name: "an indirect call of nothing", source: `(table 4 funcref) (type $t (func)) ` + once(`(call_indirect (type $t) (i32.const 3))`), want: host.Trap},
	{name: "a trap in the midst of its work leaves nothing behind", source: `(global $n (mut i32) (i32.const 0)) ` +
		once(`(if (global.get $n) (then (loop $l (br $l)))) (global.set $n (i32.const 1)) (i32.store (i32.const 64) (i32.const 1)) unreachable`), want: host.Trap},
	{name: "exit", imports: importsExit, source: once(`(call $exit (i32.const 0))`), want: host.Exit},

	// What it answers.
	{name: "output flood", source: `(func $run (param i32 i32) (result i64) (i64.const 0x7fffffff))`, want: host.OutputSize},
	{name: "a flood of an error", source: `(func $run (param i32 i32) (result i64) (i64.const 0xffffffff))`, want: host.OutputSize},
	{name: "answer outside of memory", source: `(func $run (param i32 i32) (result i64) (i64.const 0x7fffffff00000010))`, want: host.BadPointer},
	{name: "answer over the end of memory", source: `(func $run (param i32 i32) (result i64) (i64.const 0x0001ffff00000010))`, want: host.BadPointer},
	{name: "answer that wraps around", source: `(func $run (param i32 i32) (result i64) (i64.const 0xfffffff000000020))`, want: host.BadPointer},
	{name: "answer inside the input", source: `(func $run (param i32 i32) (result i64) (i64.or (i64.shl (i64.extend_i32_u (i32.add (local.get 0) (i32.const 1))) (i64.const 32)) (i64.const 5)))`, answer: `"ask"`},
	{name: "an allocator that lies", source: once(``), imports: "alloc:(i32.const 0x7ffffff0)", want: host.BadPointer},
	{name: "an allocator at the very end", source: once(``), imports: "alloc:(i32.const 131071)", want: host.BadPointer},
	{name: "an allocator that refuses", source: once(``), imports: "alloc:(i32.const 0)", want: host.Refused},
	{name: "an allocator that traps", source: once(``), imports: "alloc:unreachable", want: host.Trap},
	{name: "residue of the call before", perCall: true, source: `(global $n (mut i32) (i32.const 48)) (func $run (param i32 i32) (result i64)
		(global.set $n (i32.add (global.get $n) (i32.const 1)))
		(i32.store8 (i32.const 100) (i32.add (i32.load8_u (i32.const 100)) (global.get $n)))
		(i64.const 0x6400000001))`, answer: "1"},

	// What it asks of the host.
	{name: "host-call flood", imports: importsCall, funcs: work, source: named + forever(`(drop (call $host (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))`), want: host.HostCalls},
	{name: "flood of calls that are not granted", imports: importsCall, source: named + forever(`(drop (call $host (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))`), want: host.HostCalls},
	{name: "flood of looks at the last reply", imports: importsCall, source: named + forever(`(drop (call $host (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))`), want: host.Fuel},
	{
		name: "a host call that waits", imports: importsCall, funcs: waits, limits: host.Limits{Deadline: 100 * time.Millisecond},
		source: named + once(`(drop (call $host (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))`), want: host.Deadline,
	},
	{name: "a host call that is hard work", imports: importsCall, funcs: toils, source: named + forever(`(drop (call $host (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))`), want: host.Fuel},
	{name: "a host call's name outside of memory", imports: importsCall, source: once(`(drop (call $host (i32.const -4) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))`), want: host.BadPointer},
	{name: "a host call's input outside of memory", imports: importsCall, funcs: work, source: named + once(`(drop (call $host (i32.const 0) (i32.const 4) (i32.const 0) (i32.const -1) (i32.const 0) (i32.const 0)))`), want: host.BadPointer},
	{name: "a reply outside of memory", imports: importsCall, funcs: work, source: named + once(`(drop (call $host (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const -2) (i32.const 100)))`), want: host.BadPointer},
	{name: "random numbers by the megabyte", imports: importsRandom, source: forever(`(drop (call $random (i32.const 0) (i32.const 131072)))`), want: host.Fuel},
	{name: "a flood of printing", imports: importsWrite, source: `(data (i32.const 0) "\08\00\00\00\00\00\01\00") ` + forever(`(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))`), want: host.Fuel},
	{name: "sleep", imports: importsPoll, source: `(data (i32.const 24) "\ff\ff\ff\ff\ff\ff\ff\7f") ` + forever(`(drop (call $poll (i32.const 0) (i32.const 100) (i32.const 1) (i32.const 200)))`), want: host.Fuel},

	// Start-up.
	{name: "a start function that never ends", source: once(``) + ` (func $spin (loop $l (br $l))) (start $spin)`, want: host.Fuel},
	{name: "an initialiser that never ends", source: once(``) + ` (func (export "_initialize") (loop $l (br $l)))`, want: host.Fuel},
	{name: "an initialiser that recurses", source: once(``) + ` (func $r (export "_initialize") (call $r) (drop (memory.size)))`, want: host.StackDepth},
	{name: "exit at start-up", imports: importsExit, source: once(``) + ` (func (export "_initialize") (call $exit (i32.const 1)))`, want: host.Exit},
	{name: "a trap at start-up", source: once(``) + ` (func $t unreachable) (start $t)`, want: host.Trap},
}

// suiteLimits are the budget of every shape that does not name its own.
// Deadlines are no part of it, but where a shape names one: on a busy machine the fuel lasts for long.
var suiteLimits = host.Limits{Fuel: 5_000_000, Deadline: 5 * time.Minute, StartFuel: 5_000_000, StartDeadline: 5 * time.Minute}

// options put a shape's limits over the suite's.
func (g *hostile) options() host.Options {
	l := suiteLimits
	if g.limits.Fuel != 0 {
		l.Fuel = g.limits.Fuel
	}
	if g.limits.Deadline != 0 {
		l.Deadline = g.limits.Deadline
	}
	return host.Options{Name: "hostile", Limits: l, PerCall: g.perCall, Funcs: g.funcs}
}

// module is the shape in the text format; imports that begin with alloc: are the
// body of its allocator.
func (g *hostile) module() string {
	if body, ok := strings.CutPrefix(g.imports, "alloc:"); ok {
		return strings.Replace(guest(g.source), "(global.get $heap))", body+")", 1)
	}
	return strings.Replace(guest(g.source), "(module", "(module "+g.imports, 1)
}

// TestHostileGuestsEndWithinTheirBudget: each shape ends as it should, twice in a
// row, within twice its budget; and beside it, a request of another plugin of the same process
// has its right answer.
func TestHostileGuestsEndWithinTheirBudget(t *testing.T) {
	if len(hostileGuests) < 40 {
		t.Errorf("there are only %d shapes", len(hostileGuests))
	}
	for _, interpreter := range []bool{false, true} {
		h := newHost(t, interpreter)
		neighbour := load(t, h, assemble(t, guest(`(func $run (param i32 i32) (result i64) (i64.or (i64.shl (i64.extend_i32_u (local.get 0)) (i64.const 32)) (i64.extend_i32_u (local.get 1))))`)),
			host.Options{Name: "neighbour", Limits: host.Limits{Deadline: time.Minute}})
		engine := "compiled"
		if interpreter {
			engine = "interpreted"
		}
		for i := range hostileGuests {
			g := &hostileGuests[i]
			t.Run(g.name+"/"+engine, func(t *testing.T) {
				g.run(t, h, neighbour)
			})
		}
	}
}

func (g *hostile) run(t *testing.T, h *host.Host, neighbour *host.Module) {
	t.Helper()
	o := g.options()
	m := load(t, h, assemble(t, g.module()), o)
	beside := make(chan error, 1)
	go func() {
		out, _, err := neighbour.Call(context.WithoutCancel(t.Context()), 1, []byte("hello"))
		if err == nil && string(out) != "hello" {
			err = fmt.Errorf("it answered %q", out)
		}
		beside <- err
	}()
	for range 2 { // the second time, nothing may be left of the first
		var out []byte
		var spent int64
		used := processorTime(t)
		err := m.With(t.Context(), func(in *host.Instance) (err error) {
			out, _, err = in.Call(t.Context(), 1, []byte(`{"ask":1}`))
			spent = in.Spent()
			return err
		})
		g.withinBudget(t, o.Limits, spent, processorTime(t)-used, err)
		if g.want == "" {
			if err != nil || string(out) != g.answer {
				t.Fatalf("it answers %q, %v; want %q", out, err, g.answer)
			}
			continue
		}
		var f *host.Fault
		if !errors.As(err, &f) || f.Kind != g.want {
			t.Fatalf("error %v, want a fault of kind %q", err, g.want)
		}
		if f.Plugin != "hostile" || f.Detail == "" {
			t.Errorf("the fault says too little: %+v", f)
		}
	}
	if err := <-beside; err != nil {
		t.Errorf("a request of another plugin, beside it: %v", err)
	}
}

// aside is what the process may do beside a guest that is being watched: the
// collector, the neighbour, the compiler of the next instance. It is the margin of bounds on processor time.
const aside = 500 * time.Millisecond

// withinBudget: twice its fuel, of which each call takes some; and, where the deadline
// ends it, twice that on the clock of the process's processors, which stands still while others have the machine.
func (g *hostile) withinBudget(t *testing.T, l host.Limits, spent int64, used time.Duration, err error) {
	t.Helper()
	if spent > 2*l.Fuel {
		t.Errorf("it used %d units of %d", spent, l.Fuel)
	}
	var f *host.Fault
	switch starts := errors.As(err, &f) && strings.HasPrefix(f.Detail, "while it started"); {
	case starts: // there is no instance to ask
	case spent <= 0:
		t.Errorf("it used %d units: every call costs something", spent)
	}
	if g.want == host.Deadline && used > 2*l.Deadline+aside {
		t.Errorf("a deadline of %s ended it after %s of processor time", l.Deadline, used)
	}
}

// processorTime is that of the whole process.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestDeadlineHoldsWhereFuelIsPlenty(t *testing.T) {
	h := newHost(t, false)
	for _, g := range []string{hostileGuests[0].source, exponential(), hostileGuests[5].source} {
		m := load(t, h, assemble(t, guest(g)), host.Options{Limits: host.Limits{Fuel: 1 << 60, Deadline: 50 * time.Millisecond}})
		if err := m.Warm(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := processorTime(t)
		_, _, err := m.Call(t.Context(), 1, nil)
		var f *host.Fault
		if !errors.As(err, &f) || f.Kind != host.Deadline {
			t.Fatalf("error %v, want a deadline", err)
		}
		// Its fuel would last for years.
		if used := processorTime(t) - before; used > 2*50*time.Millisecond+aside {
			t.Errorf("a deadline of 50ms ended the call after %s of processor time", used)
		}
	}
}

func TestFuelIsTheSameOnBothEngines(t *testing.T) {
	source := guest(`
		(func $fib (param i32) (result i32)
			(if (result i32) (i32.lt_u (local.get 0) (i32.const 2))
				(then (local.get 0))
				(else (i32.add (call $fib (i32.sub (local.get 0) (i32.const 1))) (call $fib (i32.sub (local.get 0) (i32.const 2)))))))
		(func $run (param i32 i32) (result i64) (local $i i32)
			(memory.fill (i32.const 1024) (i32.const 3) (i32.const 100000))
			(memory.copy (i32.const 1030) (i32.const 1024) (i32.const 90000))
			(loop $l
				(local.set $i (i32.add (local.get $i) (call $fib (i32.const 12))))
				(br_if $l (i32.lt_u (local.get $i) (i32.const 20000))))
			(i32.store (i32.const 0) (local.get $i))
			(i64.const 4))`)
	var fuels []int64
	var answers []string
	for _, interpreter := range []bool{false, true} {
		m := load(t, newHost(t, interpreter), assemble(t, source), host.Options{Limits: host.Limits{Deadline: time.Minute}})
		for range 2 {
			out, u, err := m.Call(t.Context(), 1, []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			fuels, answers = append(fuels, u.Fuel), append(answers, string(out))
		}
	}
	for i := range fuels {
		if fuels[i] != fuels[0] || answers[i] != answers[0] {
			t.Fatalf("fuel %v, answers %q differ", fuels, answers)
		}
	}
	if fuels[0] < 100_000 {
		t.Errorf("only %d units for some 150,000 calls", fuels[0])
	}
}

// TestABusyGuestDoesNotHoldUpTheGarbageCollector: collections end while guests run
// on every processor, long before those do.
func TestABusyGuestDoesNotHoldUpTheGarbageCollector(t *testing.T) {
	h := newHost(t, false)
	for _, g := range []string{hostileGuests[0].source, exponential(), hostileGuests[5].source} {
		const budget = 10 * time.Minute
		m := load(t, h, assemble(t, guest(g)),
			host.Options{Limits: host.Limits{Fuel: 1 << 60, Deadline: budget, Instances: runtime.GOMAXPROCS(0)}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, runtime.GOMAXPROCS(0))
		for range runtime.GOMAXPROCS(0) {
			go func() {
				_, _, err := m.Call(ctx, 1, nil)
				done <- err
			}()
		}
		var worst time.Duration
		for range 10 {
			start := time.Now()
			runtime.GC()
			worst = max(worst, time.Since(start))
		}
		select {
		case err := <-done:
			t.Errorf("a guest ended beside the collector: %v", err)
			done <- err
		default:
		}
		cancel()
		for range runtime.GOMAXPROCS(0) {
			<-done
		}
		t.Logf("the longest of ten collections beside busy guests took %s", worst)
		if worst > budget/10 {
			t.Errorf("a collection took %s", worst)
		}
	}
}
