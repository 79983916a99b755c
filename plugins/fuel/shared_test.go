// SPDX-License-Identifier: Apache-2.0

package fuel_test

import (
	"context"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/fuel"
)

var errOver = errors.New("out of budget")

// unhex decodes a module: the text assembler knows no imports of globals and tables.
func unhex(t *testing.T, source string) []byte {
	t.Helper()
	b, err := hex.DecodeString(source)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// shared runs metered modules that share one meter; the last one's export "run" is called. It returns
// what is left, and why the host was called last.
func shared(t *testing.T, budget int64, stack int64, sources ...string) (left int64, why uint32, results []uint64, err error) {
	t.Helper()
	ctx := t.Context()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer func() { _ = r.Close(ctx) }()
	b := r.NewHostModuleBuilder(fuel.ImportModule)
	b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(_ context.Context, s []uint64) {
		why = uint32(s[0])
		panic(errOver)
	}), []api.ValueType{api.ValueTypeI32}, nil).Export(fuel.ImportYield)
	if _, err := b.Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	meter, err := r.InstantiateWithConfig(ctx, fuel.Meter(stack), wazero.NewModuleConfig().WithName(fuel.ImportMeter))
	if err != nil {
		t.Fatal(err)
	}
	counter := meter.ExportedGlobal(fuel.ImportCounter).(api.MutableGlobal)
	counter.Set(uint64(budget))
	var last api.Module
	for i, source := range sources {
		metered, err := fuel.Rewrite(unhex(t, source), fuel.Options{Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		if last, err = r.InstantiateWithConfig(ctx, metered, wazero.NewModuleConfig().WithName(string(rune('a'+i)))); err != nil {
			t.Fatal(err)
		}
	}
	results, err = last.ExportedFunction("run").Call(ctx)
	return int64(counter.Get()), why, results, err
}

// TestModulesShareTheirMeter: what a module calls in another comes off the same counter, and globals,
// imported and own, are still the same ones.
func TestModulesShareTheirMeter(t *testing.T) {
	// (module
	// (global $n (export "n") (mut i32) (i32.const 5))
	// (global $own (mut i32) (i32.const 0))
	// (func (export "work") (local $i i32)
	// (loop $l
	// (global.set $own (i32.add (global.get $own) (i32.const 1)))
	// (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 1000))))
	// (global.set $n (global.get $own))))
	loop := "0061736d0100000001040160000003020100060b027f0141050b7f0141000b070c02016e030004776f726b00000a21011f01017f0340230141016a2401200041016a220041e807490d000b230124000b"
	// (module
	// (import "a" "n" (global $n (mut i32)))
	// (import "a" "work" (func $work))
	// (global $mine (export "mine") (mut i32) (i32.const 7))
	// (func (export "run") (result i32) (call $work) (global.set $mine (i32.const 1)) (i32.add (global.get $n) (global.get $mine))))
	run := "0061736d010000000108026000006000017f0211020161016e037f01016104776f726b0000030201010606017f0141070b070e02046d696e6503010372756e00010a0f010d00100041012401230023016a0b"
	left, _, results, err := shared(t, 1<<20, 1<<20, loop, run)
	if err != nil || results[0] != 1001 {
		t.Fatalf("got %v, %v; want 1001", results, err)
	}
	if spent := int64(1<<20) - left; spent < 8000 || spent > 20_000 {
		t.Errorf("both modules together spent %d", spent)
	}
	if _, why, _, err := shared(t, 4000, 1<<20, loop, run); !errors.Is(err, errOver) || why != fuel.Yield {
		t.Errorf("a budget of 4000 was enough (%v)", err)
	}
}

// TestRecursionOverModulesIsCounted: two modules call each other, one by import and one by a table of its
// own that the other has filled; neither is recursive by itself.
func TestRecursionOverModulesIsCounted(t *testing.T) {
	// (module
	// (type $t (func (result i32)))
	// (table (export "table") 1 funcref)
	// (func (export "step") (result i32) (i32.add (i32.const 1) (call_indirect (type $t) (i32.const 0)))))
	first := "0061736d010000000105016000017f03020100040401700001071002057461626c650100047374657000000a0c010a00410141001100006a0b"
	// (module
	// (type $t (func (result i32)))
	// (import "a" "table" (table 1 funcref))
	// (import "a" "step" (func $step (result i32)))
	// (func $back (result i32) (call $step))
	// (elem (i32.const 0) $back)
	// (func (export "run") (result i32) (call $step)))
	second := "0061736d010000000105016000017f0216020161057461626c650170000101610473746570000003030200000707010372756e00020907010041000b01010a0b02040010000b040010000b"
	if _, why, _, err := shared(t, 1<<40, 1<<16, first, second); !errors.Is(err, errOver) || why != fuel.Overflow {
		t.Errorf("endless recursion ended with %v (reason %d)", err, why)
	}
}
