package host_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

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
	h, err := host.New(tb.Context(), host.Config{Interpreter: interpreter})
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

var hostileGuests = []struct {
	name, source string
	want         host.Kind
}{
	{"endless loop", `(func $run (param i32 i32) (result i64) (loop $l (br $l)) unreachable)`, host.Fuel},
	{"exponential chain without a loop", exponential(), host.Fuel},
	{"deep recursion", `(func $r (param i32) (result i32) (i32.add (i32.const 1) (call $r (i32.add (local.get 0) (i32.const 1)))))
		(func $run (param i32 i32) (result i64) (i64.extend_i32_u (call $r (i32.const 0))))`, host.StackDepth},
	{"recursion through a table", `(table 1 funcref) (elem (i32.const 0) $r) (type $t (func (param i32) (result i32)))
		(func $r (param i32) (result i32) (i32.add (i32.const 1) (call_indirect (type $t) (local.get 0) (i32.const 0))))
		(func $run (param i32 i32) (result i64) (i64.extend_i32_u (call $r (i32.const 0))))`, host.StackDepth},
	{"memory bomb", `(func $run (param i32 i32) (result i64) (loop $l (drop (memory.grow (i32.const 1))) (br $l)) unreachable)`, host.Fuel},
	{"huge memory.fill, over and over", `(func $run (param i32 i32) (result i64)
		(drop (memory.grow (i32.const 500)))
		(loop $l (memory.fill (i32.const 0) (i32.const 7) (i32.const 30000000)) (br $l)) unreachable)`, host.Fuel},
	{"huge memory.copy, over and over", `(func $run (param i32 i32) (result i64)
		(drop (memory.grow (i32.const 500)))
		(loop $l (memory.copy (i32.const 1) (i32.const 0) (i32.const 30000000)) (br $l)) unreachable)`, host.Fuel},
	{"output flood", `(func $run (param i32 i32) (result i64) (i64.const 0x7fffffff))`, host.OutputSize},
	{"answer outside of memory", `(func $run (param i32 i32) (result i64) (i64.const 0x7fffffff00000010))`, host.BadPointer},
	{"out of bounds", `(func $run (param i32 i32) (result i64) (i64.load (i32.const -8)))`, host.Trap},
	{"trap", `(func $run (param i32 i32) (result i64) unreachable)`, host.Trap},
	{"divide by zero", `(func $run (param i32 i32) (result i64) (i64.div_u (i64.const 1) (i64.const 0)))`, host.Trap},
	{"fill out of bounds", `(func $run (param i32 i32) (result i64) (memory.fill (i32.const 0) (i32.const 1) (i32.const -1)) (i64.const 0))`, host.Trap},
}

func TestHostileGuestsEndWithinTheirBudget(t *testing.T) {
	for _, interpreter := range []bool{false, true} {
		h := newHost(t, interpreter)
		for _, g := range hostileGuests {
			name := g.name + "/compiled"
			if interpreter {
				name = g.name + "/interpreted"
			}
			t.Run(name, func(t *testing.T) {
				limits := host.Limits{Fuel: 5_000_000, Deadline: 5 * time.Second}
				m := load(t, h, assemble(t, guest(g.source)), host.Options{Limits: limits})
				start := time.Now()
				_, _, err := m.Call(t.Context(), 1, []byte("{}"))
				var f *host.Fault
				if !errors.As(err, &f) || f.Kind != g.want {
					t.Fatalf("error %v, want a fault of kind %q", err, g.want)
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("it ran for %s", took)
				}
			})
		}
	}
}

func TestDeadlineHoldsWhereFuelIsPlenty(t *testing.T) {
	h := newHost(t, false)
	for _, g := range []string{hostileGuests[0].source, exponential(), hostileGuests[5].source} {
		m := load(t, h, assemble(t, guest(g)), host.Options{Limits: host.Limits{Fuel: 1 << 60, Deadline: 50 * time.Millisecond}})
		if err := m.Warm(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, _, err := m.Call(t.Context(), 1, nil)
		var f *host.Fault
		if !errors.As(err, &f) || f.Kind != host.Deadline {
			t.Fatalf("error %v, want a deadline", err)
		}
		if took := time.Since(start); took > 250*time.Millisecond {
			t.Errorf("a deadline of 50ms ended the call after %s", took)
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

func TestABusyGuestDoesNotHoldUpTheGarbageCollector(t *testing.T) {
	h := newHost(t, false)
	for _, g := range []string{hostileGuests[0].source, exponential(), hostileGuests[5].source} {
		m := load(t, h, assemble(t, guest(g)), host.Options{Limits: host.Limits{Fuel: 1 << 60, Deadline: 300 * time.Millisecond, Instances: runtime.GOMAXPROCS(0)}})
		done := make(chan error, 8)
		for range runtime.GOMAXPROCS(0) {
			go func() {
				_, _, err := m.Call(context.WithoutCancel(t.Context()), 1, nil)
				done <- err
			}()
		}
		var worst time.Duration
		for n := 0; n < runtime.GOMAXPROCS(0); {
			start := time.Now()
			runtime.GC()
			worst = max(worst, time.Since(start))
			select {
			case <-done:
				n++
			default:
			}
		}
		t.Logf("the longest collection beside busy guests took %s", worst)
		if worst > 250*time.Millisecond {
			t.Errorf("a collection took %s", worst)
		}
	}
}
