package upstream

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// scale is the share of the full size that is asked for.
func scale(tb testing.TB) float64 {
	tb.Helper()
	text := os.Getenv("BENCH_SCALE")
	if text == "" {
		return 1
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f <= 0 || f > 1 {
		tb.Fatalf("BENCH_SCALE is %q: give a share between 0 and 1", text)
	}
	return f
}

func sized(full int, share float64) int { return max(1, int(float64(full)*share)) }

// pair holds the samples of one measurement, ours and theirs.
type pair [2]sample

// turns measures both sides, one after the other, rounds times, and lets each be
// first as often as the other.
func turns(rounds int, sides [2]*side, measure func(s *side, round int) sample) *pair {
	var p pair
	for round := range rounds {
		for i := range sides {
			which := (i + round) % 2
			p[which].add(measure(sides[which], round))
		}
	}
	return &p
}

// BenchmarkAPI compares create, update, get, list, watch, memory and start.
func BenchmarkAPI(b *testing.B) {
	for b.Loop() {
		fmt.Println(compare(b, scale(b)))
	}
	b.ReportMetric(0, "ns/op") // it is the time of the whole, and means nothing
}

func compare(tb testing.TB, share float64) *comparison {
	c := newComparison()
	sides := [2]*side{ours(tb), theirs(tb)}
	c.durations("start to ready", sides[0].ready, sides[1].ready)
	for _, s := range sides {
		s.prepare(tb)
	}
	c.bytes("memory, idle", sides[0].memory(tb), sides[1].memory(tb))
	idle := sized(1000, share)
	c.bytes(fmt.Sprintf("memory of a watch, of %d that wait", idle), sides[0].perWatch(tb, idle), sides[1].perWatch(tb, idle))
	const rounds = 4
	all := sized(10_000, share)
	each := max(1, all/rounds)

	p := turns(rounds, sides, func(s *side, round int) sample {
		return s.load(tb, clients, sized(2000, share), func(i int) (string, string, string, string) {
			return http.MethodPost, maps, jsonType, fmt.Sprintf(`{"metadata":{"name":"cm-%d-%d"},"data":{"a":"b"}}`, round, i)
		})
	})
	c.requests("create ConfigMap, 32 clients", &p[0], &p[1])
	p = turns(rounds, sides, func(s *side, round int) sample {
		return s.load(tb, clients, each, func(i int) (string, string, string, string) {
			return http.MethodPost, pods, jsonType, pod(fmt.Sprintf("pod-%d-%d", round, i))
		})
	})
	c.requests("create pod, 32 clients", &p[0], &p[1])
	p = turns(rounds, sides, func(s *side, round int) sample {
		return s.load(tb, clients, sized(1000, share), func(i int) (string, string, string, string) {
			body := fmt.Sprintf(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","message":"%d"}]}}`, round)
			return http.MethodPatch, fmt.Sprintf("%s/pod-%d-%d/status", pods, round, i%each), "application/strategic-merge-patch+json", body
		})
	})
	c.requests("patch pod status, 32 clients", &p[0], &p[1])
	p = turns(rounds, sides, func(s *side, round int) sample {
		return s.load(tb, clients, sized(5000, share), func(i int) (string, string, string, string) {
			return http.MethodGet, fmt.Sprintf("%s/pod-%d-%d", pods, round, i%each), jsonType, ""
		})
	})
	c.requests("get pod, 32 clients", &p[0], &p[1])
	c.bytes(fmt.Sprintf("memory, %d pods", each*rounds), sides[0].memory(tb), sides[1].memory(tb))
	for _, l := range []struct {
		what, accept string
		limit        int
	}{
		{"JSON", jsonType, 0}, {"protobuf", protobuf, 0}, {"JSON, pages of 500", jsonType, 500}, {"Table, pages of 500", table, 500},
	} {
		p := turns(rounds, sides, func(s *side, _ int) sample { return s.list(tb, l.accept, l.limit) })
		what := fmt.Sprintf("list %d pods, %s", each*rounds, l.what)
		c.durations(what, p[0].quantile(0.5), p[1].quantile(0.5))
		c.durations("  CPU each", p[0].cpuEach(), p[1].cpuEach())
	}
	watchers := sized(500, share)
	p = turns(2, sides, func(s *side, _ int) sample { return s.fanOut(tb, watchers, sized(1000, share), 200) })
	what := fmt.Sprintf("%d watchers, 200 updates/s", watchers)
	c.durations(what+", delivery p50", p[0].quantile(0.5), p[1].quantile(0.5))
	c.durations("  p99", p[0].quantile(0.99), p[1].quantile(0.99))
	c.durations("  CPU an update", p[0].cpuEach(), p[1].cpuEach())
	return c
}

// TestOurSideMeasures runs every measurement once, small, on our side alone.
func TestOurSideMeasures(t *testing.T) {
	if os.Getenv("WASMPLANE_BIN") == "" {
		t.Setenv("WASMPLANE_BIN", bin(t))
	}
	s := ours(t)
	s.prepare(t)
	created := s.load(t, 4, 20, func(i int) (string, string, string, string) {
		return http.MethodPost, pods, jsonType, pod(fmt.Sprintf("pod-%d", i))
	})
	listed := s.list(t, table, 7)
	seen := s.fanOut(t, 5, 20, 100)
	_ = s.perWatch(t, 100) // fails where one is not answered; its memory may be that of garbage
	if len(created.each) != 20 || listed.quantile(0.5) == 0 || len(seen.each) != 100 || s.memory(t) == 0 {
		t.Errorf("created %d, listed in %v, delivered %d", len(created.each), listed.quantile(0.5), len(seen.each))
	}
}

// bin is what `make build` makes.
func bin(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../bin/wasmplane")
	if err != nil {
		t.Fatal(err)
	}
	return path
}
