// SPDX-License-Identifier: Apache-2.0

package fuel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

func assemble(tb testing.TB, source string) []byte {
	tb.Helper()
	wasm, err := wat.Assemble(source)
	if err != nil {
		tb.Fatal(err)
	}
	return wasm
}

// spent runs a module's function run and says what it was charged.
func spent(t *testing.T, r wazero.Runtime, source string, o fuel.Options, args ...uint64) (int64, error) {
	t.Helper()
	metered, err := fuel.Rewrite(assemble(t, source), o)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := r.InstantiateWithConfig(t.Context(), metered, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		t.Fatal(err)
	}
	defer mod.Close(t.Context())
	const budget = 1 << 40
	counter := mod.ExportedGlobal(fuel.ExportCounter).(api.MutableGlobal)
	counter.Set(budget)
	_, err = mod.ExportedFunction("run").Call(t.Context(), args...)
	return budget - int64(counter.Get()), err
}

func charge(t *testing.T, r wazero.Runtime, source string, args ...uint64) int64 {
	t.Helper()
	n, err := spent(t, r, source, fuel.Options{}, args...)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTheCountIsTheSameEverywhere: on both engines, and each time.
func TestTheCountIsTheSameEverywhere(t *testing.T) {
	const fib = `(module (memory (export "memory") 1)
		(func $fib (param $n i32) (result i32) (if (result i32) (i32.lt_u (local.get $n) (i32.const 2)) (then (local.get $n))
			(else (i32.add (call $fib (i32.sub (local.get $n) (i32.const 1))) (call $fib (i32.sub (local.get $n) (i32.const 2)))))))
		(func (export "run") (param i32) (result i32) (call $fib (local.get 0))))`
	compiled, interpreted := newRuntime(t, wazero.NewRuntimeConfigCompiler()), newRuntime(t, wazero.NewRuntimeConfigInterpreter())
	first := charge(t, compiled, fib, 15)
	for range 3 {
		if a, b := charge(t, compiled, fib, 15), charge(t, interpreted, fib, 15); a != first || b != first {
			t.Errorf("compiled %d, interpreted %d, the first time %d", a, b, first)
		}
	}
	if more := charge(t, compiled, fib, 16); more <= first*3/2 {
		t.Errorf("fib(15) costs %d, fib(16) %d", first, more)
	}
}

// TestWorkIsCharged: what takes longer costs more, in proportion, whatever instruction does it.
func TestWorkIsCharged(t *testing.T) {
	r := newRuntime(t, wazero.NewRuntimeConfigCompiler())
	const module = `(module (memory (export "memory") 64 128) (table 10 100000 funcref) (data $d "%s") (func (export "run") (param $n i32) %s))`
	for name, c := range map[string]struct {
		body         string
		small, large uint64
		atLeast      int64 // of the difference
	}{
		"a loop":               {`(loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))`, 1, 1001, 3000},
		"straight code":        {`(if (i32.gt_u (local.get $n) (i32.const 1)) (then ` + strings.Repeat(`(drop (i32.div_u (i32.const 7) (i32.const 3)))`, 1000) + `))`, 1, 2, 8000},
		"memory.fill":          {`(memory.fill (i32.const 0) (i32.const 1) (local.get $n))`, 0, 1 << 20, 1 << 16},
		"memory.copy":          {`(memory.copy (i32.const 0) (i32.const 64) (local.get $n))`, 0, 1 << 20, 1 << 16},
		"memory.copy backward": {`(memory.copy (i32.const 64) (i32.const 0) (local.get $n))`, 0, 1 << 20, 1 << 16},
		"memory.init":          {`(memory.init $d (i32.const 0) (i32.const 0) (local.get $n))`, 0, 80_000, 5000},
		"memory.grow":          {`(drop (memory.grow (local.get $n)))`, 0, 16, 16 * 4096},
		"table.grow":           {`(drop (table.grow (ref.null func) (local.get $n)))`, 0, 10_000, 10_000},
	} {
		source := fmt.Sprintf(module, strings.Repeat("0123456789", 8000), c.body)
		small, large := charge(t, r, source, c.small), charge(t, r, source, c.large)
		if large-small < c.atLeast {
			t.Errorf("%s: %d for %d, %d for %d: the difference is below %d", name, small, c.small, large, c.large, c.atLeast)
		}
	}
	// What is out of bounds is paid for, and traps as the original does.
	n, err := spent(t, r, fmt.Sprintf(module, "", `(memory.fill (i32.const -16) (i32.const 1) (local.get $n))`), fuel.Options{}, 1<<20)
	if err == nil || !strings.Contains(err.Error(), "out of bounds") || n <= 0 {
		t.Errorf("outside of the memory: %d, %v", n, err)
	}
}

// TestTheHostIsCalledInTime: at the latest a few thousand units after the counter fell below
// zero, and never before.
func TestTheHostIsCalledInTime(t *testing.T) {
	metered, err := fuel.Rewrite(assemble(t, `(module (func (export "run") (param $n i32)
		(loop $l `+strings.Repeat(`(drop (i32.div_u (i32.const 7) (i32.const 3)))`,
		100)+` (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))))`), fuel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, budget := range []int64{1, 100, 5000, 12_345, 100_000} {
		r := wazero.NewRuntime(t.Context())
		var seen []int64
		yield := func(_ context.Context, m api.Module, _ uint32) {
			seen = append(seen, int64(m.ExportedGlobal(fuel.ExportCounter).Get()))
			panic(errors.New("no fuel"))
		}
		if _, err := r.NewHostModuleBuilder(fuel.ImportModule).NewFunctionBuilder().WithFunc(yield).Export(fuel.ImportYield).Instantiate(
			t.Context()); err != nil {
			t.Fatal(err)
		}
		mod, err := r.Instantiate(t.Context(), metered)
		if err != nil {
			t.Fatal(err)
		}
		mod.ExportedGlobal(fuel.ExportCounter).(api.MutableGlobal).Set(uint64(budget))
		if _, err := mod.ExportedFunction("run").Call(t.Context(), 1_000_000); err == nil || len(seen) != 1 || seen[0] >= 0 || seen[0] < -8192 {
			t.Errorf("with %d units: the counter was at %v, %v", budget, seen, err)
		}
		_ = r.Close(t.Context())
	}
}

// TestExactlyEnoughIsEnough: with one unit less than a call costs the host is asked, with all of
// it not.
func TestExactlyEnoughIsEnough(t *testing.T) {
	source := `(module (func (export "run") (param $n i32) (loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))))`
	r := newRuntime(t, wazero.NewRuntimeConfigCompiler())
	cost := charge(t, r, source, 10)
	metered, err := fuel.Rewrite(assemble(t, source), fuel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	asked := func(budget int64) (n int) {
		r := wazero.NewRuntime(t.Context())
		defer r.Close(t.Context())
		refill := func(_ context.Context, m api.Module, _ uint32) {
			n++
			m.ExportedGlobal(fuel.ExportCounter).(api.MutableGlobal).Set(1 << 40)
		}
		if _, err := r.NewHostModuleBuilder(fuel.ImportModule).NewFunctionBuilder().WithFunc(refill).Export(fuel.ImportYield).Instantiate(
			t.Context()); err != nil {
			t.Fatal(err)
		}
		mod, err := r.Instantiate(t.Context(), metered)
		if err != nil {
			t.Fatal(err)
		}
		mod.ExportedGlobal(fuel.ExportCounter).(api.MutableGlobal).Set(uint64(budget))
		if _, err := mod.ExportedFunction("run").Call(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := asked(cost); n != 0 {
		t.Errorf("with all of %d units the host was asked %d times", cost, n)
	}
	if n := asked(0); n == 0 {
		t.Error("without any the host was not asked")
	}
}

// TestWhatIsTooMuchIsNamed: the limit, and what the module has.
func TestWhatIsTooMuchIsNamed(t *testing.T) {
	section := func(id byte, content ...byte) []byte {
		return append(append([]byte{id}, binary.AppendUvarint(nil, uint64(len(content)))...), content...)
	}
	module := func(sections ...[]byte) []byte {
		return append([]byte("\x00asm\x01\x00\x00\x00"), bytes.Join(sections, nil)...)
	}
	count := func(n uint64, item ...byte) []byte {
		return append(binary.AppendUvarint(nil, n), bytes.Repeat(item, int(n))...)
	}
	function := func(body ...byte) []byte {
		return module(section(1, 1, 0x60, 0, 0), section(3, 1, 0),
			section(10, append([]byte{1}, append(binary.AppendUvarint(nil, uint64(len(body))), body...)...)...))
	}
	for want, wasm := range map[string][]byte{
		"16385 types: at most 16384 are allowed": module(section(1, count(16385, 0x60, 0, 0)...)),
		"1001 parameters of a type: at most 1000 are allowed": module(section(1,
			append([]byte{1, 0x60}, append(count(1001, 0x7f), 0)...)...)),
		"4097 imports: at most 4096 are allowed":                  module(section(2, count(4097, 0, 0, 0, 0)...)),
		"16385 globals: at most 16384 are allowed":                module(section(6, count(16385, 0x7f, 0, 0x41, 0, 0x0b)...)),
		"17 tables: at most 16 are allowed":                       module(section(4, count(17, 0x70, 0, 0)...)),
		"16385 element segments: at most 16384 are allowed":       module(section(9, count(16385, 1, 0, 0)...)),
		"262145 data segments: at most 262144 are allowed":        module(section(11, count(262145, 1, 0)...)),
		"60000 locals in one function: at most 50000 are allowed": function(1, 0xe0, 0xd4, 0x03, 0x7f, 0x0b),
		"65538 targets of a br_table in function 0: at most 65536 are allowed": function(
			append(append([]byte{0, 0x41, 0, 0x0e}, count(65537, 0)...), 0, 0x0b)...),
		"1025 custom sections: at most 1024 are allowed":              module(bytes.Repeat([]byte{0, 1, 0}, 1025)),
		"it has a memory of 64 bits (memory64): build it for wasm32":  module(section(5, 1, 4, 1)),
		"it has a shared memory (threads): build it without -pthread": module(section(5, 1, 3, 1, 1)),
		"an instruction of threads":                                   function(0, 0xfe, 3, 0, 0x0b),
		"a tail call":                                                 function(0, 0x12, 0, 0x0b),
		"an instruction of exceptions":                                function(0, 0x08, 0, 0x0b),
		"an instruction of garbage collection":                        function(0, 0xfb, 0, 0, 0x0b),
	} {
		if _, err := fuel.Rewrite(wasm, fuel.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestReservedNamesAreRefused: a module must not reach its own counter.
func TestReservedNamesAreRefused(t *testing.T) {
	for _, source := range []string{
		`(module (import "wasmplane:fuel" "yield" (func (param i32))))`,
		`(module (func $f) (export "wasmplane:fuel" (func $f)))`,
		`(module (func $f) (export "wasmplane:global0" (func $f)))`,
	} {
		if _, err := fuel.Rewrite(assemble(t, source), fuel.Options{}); err == nil || !strings.Contains(err.Error(), "reserved to the host") {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// FuzzRewrite: whatever the bytes, the rewriter neither panics nor runs on, and
// what it makes of a valid module is valid.
func FuzzRewrite(f *testing.F) {
	for _, source := range []string{
		`(module (memory (export "memory") 1) (func (export "run") (param i32) (result i32) (local.get 0)))`,
		`(module (memory 1 2) (data $d "passive") (data (i32.const 8) "active") (func $f (memory.init $d (i32.const 0) (i32.const 0) (i32.const 7)) (data.drop $d) (memory.fill (i32.const 0) (i32.const 0) (i32.const 9000))))`,
		`(module (type $t (func (param i32 i64) (result i64 i32))) (table 3 10 funcref) (elem (i32.const 0) func $swap) (elem $e func $swap)
			(func $swap (type $t) (local.get 1) (local.get 0))
			(func (export "run") (param i32) (result i32)
				(table.init $e (i32.const 0) (i32.const 0) (i32.const 1)) (drop (table.grow (ref.func $swap) (i32.const 1)))
				(i32.const 5) (i64.const 7) (call_indirect (type $t) (i32.const 1)) (drop) (drop)
				(block $b (result i32) (loop $l (result i32) (br_table $l $b $b (i32.const 3) (local.get 0))))))`,
	} {
		f.Add(assemble(f, source))
	}
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithMemoryLimitPages(1024))
	f.Fuzz(func(t *testing.T, wasm []byte) {
		metered, err := fuel.Rewrite(wasm, fuel.Options{ExportGlobals: len(wasm)%2 == 0})
		if err != nil {
			return
		}
		stripped, err := fuel.Strip(wasm)
		if err != nil {
			t.Fatal(err)
		}
		original, err := r.CompileModule(ctx, stripped)
		if err != nil {
			return
		}
		_ = original.Close(ctx)
		compiled, err := r.CompileModule(ctx, metered)
		if err != nil {
			t.Fatalf("a valid module was made invalid: %v", err)
		}
		_ = compiled.Close(ctx)
	})
}
