// SPDX-License-Identifier: Apache-2.0

// Package diskspeed measures whether a disk is fast enough for the store: before
// there is one by writing as it would (Probe), and of a running one by etcd's own
// histogram (Watch). It says what to do about one that is not.
//
// It changes nothing: the disk is the operator's.
package diskspeed

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

// Bound is how long 99 of 100 writes to the disk may take. Each write of the cluster waits for one, and
// a leader of several members whose disk stalls for longer than a second is taken for dead.
const Bound = 50 * time.Millisecond

// advice is what to do about a slow one.
const advice = "put the data directory on an SSD that nothing else keeps busy"

// Latency of a disk.
type Latency struct {
	// P99 is what 99 of 100 writes took at most, Writes how many were looked at.
	P99    time.Duration
	Writes int
}

// Slow says that the disk is too slow for the store, and what to do; "" = it is not, or nobody knows.
func (l Latency) Slow() string {
	if l.Writes == 0 || l.P99 <= Bound {
		return ""
	}
	return fmt.Sprintf("the disk is slow for the store: 99 of 100 writes are on it within %s, and it should be %s (docs/OPERATING.md#the-disk-of-the-store); %s",
		l.P99.Round(time.Millisecond), Bound, advice)
}

// Bounds of a probe.
const (
	probeWrites = 100
	probeTime   = 2 * time.Second
	probeBytes  = 2300 // of a record of the log, as etcd's documentation measures disks
)

// Probe writes to the disk of dir as the store would, for two seconds at most. dir need not exist: its
// disk is that of the folder above. Nothing is left there.
func Probe(ctx context.Context, dir string) (Latency, error) {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			break
		}
		if dir == filepath.Dir(dir) {
			return Latency{}, fmt.Errorf("measure the disk: there is no folder %s", dir)
		}
	}
	f, err := os.CreateTemp(dir, ".disk-probe-")
	if err != nil {
		return Latency{}, fmt.Errorf("measure the disk: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := os.Remove(f.Name()); err != nil { // it ends with the file's descriptor
		return Latency{}, fmt.Errorf("measure the disk: %w", err)
	}
	var took []time.Duration
	block, end := make([]byte, probeBytes), time.Now().Add(probeTime)
	for len(took) < probeWrites && time.Now().Before(end) && ctx.Err() == nil {
		begin := time.Now()
		if _, err := f.Write(block); err != nil {
			return Latency{}, fmt.Errorf("measure the disk: %w", err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return Latency{}, fmt.Errorf("measure the disk: %w", err)
		}
		took = append(took, time.Since(begin))
	}
	return latencyOf(took), nil
}

func latencyOf(took []time.Duration) Latency {
	if len(took) == 0 {
		return Latency{}
	}
	slices.Sort(took)
	return Latency{took[(len(took)*99+99)/100-1], len(took)}
}

// Metric is the name of the gauge of a running store's disk.
const Metric = "wasmplane_store_disk_write_p99_seconds"

const (
	every = 15 * time.Second
	// least is how many writes say something about the disk.
	least = 200
)

// Watch measures the disk of the store in this process, by etcd's own histogram.
type Watch struct {
	// Say is told once that the disk is slow, and again when it was fast in between.
	Say func(ctx context.Context, text string)
	Log *slog.Logger

	gauge  prometheus.Gauge
	gather func() ([]taking, error)
	said   bool
}

// NewWatch registers the gauge.
func NewWatch(say func(context.Context, string), metrics prometheus.Registerer, log *slog.Logger) (*Watch, error) {
	w := &Watch{Say: say, Log: log, gather: walFsyncs, gauge: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: Metric, Help: "What 99 of 100 writes of the store's log to the disk took at most, of the last 200 or more.",
	})}
	if err := metrics.Register(w.gauge); err != nil {
		return nil, fmt.Errorf("register the metric of the store's disk: %w", err)
	}
	return w, nil
}

// Run measures until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	var before []taking
	for {
		now, err := w.gather()
		if err != nil {
			w.Log.WarnContext(ctx, "the store's disk cannot be measured", "error", err)
		} else if l := between(before, now); l.Writes >= least {
			w.judge(ctx, l)
			before = now
		}
		if !run.Sleep(ctx, every) {
			return nil
		}
	}
}

func (w *Watch) judge(ctx context.Context, l Latency) {
	if l.Writes < least {
		return
	}
	w.gauge.Set(l.P99.Seconds())
	text := l.Slow()
	if text != "" && !w.said {
		w.Say(ctx, text)
	}
	w.said = text != ""
}

// taking counts what took at most so many seconds.
type taking struct {
	most  float64
	count uint64
}

// between is the latency of what was counted since: the bound of the bucket that has the 99th of 100.
func between(before, now []taking) Latency {
	since := func(i int) uint64 {
		if i < len(before) {
			return now[i].count - before[i].count
		}
		return now[i].count
	}
	if len(now) == 0 {
		return Latency{}
	}
	all := since(len(now) - 1)
	if all == 0 {
		return Latency{}
	}
	most := 0.0
	for i, b := range now {
		if !math.IsInf(b.most, 1) {
			most = b.most
		}
		if since(i)*100 >= all*99 {
			break
		}
	}
	return Latency{time.Duration(most * float64(time.Second)), int(all)}
}

// walFsyncs is etcd's histogram of its writes to the disk.
func walFsyncs() (out []taking, err error) {
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		return nil, fmt.Errorf("read etcd's metrics: %w", err)
	}
	for _, f := range families {
		if f.GetName() != "etcd_disk_wal_fsync_duration_seconds" || len(f.GetMetric()) == 0 {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		for _, b := range h.GetBucket() {
			out = append(out, taking{b.GetUpperBound(), b.GetCumulativeCount()})
		}
		if len(out) > 0 && !math.IsInf(out[len(out)-1].most, 1) {
			out = append(out, taking{math.Inf(1), h.GetSampleCount()})
		}
	}
	return out, nil
}
