package upstream

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
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
		return http.MethodPatch, fmt.Sprintf("%s/pod-%d-%d/status", pods, round, i), "application/strategic-merge-patch+json",
			fmt.Sprintf(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","message":"%d"}]}}`, round)
	}},
}

// BenchmarkWrites compares the writes alone; without KUBE_APISERVER_BIN it
// measures ours. A build with profiles (test/bench/profiled) writes one of the
// writes to WASMPLANE_BENCH_PROFILE.
func BenchmarkWrites(b *testing.B) {
	for b.Loop() {
		if os.Getenv("KUBE_APISERVER_BIN") == "" {
			fmt.Println(writesAlone(b, scale(b)))
		} else {
			fmt.Println(compareWrites(b, scale(b)))
		}
	}
	b.ReportMetric(0, "ns/op") // it is the time of the whole, and means nothing
}

func compareWrites(tb testing.TB, share float64) *comparison {
	tb.Helper()
	c := newComparison()
	sides := [2]*side{ours(tb), theirs(tb)}
	for _, s := range sides {
		s.prepare(tb)
	}
	for _, w := range writes {
		p := turns(4, sides, func(s *side, round int) sample {
			return s.load(tb, clients, sized(w.full, share), func(i int) (string, string, string, string) { return w.request(round, i) })
		})
		c.requests(w.what+", 32 clients", &p[0], &p[1])
	}
	return c
}

func writesAlone(tb testing.TB, share float64) string {
	tb.Helper()
	s := ours(tb)
	s.prepare(tb)
	if dir := os.Getenv("WASMPLANE_BENCH_PROFILE"); dir != "" {
		done := filepath.Join(dir, "done")
		_ = os.Remove(done)
		_ = syscall.Kill(s.pids[0], syscall.SIGUSR1) // leave the start out
		defer awaitFile(tb, done)
		defer func() { _ = syscall.Kill(s.pids[0], syscall.SIGUSR2) }()
	}
	out := ""
	for _, w := range writes {
		var all sample
		for round := range 4 {
			all.add(s.load(tb, clients, sized(w.full, share), func(i int) (string, string, string, string) { return w.request(round, i) }))
		}
		out += fmt.Sprintf("%s: %.0f a second, p50 %s, p99 %s, CPU %s each\n", w.what, all.perSecond(), short(all.quantile(0.5)), short(all.quantile(0.99)), short(all.cpuEach()))
	}
	return out + "load average " + loadAverage() + "\n"
}
