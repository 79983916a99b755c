// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/sides"
)

// writes are the requests of BenchmarkWrites; each is measured in turns.
var writes = []struct {
	what    string
	full    int
	request func(round, i int) (method, path, mediaType, body string)
}{
	{"create ConfigMap", 2000, func(round, i int) (string, string, string, string) {
		return http.MethodPost, maps, jsonType, fmt.Sprintf(`{"metadata":{"name":"cm-%d-%d"},"data":{"a":"b"}}`, round, i)
	}},
	{"create pod", 2500, func(round, i int) (string, string, string, string) {
		return http.MethodPost, pods, jsonType, pod(fmt.Sprintf("pod-%d-%d", round, i))
	}},
	{"patch pod status", 2500, func(round, i int) (string, string, string, string) {
		return http.MethodPatch, fmt.Sprintf("%s/pod-%d-%d/status", pods, round, i), "application/strategic-merge-patch+json", statusPatch(round)
	}},
}

// BenchmarkWrites compares the writes alone; without KUBE_APISERVER_BIN it
// measures ours.
func BenchmarkWrites(b *testing.B) {
	for b.Loop() {
		share, sides := scale(b), both(b)
		c := newComparison(sides)
		for _, s := range sides {
			s.prepare(b)
		}
		profiled(b, sides[0], func() {
			for _, w := range writes {
				c.requests(w.what+", 32 clients", turns(rounds, sides, func(s *side, round int) sample {
					return s.load(b, clients, sized(w.full, share), func(i int) (string, string, string, string) { return w.request(round, i) })
				}))
			}
		})
		c.end()
	}
	b.ReportMetric(0, "ns/op") // it is the time of the whole, and means nothing
}

// BenchmarkLists compares lists of pods right after these were made; without
// KUBE_APISERVER_BIN it measures ours.
func BenchmarkLists(b *testing.B) {
	for b.Loop() {
		share, sides := scale(b), both(b)
		c := newComparison(sides)
		for _, s := range sides {
			s.prepare(b)
		}
		each := perRound(share)
		turns(rounds, sides, func(s *side, round int) sample { return s.createPods(b, round, each) })
		c.memory(b, fmt.Sprintf("memory, %d pods", each*rounds), sides)
		profiled(b, sides[0], func() { compareLists(b, c, sides, share) })
		c.end()
	}
	b.ReportMetric(0, "ns/op") // it is the time of the whole, and means nothing
}

// BenchmarkFanOut compares updates that many watch; without KUBE_APISERVER_BIN it
// measures ours.
func BenchmarkFanOut(b *testing.B) {
	for b.Loop() {
		share, sides := scale(b), both(b)
		c := newComparison(sides)
		for _, s := range sides {
			s.prepare(b)
		}
		profiled(b, sides[0], func() { compareFanOut(b, c, sides, share) })
		c.memory(b, "memory after it", sides)
		c.end()
	}
	b.ReportMetric(0, "ns/op") // it is the time of the whole, and means nothing
}

// profiled has a build with profiles (test/bench/profiled) as our side write those of run
// to WASMPLANE_BENCH_PROFILE.
func profiled(tb testing.TB, s *side, run func()) {
	tb.Helper()
	dir := os.Getenv("WASMPLANE_BENCH_PROFILE")
	if dir == "" {
		run()
		return
	}
	done := filepath.Join(dir, "done")
	_ = os.Remove(done)                          // it is of another run
	_ = syscall.Kill(s.PIDs[0], syscall.SIGUSR1) // leave the start out
	run()
	_ = syscall.Kill(s.PIDs[0], syscall.SIGUSR2)
	sides.AwaitFile(tb, done)
}
