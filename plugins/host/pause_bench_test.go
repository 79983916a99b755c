package host_test

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// BenchmarkBurning has guests burn their whole budget on every processor, and tells
// the longest stop of the whole process that the garbage collector made meanwhile,
// and how long calls of another plugin took beside them.
func BenchmarkBurning(b *testing.B) {
	h := newHost(b, false)
	honest := load(b, h, assemble(b, guest(`(func $run (param i32 i32) (result i64) (i64.const 4))`)), host.Options{Name: "honest", Limits: host.Limits{Deadline: time.Minute}})
	for _, g := range []struct{ name, source string }{
		{"nothing", ""}, {"loop", hostileGuests[0].source}, {"straight-line giant", guestNamed("straight-line giant")}, {"bulk copies", hostileGuests[6].source},
	} {
		b.Run(g.name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			for range runtime.GOMAXPROCS(0) {
				if g.source == "" {
					continue
				}
				busy := load(b, h, assemble(b, guest(g.source)), host.Options{Name: "busy", Limits: host.Limits{Fuel: 1 << 40, Deadline: 500 * time.Millisecond}})
				wg.Go(func() {
					for ctx.Err() == nil {
						_, _, _ = busy.Call(ctx, 1, nil)
					}
				})
			}
			before := pauses()
			var took []time.Duration
			for b.Loop() {
				runtime.GC()
				start := time.Now()
				if _, _, err := honest.Call(b.Context(), 1, []byte("{}")); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			b.ReportMetric(longest(before, pauses())*1000, "longest-pause-ms")
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			cancel()
			wg.Wait()
		})
	}
}

func guestNamed(name string) string {
	return hostileGuests[slices.IndexFunc(hostileGuests, func(g hostile) bool { return g.name == name })].source
}

// pauses are the stop-the-world times of the garbage collector so far, the wait for
// goroutines to stop included.
func pauses() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64Histogram()
}

// longest is the upper bound of the last bucket that has grown, in seconds.
func longest(before, after *metrics.Float64Histogram) float64 {
	for i := len(after.Counts) - 1; i >= 0; i-- {
		if after.Counts[i] > before.Counts[i] {
			if bound := after.Buckets[i+1]; !math.IsInf(bound, 1) {
				return bound
			}
			return after.Buckets[i]
		}
	}
	return 0
}
