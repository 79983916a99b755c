// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/watchcache"
)

// BenchmarkFreshUnderWrites is how long a consistent list has to wait for the
// cache while 200 writes a second come in.
func BenchmarkFreshUnderWrites(b *testing.B) {
	w := newWorld(b)
	c, _ := w.cache(watchcache.Config{})
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				key := fmt.Sprintf("/registry/things/ns/w%d", i)
				if i%4 == 0 { // some writes are none of the cache's
					key = fmt.Sprintf("/other/w%d", i)
				}
				if _, err := w.store.Put(ctx, key, value("w", "red", ""), 0, 0); err != nil {
					return
				}
			}
		}
	})
	took := make([]time.Duration, 0, b.N)
	for b.Loop() {
		began := time.Now()
		if _, err := c.Fresh(ctx); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	cancel()
	wg.Wait()
	report(b, took)
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

// BenchmarkFreshAfterWrite is the wait of a reader who has just written.
func BenchmarkFreshAfterWrite(b *testing.B) {
	w := newWorld(b)
	c, _ := w.cache(watchcache.Config{})
	took := make([]time.Duration, 0, b.N)
	for i := 0; b.Loop(); i++ {
		if _, err := w.store.Put(b.Context(), fmt.Sprintf("/registry/things/ns/w%d", i), value("w", "red", ""), 0, 0); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		if _, err := c.Fresh(b.Context()); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	report(b, took)
}

// BenchmarkFanOut is one write delivered to 500 watchers, half of whom it concerns.
func BenchmarkFanOut(b *testing.B) {
	w := newWorld(b)
	_, r := w.cache(watchcache.Config{})
	const watchers = 500
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	var seen atomic.Int64
	all := make(chan struct{}, 1)
	for i := range watchers {
		o := watchcache.WatchOptions{Bookmarks: true}
		if i%2 == 1 {
			o.Field, o.Value = "spec.node", fmt.Sprintf("n%d", i)
			o.Match = func(it *watchcache.Item) bool { return it.Fields.Get("spec.node") == o.Value }
		}
		x, err := r.Watch(ctx, o)
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			defer x.Stop()
			for {
				events, err := x.Next(ctx)
				if err != nil {
					return
				}
				if seen.Add(int64(len(events)))%(watchers/2) == 0 {
					all <- struct{}{}
				}
			}
		})
	}
	took := make([]time.Duration, 0, b.N)
	for i := 0; b.Loop(); i++ {
		if _, err := w.store.Put(ctx, fmt.Sprintf("/registry/things/ns/w%d", i), value("w", "red", "n0"), 0, 0); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		<-all
		took = append(took, time.Since(began))
	}
	cancel()
	wg.Wait()
	report(b, took)
}

// BenchmarkList walks 10,000 items with a selector.
func BenchmarkList(b *testing.B) {
	w := newWorld(b)
	for i := range 10_000 {
		w.thing(fmt.Sprintf("ns/a%05d", i), []string{"red", "blue"}[i%2])
	}
	_, r := w.cache(watchcache.Config{})
	for b.Loop() {
		if l := r.List(watchcache.ListOptions{Match: red}); len(l.Items) != 5000 {
			b.Fatal(len(l.Items))
		}
	}
}

// BenchmarkWatchers is what one idle watcher takes in memory.
func BenchmarkWatchers(b *testing.B) {
	w := newWorld(b)
	for i := range 100 {
		w.thing(fmt.Sprintf("ns/a%d", i), "red")
	}
	_, r := w.cache(watchcache.Config{})
	const n = 5000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		all := make([]*watchcache.Watcher, n)
		for i := range all {
			x, err := r.Watch(b.Context(), watchcache.WatchOptions{SendInitial: true, Bookmarks: true, Match: red})
			if err != nil {
				b.Fatal(err)
			}
			if events, err := x.Next(b.Context()); err != nil || len(events) != 101 {
				b.Fatal(len(events), err)
			}
			idle, cancel := context.WithTimeout(b.Context(), time.Microsecond)
			if _, err := x.Next(idle); err == nil {
				b.Fatal("an event")
			}
			cancel()
			all[i] = x
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/watcher")
		for _, x := range all {
			x.Stop()
		}
	}
}
