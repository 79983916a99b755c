// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// long is a guest that runs for about so many millions of units of fuel, after and before.
func long(before string) string {
	return `(func $spin (local $i i32) (loop $l (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 1000000)))))
		(func $run (param i32 i32) (result i64) (call $spin) ` + before + ` (call $spin) (i64.const 4))`
}

// TestLongCallsShareTheProcessors: more of them than there are turns all come to an end.
func TestLongCallsShareTheProcessors(t *testing.T) {
	h := newHost(t, false)
	var wg sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		m := load(t, h, assemble(t, guest(long(""))), host.Options{Name: "long", Limits: host.Limits{Deadline: 5 * time.Minute}})
		wg.Go(func() {
			for range 3 {
				if _, _, err := m.Call(t.Context(), 1, []byte("{}")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestACallThatWaitsForAnotherGivesItsTurn: a plugin asks the host, and what the host
// does for it asks another plugin, which runs for long too. On each processor.
func TestACallThatWaitsForAnotherGivesItsTurn(t *testing.T) {
	h := newHost(t, false)
	limits := host.Limits{Deadline: 5 * time.Minute}
	inner := load(t, h, assemble(t, guest(long(""))), host.Options{Name: "inner", Limits: limits})
	asks := func(ctx context.Context, _ []byte) ([]byte, error) {
		out, _, err := inner.Call(ctx, 1, []byte("{}"))
		return out, err
	}
	outer := hostile{imports: importsCall, source: named + long(`(if (i64.ne (call $host (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)) (i64.const 4)) (then unreachable))`)}
	m := load(t, h, assemble(t, outer.module()), host.Options{Name: "outer", Limits: limits, Funcs: map[string]host.Func{"work": asks}})
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			if _, _, err := m.Call(t.Context(), 1, []byte("{}")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
