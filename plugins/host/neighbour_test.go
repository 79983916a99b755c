// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// TestNeighboursOfABusyGuestGoOn: while guests burn their whole budgets on every
// processor, over and over, calls of another plugin beside them end in time.
func TestNeighboursOfABusyGuestGoOn(t *testing.T) {
	h := newHost(t, false)
	honest := load(t, h, assemble(t, guest(`(func $run (param i32 i32) (result i64) (local $i i32)
		(loop $l (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 1000)))) (i64.const 4))`)),
		host.Options{Name: "honest"})
	// As requests come: one after the other, with pauses in which others run.
	measure := func(n int) (p50, p99, worst time.Duration) {
		var took []time.Duration
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for range n {
			start := <-tick.C
			if _, _, err := honest.Call(t.Context(), 1, []byte("{}")); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[n/2], took[n*99/100], took[n-1]
	}
	_, alone, _ := measure(300)
	for _, g := range []struct{ name, source string }{
		{"loop", hostileGuests[0].source}, {"exponential chain", exponential()}, {"bulk copies", hostileGuests[6].source},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range runtime.GOMAXPROCS(0) {
			busy := load(t, h, assemble(t, guest(g.source)),
				host.Options{Name: "busy", Limits: host.Limits{Fuel: 200_000_000, Deadline: time.Second}})
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _, _ = busy.Call(ctx, 1, nil)
				}
			})
		}
		p50, p99, worst := measure(300)
		cancel()
		wg.Wait()
		t.Logf("beside a %s on %d processors: p50 %s, p99 %s, worst %s; alone p99 %s", g.name, runtime.GOMAXPROCS(0), p50, p99, worst, alone)
		if p50 > time.Second || worst > 30*time.Second {
			t.Errorf("beside a %s: p50 %s, worst %s", g.name, p50, worst)
		}
	}
}
