// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/author"
)

// Bench is what calls of a plugin have cost.
type Bench struct {
	Case      string        `json:"case"`
	Point     abi.Point     `json:"point"`
	Decision  string        `json:"decision"`
	Calls     int           `json:"calls"`
	PerSecond float64       `json:"callsPerSecond"` // of one caller
	P50       time.Duration `json:"p50Nanoseconds"`
	P90       time.Duration `json:"p90Nanoseconds"`
	P99       time.Duration `json:"p99Nanoseconds"`
	Max       time.Duration `json:"maxNanoseconds"`
	FuelMin   int64         `json:"fuelMin"`
	FuelMax   int64         `json:"fuelMax"`
	FuelMean  int64         `json:"fuelMean"`
	Memory    uint32        `json:"memoryBytes"` // of the guest, after the last call
}

// Measure asks the plugin a case's question again and again for about a duration,
// one call after the other, compiled. Times are from the adapter's entry to the answer, projection and pool
// included; a call that fails ends it.
func Measure(ctx context.Context, p *author.Plugin, c *Case, d time.Duration) (*Bench, error) {
	c.unwrap()
	if len(c.Nodes) > 0 && p.Cycles() {
		out := &Bench{Case: c.Name, Point: author.Scheduling}
		return out, measureJudge(ctx, p, c, d, out)
	}
	pt, err := c.point(p)
	if err != nil {
		return nil, err
	}
	out := &Bench{Case: c.Name, Point: pt}
	if pt == abi.SchedulingTable {
		return out, measureJudge(ctx, p, c, d, out)
	}
	first, err := c.Ask(ctx, p)
	if err != nil {
		return nil, err
	}
	if out.Decision = first.Decision; first.Decision == author.Failed {
		return nil, fmt.Errorf("%s: the plugin failed: %s", c.Name, first.Error)
	}
	if first.Decision == author.NotAsked {
		return out, nil
	}
	doc := c.document()
	ask, err := p.Prepared(ctx, pt, doc)
	if err != nil {
		return nil, err
	}
	m := newMeter(d)
	for !m.over() && ctx.Err() == nil {
		start := time.Now()
		call := ask(ctx)
		took := time.Since(start)
		if call.Err != nil {
			return nil, fmt.Errorf("%s: the plugin failed after %d calls: %w", c.Name, len(m.times), call.Err)
		}
		m.add(took, call.Usage.Fuel, call.Usage.Memory)
	}
	m.fill(out)
	return out, ctx.Err()
}

func measureJudge(ctx context.Context, p *author.Plugin, c *Case, d time.Duration, out *Bench) error {
	m := newMeter(d)
	for !m.over() && ctx.Err() == nil {
		dec, err := c.Ask(ctx, p)
		if err != nil {
			return err
		}
		if out.Decision = dec.Decision; dec.Decision == author.Failed {
			return errors.New(c.Name + ": the plugin failed: " + dec.Error)
		}
		m.add(time.Duration(dec.Usage.Microseconds)*time.Microsecond, dec.Usage.Fuel, dec.Usage.Memory)
	}
	m.fill(out)
	return ctx.Err()
}

// meter collects costs. A tenth of the time warms up and is not counted.
type meter struct {
	start, end time.Time
	warm       time.Time
	times      []time.Duration
	fuelSum    int64
	fuelMin    int64
	fuelMax    int64
	memory     uint32
}

func newMeter(d time.Duration) *meter {
	now := time.Now()
	return &meter{start: now, warm: now.Add(d / 10), end: now.Add(d)}
}

const mostCalls = 5_000_000

func (m *meter) over() bool {
	return len(m.times) > 0 && time.Now().After(m.end) || len(m.times) == mostCalls
}

func (m *meter) add(took time.Duration, fuel int64, memory uint32) {
	if now := time.Now(); now.Before(m.warm) {
		m.start = now
		return
	}
	m.times = append(m.times, took)
	m.fuelSum += fuel
	if m.fuelMin == 0 || fuel < m.fuelMin {
		m.fuelMin = fuel
	}
	m.fuelMax, m.memory = max(m.fuelMax, fuel), memory
}

func (m *meter) fill(b *Bench) {
	n := len(m.times)
	if n == 0 {
		return
	}
	elapsed := time.Since(m.start)
	slices.Sort(m.times)
	at := func(percent int) time.Duration { return m.times[min(n-1, n*percent/100)] }
	b.Calls, b.PerSecond = n, float64(n)/elapsed.Seconds()
	b.P50, b.P90, b.P99, b.Max = at(50), at(90), at(99), m.times[n-1]
	b.FuelMin, b.FuelMax, b.FuelMean, b.Memory = m.fuelMin, m.fuelMax, m.fuelSum/int64(n), m.memory
}

// MeasureAll measures a plugin's calls for each of some cases.
func MeasureAll(ctx context.Context, cfg author.Config, cases []Case, d time.Duration) (out []*Bench, err error) {
	r := &runner{cfg: cfg, open: map[string]*opened{}}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	for i := range cases {
		c := &cases[i]
		o, err := r.with(ctx, c.Settings)
		if err != nil {
			return nil, err
		}
		if *o.stand, err = newStand(c); err != nil {
			return nil, err
		}
		b, err := Measure(ctx, o.Plugin, c, d)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}
