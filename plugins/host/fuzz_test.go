// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// seeds are valid modules of many shapes, for fuzzers to break.
func seeds(tb testing.TB) [][]byte {
	tb.Helper()
	var out [][]byte
	for i := range hostileGuests {
		out = append(out, assemble(tb, hostileGuests[i].module()))
	}
	for _, w := range workloads {
		out = append(out, assemble(tb, "(module (memory (export \"memory\") 4) "+w+")"))
	}
	return append(out, assemble(tb, `(module
		(type $t (func (param i32 i64) (result i64 i32)))
		(memory (export "memory") 1 2) (table 3 10 funcref) (global $g (mut i32) (i32.const 1))
		(elem (i32.const 0) func $swap) (elem $e func $swap $main) (data $d "passive") (data (i32.const 8) "active")
		(func $swap (type $t) (local.get 1) (local.get 0))
		(func $main (export "run") (param i32) (result i32)
			(table.init $e (i32.const 0) (i32.const 0) (i32.const 2)) (memory.init $d (i32.const 0) (i32.const 0) (i32.const 7)) (data.drop $d)
			(drop (table.grow (ref.func $swap) (i32.const 1))) (drop (table.size))
			(i32.const 5) (i64.const 7) (call_indirect (type $t) (i32.const 1)) (drop) (drop)
			(block $b (result i32) (loop $l (result i32) (br_table $l $b $b (i32.const 3) (local.get 0)))))
		(start $init) (func $init))`))
}

// FuzzHost: whatever the bytes, the host ends in time, with an answer or an error.
func FuzzHost(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	h, err := host.New(context.Background(), host.Config{InProcess: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, wasm []byte) {
		m, err := h.Compile(t.Context(), wasm,
			host.Options{Name: "fuzz", Limits: host.Limits{Fuel: 100_000, StartFuel: 100_000, Deadline: time.Second}})
		if err != nil {
			return
		}
		_, u, _ := m.Call(t.Context(), 1, []byte(`{"a":1}`))
		if u.Fuel > 100_000 {
			t.Errorf("used %d units of 100000", u.Fuel)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// FuzzAssembler: the test's own assembler neither panics nor makes what it takes
// for a module out of anything but one.
func FuzzAssembler(f *testing.F) {
	f.Add(guest(`(func $run (param i32 i32) (result i64) (i64.const 0))`))
	f.Add("(module")
	f.Add(`(func (if (i32.const 1) (then nop) (else nop)))`)
	f.Fuzz(func(_ *testing.T, source string) { _, _ = wat.Assemble(source) })
}
