// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/wasmplane/wasmplane/core/api"
	carrier "github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/store/memstore"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// benchObject is a custom resource of some 2 KB, as the server stores one.
func benchObject(i, round int) []byte {
	var fields []string
	for j := range 24 {
		fields = append(fields, fmt.Sprintf(`"field%02d":{"count":%d,"name":"object %d","on":true}`, j, j*round, i))
	}
	return fmt.Appendf(nil, `{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"creationTimestamp":"2026-11-23T10:00:00Z","generation":1,`+
		`"labels":{"app":"a%d"},"managedFields":[{"apiVersion":"example.com/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:any":{},"f:replicas":{},"f:tags":{}}},`+
		`"manager":"kubectl","operation":"Update","time":"2026-11-23T10:00:00Z"}],"name":"t%05d","namespace":"ns","uid":"6d5d1c3c-0c5a-4e4c-8d5f-0d0d0d0d0d0d"},`+
		`"spec":{"any":{%s},"replicas":%d,"tags":["a","b"]},"status":{"replicas":1}}`+"\n", i%10, i, strings.Join(fields, ","), round)
}

// benchCache is a watch cache of n custom resources.
func benchCache(b *testing.B, n int) (*definition, *memstore.Store, *watchcache.Cache, *watchcache.Resource) {
	b.Helper()
	s := benchStore(b, n)
	d, c, r := benchCacheOf(b, s)
	return d, s, c, r
}

func benchStore(b *testing.B, n int) *memstore.Store {
	b.Helper()
	s := memstore.New()
	for i := range n {
		if _, err := s.Put(b.Context(), benchKey(i), benchObject(i, 1), 0, 0); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func benchCacheOf(b *testing.B, s *memstore.Store) (*definition, *watchcache.Cache, *watchcache.Resource) {
	b.Helper()
	d := fuzzDefinition(b)
	c, err := watchcache.New(watchcache.Config{Store: s})
	if err != nil {
		b.Fatal(err)
	}
	r, err := c.Register("/registry/example.com/tabs/", (&api.Contract{}).WatchDecoder(d.row(true, false)))
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var ended sync.WaitGroup
	ended.Go(func() { _ = c.Run(ctx) })
	b.Cleanup(func() { stop(); ended.Wait() })
	<-c.Ready()
	return d, c, r
}

func benchKey(i int) string { return fmt.Sprintf("/registry/example.com/tabs/ns/t%05d", i) }

// listJSON is what answering a list takes besides the connection.
func listJSON(b *testing.B, d *definition, r *watchcache.Resource) {
	b.Helper()
	l := r.List(watchcache.ListOptions{})
	objects := make([]*carrier.Object, len(l.Items))
	for i, it := range l.Items {
		objects[i] = it.Object
	}
	out, err := d.Convert(b.Context(), objects, "v1")
	if err != nil {
		b.Fatal(err)
	}
	for _, o := range out {
		if _, err := o.Encoded(carrier.JSON); err != nil {
			b.Fatal(err)
		}
	}
}

// processor reports the processor time of each operation, which says more than the
// time on a machine that others use too.
func processor(b *testing.B) func() {
	b.Helper()
	used := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkFirstList is the first list after a start.
func BenchmarkFirstList(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		d, _, _, r := benchCache(b, 2_000)
		b.StartTimer()
		listJSON(b, d, r)
	}
}

// BenchmarkAtRest is the memory of an object that has been listed and left alone for a
// minute, besides the store's own.
func BenchmarkAtRest(b *testing.B) {
	for b.Loop() {
		s := benchStore(b, 2_000)
		before := liveHeap()
		d, _, r := benchCacheOf(b, s)
		listJSON(b, d, r)
		for _, it := range r.List(watchcache.ListOptions{}).Items {
			it.Object.DropDecoded() // as the cache does it in time
		}
		b.ReportMetric(float64(liveHeap()-before)/float64(r.Count()), "B/object")
		runtime.KeepAlive(s)
	}
}

// BenchmarkList is a list of 2,000 objects that others have listed before.
func BenchmarkList(b *testing.B) {
	d, _, _, r := benchCache(b, 2_000)
	listJSON(b, d, r)
	defer processor(b)()
	for b.Loop() {
		listJSON(b, d, r)
	}
}

// BenchmarkWrite is one write until the cache has it, nobody watching.
func BenchmarkWrite(b *testing.B) {
	_, s, c, _ := benchCache(b, 200)
	defer processor(b)()
	for i := 0; b.Loop(); i++ {
		put(b, s, c, i)
	}
}

func put(b *testing.B, s *memstore.Store, c *watchcache.Cache, i int) {
	b.Helper()
	old, err := s.Get(b.Context(), benchKey(i%200))
	if err != nil {
		b.Fatal(err)
	}
	rev, err := s.Put(b.Context(), benchKey(i%200), benchObject(i%200, i), old.ModRevision, 0)
	if err != nil {
		b.Fatal(err)
	}
	if err := c.WaitFor(b.Context(), rev); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkEvent is one write until three watchers have it in JSON.
func BenchmarkEvent(b *testing.B) {
	d, s, c, r := benchCache(b, 200)
	var watchers []*watchcache.Watcher
	for range 3 {
		w, err := r.Watch(b.Context(), watchcache.WatchOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer w.Stop()
		watchers = append(watchers, w)
	}
	defer processor(b)()
	for i := 0; b.Loop(); i++ {
		put(b, s, c, i)
		for _, w := range watchers {
			events, err := w.Next(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			for _, e := range events {
				out, err := d.Convert(b.Context(), []*carrier.Object{e.Item.Object}, "v1")
				if err != nil {
					b.Fatal(err)
				}
				if _, err := out[0].Encoded(carrier.JSON); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}
