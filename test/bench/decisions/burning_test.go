// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// burners are guests that never end by themselves, each by another means.
var burners = []struct{ name, body string }{
	{"nothing", ""},
	{"loops", `(loop $l (br $l))`},
	{"straight-line giants", `(loop $l ` + strings.Repeat(`(global.set $g (i64.mul (global.get $g) (i64.const 3)))`, 2000) + ` (br $l))`},
	{"bulk copies", `(drop (memory.grow (i32.const 500))) (loop $l (memory.copy (i32.const 1) (i32.const 0) (i32.const 30000000)) (br $l))`},
	{"loads that miss the cache", `(drop (memory.grow (i32.const 500)))
		(loop $l (local.set $i (i32.and (i32.add (i32.mul (local.get $i) (i32.const 1103515245)) (i32.const 12345)) (i32.const 0xffffff)))
			(i32.store8 (local.get $i) (i32.const 1)) (br $l))`},
	{"fresh memory", `(loop $grow (br_if $grow (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
		(loop $touch (i32.store8 (local.get $i) (i32.const 1)) (local.set $i (i32.add (local.get $i) (i32.const 4096)))
			(br_if $touch (i32.lt_u (local.get $i) (i32.mul (memory.size) (i32.const 65536)))))`},
}

// burner is a module that runs until its budget is over or, with fresh memory, has
// touched each page of it. It has fresh memory for each call.
func burner(tb testing.TB, h *host.Host, body string) *host.Module {
	tb.Helper()
	wasm, err := wat.Assemble(`(module (memory (export "memory") 2) (global $g (mut i64) (i64.const 1))
		(func (export "describe") (result i64) (i64.const 0))
		(func (export "alloc") (param i32) (result i32) (i32.const 65536))
		(func (export "call") (param i32 i32 i32) (result i64) (local $i i32) ` + body + ` (i64.const 0)))`)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := h.Compile(tb.Context(), wasm,
		host.Options{Name: "burner", PerCall: true, Limits: host.Limits{Fuel: 1 << 40, Deadline: 500 * time.Millisecond}})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// BenchmarkBurning has guests burn their whole budget on every processor, one after
// the other without a pause, and tells the longest stop of the whole process that
// the garbage collector made meanwhile, and how long requests took beside them: over
// TLS, through a plugin in the same process.
func BenchmarkBurning(b *testing.B) {
	for b.Loop() {
		measureBurning(b, 4*time.Second).publish(b)
	}
}

func measureBurning(tb testing.TB, each time.Duration) *table {
	tb.Helper()
	w, pod := newWorld(tb), ordinary(tb)
	policy := native{}.Validate
	plugin := "native"
	for _, g := range policies {
		if wasm, err := g.build(tb); err == nil {
			policy, plugin = wasmSide(tb, g, wasm).validate, g.label
			break
		}
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if err := policy(r.Context(), w.creating(pod)); err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	}))
	tb.Cleanup(server.Close)
	h, err := host.New(tb.Context(), host.Config{InProcess: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = h.Close() })
	out := newTable(fmt.Sprintf("Guests that burn their whole budget on %d processors; milliseconds, over %s each", runtime.GOMAXPROCS(0), each),
		"burning", "longest stop of the process", "p99 of stops", "a request beside it: p50", "p99", "p99 added", "requests")
	var alone time.Duration
	for _, burn := range burners {
		before := pauses()
		took := beside(tb, h, burn.body, server, each)
		stops := since(before, pauses())
		p99 := quantile(took, 0.99)
		if burn.body == "" {
			alone = p99
		}
		out.row(burn.name, millis(stops(1)), millis(stops(0.99)), millis(median(took)), millis(p99), millis(p99-alone), fmt.Sprint(len(took)))
	}
	out.note("A request goes over TLS to a handler that asks a plugin (%s); the garbage collector runs every 20 ms.", plugin)
	return out
}

func millis(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Nanoseconds())/1e6) }

// beside measures requests, 2 ms apart, while guests burn and the collector runs.
func beside(tb testing.TB, h *host.Host, body string, server *httptest.Server, each time.Duration) []time.Duration {
	tb.Helper()
	ctx, stop := context.WithTimeout(tb.Context(), each)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for range runtime.GOMAXPROCS(0) {
		if body == "" {
			continue
		}
		m := burner(tb, h, body)
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _, _ = m.Call(ctx, 1, nil)
			}
			_ = m.Close()
		})
	}
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			runtime.GC()
			<-tick.C
		}
	})
	var took []time.Duration
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		<-tick.C
		start := time.Now()
		r, err := server.Client().Get(server.URL)
		if err != nil {
			tb.Fatal(err)
		}
		_, err = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK {
			tb.Fatalf("%s, %v", r.Status, err)
		}
		if n >= 20 { // the first ones set up the connection
			took = append(took, time.Since(start))
		}
	}
	return took
}

// pauses are the stop-the-world times of the garbage collector so far, the wait for
// goroutines to stop included.
func pauses() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64Histogram()
}

// since gives quantiles of what was added to a histogram, as upper bounds.
func since(before, after *metrics.Float64Histogram) func(q float64) time.Duration {
	return func(q float64) time.Duration {
		var all, seen uint64
		for i := range after.Counts {
			all += after.Counts[i] - before.Counts[i]
		}
		for i := range after.Counts {
			if seen += after.Counts[i] - before.Counts[i]; all > 0 && float64(seen) >= q*float64(all) {
				bound := after.Buckets[i+1]
				if math.IsInf(bound, 1) {
					bound = after.Buckets[i]
				}
				return time.Duration(bound * float64(time.Second))
			}
		}
		return 0
	}
}
