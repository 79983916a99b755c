// SPDX-License-Identifier: Apache-2.0

package diskspeed

import (
	"context"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/core/store/etcd"
)

func TestADiskIsSlowByWhat99Of100WritesTake(t *testing.T) {
	for _, c := range []struct {
		l    Latency
		slow bool
	}{
		{Latency{}, false},
		{Latency{Bound, 100}, false},
		{Latency{time.Millisecond, 100}, false},
		{Latency{Bound + time.Millisecond, 100}, true},
		{Latency{time.Hour, 0}, false},
	} {
		if got := c.l.Slow(); (got != "") != c.slow || c.slow && !strings.Contains(got, "within 51ms, and it should be 50ms") {
			t.Errorf("%+v: %q", c.l, got)
		}
	}
	var took []time.Duration
	for i := range 100 {
		took = append(took, time.Duration(100-i)*time.Millisecond)
	}
	if l := latencyOf(took); l.P99 != 99*time.Millisecond || l.Writes != 100 {
		t.Errorf("of 1 to 100 ms: %+v", l)
	}
	if l := latencyOf(took[:1]); l.P99 != time.Millisecond {
		t.Errorf("of one: %+v", l)
	}
}

func TestTheDiskOfAFolderIsMeasuredAndLeftAsItWas(t *testing.T) {
	dir := t.TempDir()
	l, err := Probe(t.Context(), filepath.Join(dir, "not", "yet"))
	if err != nil || l.Writes == 0 || l.P99 <= 0 {
		t.Errorf("%+v, %v", l, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestWhatHasBeenWrittenSince(t *testing.T) {
	inf := math.Inf(1)
	before := []taking{{0.001, 1000}, {0.064, 1000}, {0.128, 1000}, {inf, 1000}}
	for _, c := range []struct {
		now  []taking
		p99  time.Duration
		many int
	}{
		{before, 0, 0},
		{[]taking{{0.001, 1100}, {0.064, 1100}, {0.128, 1100}, {inf, 1100}}, time.Millisecond, 100},
		{[]taking{{0.001, 1099}, {0.064, 1099}, {0.128, 1100}, {inf, 1100}}, time.Millisecond, 100},
		{[]taking{{0.001, 1090}, {0.064, 1098}, {0.128, 1100}, {inf, 1100}}, 128 * time.Millisecond, 100},
		{[]taking{{0.001, 1000}, {0.064, 1000}, {0.128, 1000}, {inf, 1100}}, 128 * time.Millisecond, 100},
	} {
		if l := between(before, c.now); l.P99 != c.p99 || l.Writes != c.many {
			t.Errorf("%v: %+v", c.now, l)
		}
	}
	if l := between(nil, nil); l.Writes != 0 {
		t.Errorf("of nothing: %+v", l)
	}
}

// It is said once, and once more when it has been well in between.
func TestASlowDiskIsSaidOnce(t *testing.T) {
	said := 0
	w, err := NewWatch(func(context.Context, string) { said++ }, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	slow, fast, few := Latency{time.Second, least}, Latency{time.Millisecond, least}, Latency{time.Millisecond, 3}
	for i, step := range []struct {
		l    Latency
		want int
	}{{fast, 0}, {slow, 1}, {slow, 1}, {few, 1}, {slow, 1}, {fast, 1}, {slow, 2}} {
		if w.judge(t.Context(), step.l); said != step.want {
			t.Errorf("step %d: said %d times, want %d", i, said, step.want)
		}
	}
}

// The name of the histogram is etcd's.
func TestEtcdMeasuresItsDisk(t *testing.T) {
	s, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := s.Store().Put(t.Context(), "/registry/a", []byte("a"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if now, err := walFsyncs(); err != nil || between(nil, now).Writes == 0 {
		t.Errorf("%v, %v", now, err)
	}
}
