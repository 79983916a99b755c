// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

const callsHost = `(import "wasmplane" "call" (func $host (param i32 i32 i32 i32 i32 i32) (result i64)))`

// imports puts imports in front of guest's fields.
func importing(imports, fields string) string {
	return strings.Replace(guest(fields), "(module", "(module "+imports, 1)
}

func wantFault(t *testing.T, err error, kind host.Kind, text string) *host.Fault {
	t.Helper()
	var f *host.Fault
	if !errors.As(err, &f) || f.Kind != kind || !strings.Contains(f.Error(), text) {
		t.Fatalf("error %v, want a fault of kind %q with %q", err, kind, text)
	}
	return f
}

func TestHostCallsAreGrantedCountedAndTimed(t *testing.T) {
	h := newHost(t, false)
	// Calls the function named by the input, and answers the reply or the error.
	source := importing(callsHost, `
		(func $run (param $at i32) (param $length i32) (result i64) (local $n i64)
			(local.set $n (call $host (local.get $at) (local.get $length) (i32.const 0) (i32.const 0) (i32.const 1024) (i32.const 8)))
			(if (i64.lt_s (local.get $n) (i64.const 0))
				(then
					(local.set $n (call $host (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 2048) (i32.const 1000)))
					(return (i64.or (i64.or (i64.const 0x80000000) (local.get $n)) (i64.shl (i64.const 2048) (i64.const 32))))))
			(i64.or (local.get $n) (i64.shl (i64.const 1024) (i64.const 32))))`)
	slow := func(ctx context.Context, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	m := load(t, h, assemble(t, source), host.Options{Limits: host.Limits{Deadline: 30 * time.Millisecond}, Funcs: map[string]host.Func{
		"hello": func(context.Context, []byte) ([]byte, error) { return []byte("hi"), nil },
		"fail":  func(context.Context, []byte) ([]byte, error) { return nil, errors.New("no luck") },
		"slow":  slow,
		"big":   func(context.Context, []byte) ([]byte, error) { return make([]byte, 2<<20), nil },
	}})
	out, u, err := m.Call(t.Context(), 1, []byte("hello"))
	if err != nil || string(out) != "hi" || u.HostCalls != 1 {
		t.Errorf("%q, %+v, %v", out, u, err)
	}
	for name, want := range map[string]string{
		"fail": "no luck", "big": "the reply of 2097152 bytes is more than",
		"read": `host function "read" is not granted to plugin "hostile" (grants)`,
	} {
		_, _, err := m.Call(t.Context(), 1, []byte(name))
		var said *host.GuestError
		if !errors.As(err, &said) || !strings.Contains(said.Message, want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	_, _, err = m.Call(t.Context(), 1, []byte("slow"))
	wantFault(t, err, host.Deadline, "limits.deadline")

	flood := importing(callsHost, `(data (i32.const 0) "hello")
		(func $run (param i32 i32) (result i64)
			(loop $l (drop (call $host (i32.const 0) (i32.const 5) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))) (br $l)) unreachable)`)
	m = load(t, h, assemble(t, flood), host.Options{})
	_, _, err = m.Call(t.Context(), 1, nil)
	wantFault(t, err, host.HostCalls, "more than 64 times (limits.hostCalls)")
	for _, pointers := range []string{
		"(i32.const -4) (i32.const 5) (i32.const 0) (i32.const 0)",
		"(i32.const 0) (i32.const 5) (i32.const -1) (i32.const 100)",
	} {
		m = load(t, h,
			assemble(t, importing(callsHost, `(func $run (param i32 i32) (result i64) (call $host `+pointers+` (i32.const 0) (i32.const 0)))`)),
			host.Options{})
		_, _, err = m.Call(t.Context(), 1, nil)
		wantFault(t, err, host.BadPointer, "pointer outside of its memory")
	}
}

func TestWASIGivesNothingAway(t *testing.T) {
	const p1 = "wasi_snapshot_preview1"
	for _, c := range []struct{ name, imports, run, want string }{
		{
			"no files", `(import "` + p1 + `" "path_open" (func $f (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))`,
			`(call $f (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 0))`, "8",
		},
		{"no preopened folder", `(import "` + p1 + `" "fd_prestat_get" (func $f (param i32 i32) (result i32)))`, `(call $f (i32.const 3) (i32.const 0))`, "8"},
		{"no sockets", `(import "` + p1 + `" "sock_accept" (func $f (param i32 i32 i32) (result i32)))`, `(call $f (i32.const 3) (i32.const 0) (i32.const 0))`, "8"},
		{
			"no environment", `(import "` + p1 + `" "environ_sizes_get" (func $f (param i32 i32) (result i32)))`,
			`(i32.add (call $f (i32.const 0) (i32.const 4)) (i32.add (i32.load (i32.const 0)) (i32.load (i32.const 4))))`, "0",
		},
		{
			"a clock that stands still", `(import "` + p1 + `" "clock_time_get" (func $f (param i32 i64 i32) (result i32)))`,
			`(i32.add (call $f (i32.const 0) (i64.const 0) (i32.const 0)) (i32.wrap_i64 (i64.div_u (i64.load (i32.const 0)) (i64.const 1000000000))))`, "1704067200",
		},
		{"the same numbers again", `(import "` + p1 + `" "random_get" (func $f (param i32 i32) (result i32)))`, `(i32.add (call $f (i32.const 0) (i32.const 1)) (i32.load8_u (i32.const 0)))`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The answer is the number, in decimal digits.
			source := importing(c.imports, `(func $run (param i32 i32) (result i64) (local $v i32) (local $at i32)
				(local.set $v `+c.run+`) (local.set $at (i32.const 1000))
				(loop $digit
					(local.set $at (i32.sub (local.get $at) (i32.const 1)))
					(i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $v) (i32.const 10))))
					(br_if $digit (local.tee $v (i32.div_u (local.get $v) (i32.const 10)))))
				(i64.or (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)) (i64.extend_i32_u (i32.sub (i32.const 1000) (local.get $at)))))`)
			var answers []string
			for range 2 {
				m := load(t, newHost(t, false), assemble(t, source), host.Options{})
				out, _, err := m.Call(t.Context(), 1, nil)
				if err != nil {
					t.Fatal(err)
				}
				answers = append(answers, string(out))
			}
			if answers[0] != answers[1] || c.want != "" && answers[0] != c.want {
				t.Errorf("answers %q, want %q", answers, c.want)
			}
		})
	}
}

func TestWASICallsCost(t *testing.T) {
	const p1 = `(import "wasi_snapshot_preview1" `
	for name, c := range map[string]struct{ imports, run string }{
		"random":      {p1 + `"random_get" (func $f (param i32 i32) (result i32)))`, `(call $f (i32.const 0) (i32.const 100000))`},
		"clock":       {p1 + `"clock_time_get" (func $f (param i32 i64 i32) (result i32)))`, `(call $f (i32.const 0) (i64.const 0) (i32.const 0))`},
		"sched_yield": {p1 + `"sched_yield" (func $f (result i32)))`, `(call $f)`},
	} {
		m := load(t, newHost(t, false),
			assemble(t, importing(c.imports, `(func $run (param i32 i32) (result i64) (loop $l (drop `+c.run+`) (br $l)) unreachable)`)),
			host.Options{Name: name, Limits: host.Limits{Fuel: 3_000_000, Deadline: time.Minute}})
		_, _, err := m.Call(t.Context(), 1, nil)
		wantFault(t, err, host.Fuel, "limits.fuel")
	}
}

func TestWhatAPluginPrintsIsLoggedAndBounded(t *testing.T) {
	var log bytes.Buffer
	h, err := host.New(t.Context(), host.Config{InProcess: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	m := load(t, h, assemble(t, importing(`(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))`, `
		(data (i32.const 0) "\10\00\00\00\06\00\00\00") (data (i32.const 16) "hello\n")
		(func $run (param i32 i32) (result i64) (local $i i32)
			(loop $l (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
				(br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 5000))))
			(i64.const 0))`)), host.Options{Name: "chatty", Limits: host.Limits{Log: 60}})
	if _, _, err := m.Call(t.Context(), 1, nil); err != nil {
		t.Fatal(err)
	}
	text := log.String()
	if n := strings.Count(text, "line=hello"); n != 10 || !strings.Contains(text, "plugin=chatty") || !strings.Contains(text,
		"more output was dropped") {
		t.Errorf("%d lines:\n%s", n, text)
	}
}

// TestThePanicsWordsAreInTheError: what a guest prints before it ends is in the fault and in the
// usage, also beyond the log's limit; of what it printed besides, nothing is in the error.
func TestThePanicsWordsAreInTheError(t *testing.T) {
	h := newHost(t, false)
	for name, c := range map[string]struct{ text, want string }{
		"go":             {"working\npanic: out of cheese\n\ngoroutine 1 [running]:\nmain.f()\n", "it printed: panic: out of cheese"},
		"rust":           {"thread '<unnamed>' panicked at src/lib.rs:5:9:\nout of cheese\nnote: run with `RUST_BACKTRACE=1`\n", "it printed: thread '<unnamed>' panicked at src/lib.rs:5:9: out of cheese"},
		"c":              {"Assertion failed: n > 0 (plugin.c: decide: 7)", "it printed: Assertion failed: n > 0 (plugin.c: decide: 7)"},
		"assemblyscript": {"abort: out of cheese in plugin.ts(3:5)\n", "it printed: abort: out of cheese in plugin.ts(3:5)"},
		"zig":            {"thread 1 panic: out of cheese\n", "it printed: thread 1 panic: out of cheese"},
		"no panic":       {"one\ntwo\nthree\nfour\n", "it printed: two three four"},
		"not UTF-8":      {"panic: \xff\n", "it printed: panic: \uFFFD"},
		"nothing":        {"", "unreachable"},
	} {
		for _, limit := range []int64{0, 1} { // the default, and next to nothing
			source := fmt.Sprintf(`(data (i32.const 64) "\80\00\00\00\%02x\%02x\00\00") (data (i32.const 128) "%s")
				(func $run (param i32 i32) (result i64) (drop (call $write (i32.const 2) (i32.const 64) (i32.const 1) (i32.const 8))) unreachable)`,
				len(c.text)&0xff, len(c.text)>>8, escaped(c.text))
			m := load(t, h, assemble(t, importing(`(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))`, source)),
				host.Options{Name: name, Limits: host.Limits{Log: limit}})
			_, used, err := m.Call(t.Context(), 1, nil)
			wantFault(t, err, host.Trap, c.want)
			if strings.Contains(err.Error(), "working") || strings.Contains(err.Error(), "goroutine") {
				t.Errorf("%s: the error has more than it should: %v", name, err)
			}
			if want := strings.TrimRight(strings.ToValidUTF8(c.text, "\uFFFD"), "\n"); used.Printed != want {
				t.Errorf("%s: printed %q, want %q", name, used.Printed, want)
			}
		}
	}
}

func escaped(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, "\\%02x", c)
	}
	return b.String()
}

// TestAFloodOfLinesIsLoggedSlowly: the log takes some lines of a plugin at once, and then so many a second.
func TestAFloodOfLinesIsLoggedSlowly(t *testing.T) {
	var log bytes.Buffer
	h, err := host.New(t.Context(), host.Config{InProcess: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	m := load(t, h, assemble(t, importing(`(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))`, `
		(data (i32.const 0) "\10\00\00\00\06\00\00\00") (data (i32.const 16) "hello\n")
		(func $run (param i32 i32) (result i64) (local $i i32)
			(loop $l (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
				(br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 100000))))
			(i64.const 0))`)), host.Options{Name: "flood", Limits: host.Limits{Log: 1 << 30, Deadline: time.Minute, Fuel: 1 << 40}})
	begin := time.Now()
	if _, _, err := m.Call(t.Context(), 1, nil); err != nil {
		t.Fatal(err)
	}
	most := 501 + 20*int(time.Since(begin)/time.Second+1)
	if n := strings.Count(log.String(), "line=hello"); n < 500 || n > most {
		t.Errorf("%d lines are in the log, at most %d were expected", n, most)
	}
}

func TestModulesThatAreNoPluginsAreRefused(t *testing.T) {
	h := newHost(t, false)
	for _, c := range []struct{ name, source, want string }{
		{"no memory", `(module (func (export "call")))`, `exports no memory named "memory"`},
		{"nothing", `(module (memory (export "memory") 1))`, "exports no function describe: it is no plugin of ABI 1"},
		{"a command", `(module (memory (export "memory") 1) (func (export "_start")))`, "the module is a command"},
		{"a wrong signature", `(module (memory (export "memory") 1) (func (export "describe") (result i32) (i32.const 0)))`, "describe has the wrong signature: expected describe() -> i64"},
		{"an unknown import", importing(`(import "env" "printf" (func (param i32) (result i32)))`, `(func $run (param i32 i32) (result i64) (i64.const 0))`), "imports env.printf, which no plugin is given: an undefined symbol"},
		{"a wrong import", importing(`(import "wasmplane" "call" (func (param i32)))`, `(func $run (param i32 i32) (result i64) (i64.const 0))`), "imports wasmplane.call with other parameters"},
		{"the host's own import", importing(`(import "wasmplane:fuel" "yield" (func (param i32)))`, `(func $run (param i32 i32) (result i64) (i64.const 0))`), "reserved to the host"},
		{"the host's own export", guest(`(func $run (param i32 i32) (result i64) (i64.const 0)) (global (export "wasmplane:fuel") (mut i64) (i64.const 0))`), "reserved to the host"},
		{"the counter by its number", guest(`(func $run (param i32 i32) (result i64) (global.set 1 (i64.const 999999)) (i64.const 0))`), "not a valid WebAssembly module"},
		{"too much memory", strings.Replace(guest(`(func $run (param i32 i32) (result i64) (i64.const 0))`), `"memory") 2`, `"memory") 9000`, 1), "its limit is 32768 KiB (limits.memory)"},
		{"a huge table", guest(`(table 10000000 funcref) (func $run (param i32 i32) (result i64) (i64.const 0))`), "a table of 10000000 entries"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := h.Compile(t.Context(), assemble(t, c.source), host.Options{Name: "x"})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	if _, err := h.Compile(t.Context(), make([]byte, 33<<20), host.Options{}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a huge module: %v", err)
	}
}

func TestStartUpHasABudgetOfItsOwn(t *testing.T) {
	h := newHost(t, false)
	loop := `(func $spin (loop $l (br $l)))`
	run := `(func $run (param i32 i32) (result i64) (i64.const 0))`
	for name, source := range map[string]string{
		"start function": guest(run + loop + `(start $spin)`),
		"initialiser":    guest(run + loop + `(export "_initialize" (func $spin))`),
	} {
		m := load(t, h, assemble(t, source), host.Options{Name: "slow", Limits: host.Limits{StartFuel: 1_000_000}})
		_, _, err := m.Call(t.Context(), 1, nil)
		wantFault(t, err, host.Fuel, "while it started: it used up its fuel of 1000000 units (limits.startFuel)")
		if n := m.Instances(); n != 0 {
			t.Errorf("%s: %d instances are left", name, n)
		}
	}
}

func TestAFaultPointsAtTheAuthorsSource(t *testing.T) {
	// Debian's rustc, as the makefile finds it, with the line table that release builds leave out.
	dir := t.TempDir()
	source := `
#[no_mangle] pub extern "C" fn describe() -> i64 { 0 }
#[no_mangle] pub extern "C" fn alloc(_: i32) -> i32 { 65536 }
#[no_mangle] pub extern "C" fn call(op: i32, at: i32, length: i32) -> i64 { unsafe { judge(at as *const u32, op + length) } }

#[inline(never)] unsafe fn judge(list: *const u32, n: i32) -> i64 {
    let scores = [1, 2, 3];
    let mut sum = 0;
    for i in 0..n {
        sum += core::ptr::read_volatile(list.offset(i as isize)) as usize;
    }
    scores[sum] // line 12
}`
	path := filepath.Join(dir, "p.rs")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "p.wasm")
	cmd := exec.CommandContext(t.Context(), "make", "-s", "-C", plugintest.Root(t), "-f", "wasm-examples/build.mk", "rust-module",
		"SOURCE="+path, "OUT="+out, "FLAGS=-g")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, interpreted := range []bool{false, true} {
		m := load(t, newHost(t, interpreted), wasm, host.Options{Name: "author"})
		_, _, err = m.Call(t.Context(), 1, []byte("12345678"))
		f := wantFault(t, err, host.Trap, "unreachable")
		if f.Function != "plugin::judge" || !strings.HasSuffix(f.Source[:strings.LastIndex(f.Source, ":")], "p.rs:12") {
			t.Errorf("function %q, source %q\n%s", f.Function, f.Source, f.Stack)
		}
	}
}

func TestIsolationPutsMemoryAndGlobalsBack(t *testing.T) {
	h := newHost(t, false)
	counting := guest(`(global $n (mut i32) (i32.const 0))
		(func $run (param i32 i32) (result i64)
			(global.set $n (i32.add (global.get $n) (i32.const 1)))
			(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (global.get $n)))
			(i64.const 4))`)
	for _, isolated := range []bool{false, true} {
		m := load(t, h, assemble(t, counting), host.Options{PerCall: isolated, Limits: host.Limits{Instances: 1}})
		var last []byte
		for range 3 {
			out, _, err := m.Call(t.Context(), 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			last = out
		}
		want := byte(6) // 1, then 1+2, then 3+3
		if isolated {
			want = 1
		}
		if last[0] != want {
			t.Errorf("isolated %v: the third call answers %d, want %d", isolated, last[0], want)
		}
	}
	grows := guest(`(func $run (param i32 i32) (result i64) (drop (memory.grow (i32.const 1))) (i32.store (i32.const 0) (memory.size)) (i64.const 4))`)
	m := load(t, h, assemble(t, grows), host.Options{PerCall: true})
	for range 3 {
		out, _, err := m.Call(t.Context(), 1, nil)
		if err != nil || out[0] != 3 {
			t.Errorf("an instance that grew was used again: %v, %v", out, err)
		}
	}
}

// TestACallThatPanicsGivesItsInstanceBack, changed as it is, to nobody: the only one of the limits is made anew for the next call,
// and the breaker counts it. The module can be closed after it.
func TestACallThatPanicsGivesItsInstanceBack(t *testing.T) {
	counting := guest(`(func $run (param i32 i32) (result i64)
		(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1))) (i64.const 4))`)
	m := load(t, newHost(t, false), assemble(t, counting), host.Options{Limits: host.Limits{Instances: 1}})
	for range 3 {
		func() {
			defer func() {
				if recover() != "ours" {
					t.Error("the panic does not come through")
				}
			}()
			_ = m.With(t.Context(), func(in *host.Instance) error {
				if out, _, err := in.Call(t.Context(), 1, nil); err != nil || out[0] != 1 {
					t.Errorf("answered %v, %v: an instance was used again", out, err)
				}
				panic("ours")
			})
		}()
	}
	if open, times := m.Breaker(); open || times != 0 {
		t.Errorf("the breaker is open after three calls: %v, %d times", open, times)
	}
	for range 5 {
		func() {
			defer func() { _ = recover() }()
			_ = m.Guard(t.Context(), func() error { panic("ours") })
		}()
	}
	if open, _ := m.Breaker(); !open {
		t.Error("the breaker does not count calls that panic")
	}
}

// TestInstancesShareWhatTheyHaveNotWritten: what an instance writes, before or after it was put back, is seen by no other one.
func TestInstancesShareWhatTheyHaveNotWritten(t *testing.T) {
	h := newHost(t, false)
	text := guest(`(func (export "_initialize") (local $at i32)
			(drop (memory.grow (i32.const 40)))
			(local.set $at (i32.const 131072))
			(loop $l
				(i32.store (local.get $at) (local.get $at))
				(br_if $l (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 1024))) (i32.const 2600000)))))
		(func $run (param i32 i32) (result i64)
			(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.load (i32.const 2097152))))
			(i32.store (i32.const 2097152) (i32.add (i32.load (i32.const 2097152)) (i32.const 1)))
			(i64.const 4))`)
	for _, isolated := range []bool{false, true} {
		m := load(t, h, assemble(t, text), host.Options{PerCall: isolated, Limits: host.Limits{Instances: 3}})
		var leased []*host.Instance
		for range 3 {
			in, err := m.Lease(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			leased = append(leased, in)
		}
		for i, in := range leased {
			const written = (2_600_000+4095)/4096*4096 - 131_072 // by _initialize, in whole pages
			if n := in.SharedBytes(); n != written {
				t.Errorf("isolated %v: instance %d shares %d bytes, expected %d", isolated, i, n, written)
			}
		}
		for round := range 3 {
			for i, in := range leased {
				out, _, err := in.Call(t.Context(), 1, nil)
				if err != nil {
					t.Fatal(err)
				}
				want := uint32(0)
				for n := range round + 1 { // what this instance alone has added
					want += 2097152 + uint32(n)
				}
				if got := binary.LittleEndian.Uint32(out); got != want {
					t.Errorf("isolated %v: round %d of instance %d: %d, want %d", isolated, round, i, got, want)
				}
			}
		}
		for _, in := range leased {
			m.Release(in, nil)
		}
		if isolated {
			for range 6 {
				out, _, err := m.Call(t.Context(), 1, nil)
				if err != nil || binary.LittleEndian.Uint32(out) != 2097152 {
					t.Errorf("an instance was not put back: %v, %v", out, err)
				}
			}
		}
	}
}

func TestABreakerOpensAfterManyFaults(t *testing.T) {
	m := load(t, newHost(t, false), assemble(t, guest(`(func $run (param i32 i32) (result i64) unreachable)`)), host.Options{Name: "bad"})
	for range 20 { // they do not count
		_, _, err := m.Call(host.WithAside(t.Context()), 1, nil)
		wantFault(t, err, host.Trap, "unreachable")
	}
	for range 20 { // nor do those of leased instances, such as a trial's of the scheduler
		aside := host.WithAside(t.Context())
		err := m.Guard(aside, func() error {
			in, err := m.Lease(aside)
			if err != nil {
				return err
			}
			defer m.Discard(in)
			_, _, err = in.Call(aside, 1, nil)
			return err
		})
		wantFault(t, err, host.Trap, "unreachable")
	}
	for range 8 {
		_, _, err := m.Call(t.Context(), 1, nil)
		wantFault(t, err, host.Trap, "unreachable")
	}
	_, _, err := m.Call(t.Context(), 1, nil)
	wantFault(t, err, host.BreakerOpen, "failed 8 times in a row")
	_, _, err = m.Call(host.WithAside(t.Context()), 1, nil)
	wantFault(t, err, host.BreakerOpen, "failed 8 times in a row")
	if open, times := m.Breaker(); !open || times != 1 {
		t.Errorf("open %v, %d times", open, times)
	}
}

// What is leased for calls for which nobody waits takes no place of those for which somebody does, and is bounded itself.
func TestLoansAsideTakeNoPlace(t *testing.T) {
	m := load(t, newHost(t, false), assemble(t, guest(`(func $run (param i32 i32) (result i64) (i64.const 0))`)), host.Options{
		Name: "one", Limits: host.Limits{Instances: 1, Deadline: 50 * time.Millisecond},
	})
	aside := host.WithAside(t.Context())
	var lent []*host.Instance
	for {
		in, err := m.Lease(aside)
		if err != nil {
			wantFault(t, err, host.Busy, "all 3 instances were busy for 50ms (those of trials")
			break
		}
		lent = append(lent, in)
	}
	if len(lent) != 3 {
		t.Errorf("%d were lent", len(lent))
	}
	if _, _, err := m.Call(t.Context(), 1, nil); err != nil {
		t.Errorf("a request finds no instance: %v", err)
	}
	for i, in := range lent {
		if _, _, err := in.Call(aside, 1, nil); err != nil {
			t.Error(err)
		}
		if i == 0 {
			m.Discard(in)
		} else {
			m.Release(in, nil)
		}
	}
	in, err := m.Lease(aside)
	if err != nil {
		t.Fatal("they do not come back: ", err)
	}
	m.Discard(in)
}

func TestCallsBeyondTheLimitWaitAndGiveUp(t *testing.T) {
	release := make(chan struct{})
	entered := make(chan struct{})
	wait := func(context.Context, []byte) ([]byte, error) { close(entered); <-release; return nil, nil }
	source := importing(callsHost, `(data (i32.const 0) "wait") (func $run (param i32 i32) (result i64) (call $host (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))`)
	m := load(t, newHost(t, false), assemble(t, source), host.Options{Name: "one", Limits: host.Limits{Instances: 1, Deadline: 50 * time.Millisecond}, Funcs: map[string]host.Func{"wait": wait}})
	var wg sync.WaitGroup
	wg.Go(func() { _, _, _ = m.Call(context.WithoutCancel(t.Context()), 1, nil) })
	<-entered // the one instance is in use
	_, _, err := m.Call(t.Context(), 1, nil)
	wantFault(t, err, host.Busy, "all 1 instances were busy for 50ms (limits.instances)")
	close(release)
	wg.Wait()
}

// TestMain lets the tests compile in children of this binary.
func TestMain(m *testing.M) {
	compiler.MaybeRun()
	os.Exit(m.Run())
}

// TestCompiledCodeIsKeptAndProtected: a module is compiled once, in a child; what was
// damaged since is compiled again.
func TestCompiledCodeIsKeptAndProtected(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	wasm := assemble(t, guest(`(func $run (param i32 i32) (result i64) (i64.const 0))`))
	compiled := 0
	load := func() {
		t.Helper()
		h, err := host.New(t.Context(), host.Config{CacheDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		m, err := h.Compile(t.Context(), wasm, host.Options{Name: "x", Progress: func(what string) {
			if what == "being compiled" {
				compiled++
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := m.Call(t.Context(), 1, nil); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(m.Close(), h.Close()); err != nil {
			t.Fatal(err)
		}
	}
	load()
	load()
	if compiled != 1 {
		t.Errorf("compiled %d times, want 1", compiled)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %v, %v", kept, err)
	}
	b, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1 // of the code that would be mapped
	if err := os.WriteFile(kept[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if load(); compiled != 2 {
		t.Errorf("what was changed on disk is in use")
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v: others could put code there", info.Mode(), err)
	}
}

// TestWhatWasTooExpensiveIsNotTriedAgain at once, as loaders try again what failed.
func TestWhatWasTooExpensiveIsNotTriedAgain(t *testing.T) {
	h, err := host.New(t.Context(), host.Config{Compilation: compiler.Limits{Deadline: time.Nanosecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	compiled := 0
	for range 3 {
		_, err := h.Compile(t.Context(), assemble(t, guest(`(func $run (param i32 i32) (result i64) (i64.const 0))`)),
			host.Options{Name: "x", Progress: func(what string) {
				if what == "being compiled" {
					compiled++
				}
			}})
		var too *compiler.Exceeded
		if !errors.As(err, &too) {
			t.Errorf("error %v", err)
		}
	}
	if compiled != 1 {
		t.Errorf("compiled %d times", compiled)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	defer goleak.VerifyNone(t)
	h, err := host.New(t.Context(), host.Config{InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		m, err := h.Compile(t.Context(), assemble(t, guest(fmt.Sprintf(`(func $run (param i32 i32) (result i64) (if (i32.eq (i32.const %d) (i32.const 3)) (then unreachable)) (i64.const 0))`, i%5))), host.Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		_, _, _ = m.Call(t.Context(), 1, nil)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if n := m.Instances(); n != 0 {
			t.Errorf("%d instances are left", n)
		}
		if _, _, err := m.Call(t.Context(), 1, nil); !errors.Is(err, host.ErrClosed) {
			t.Errorf("a call after the end: %v", err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}
