// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/foreign/kubewarden"
	"github.com/wasmplane/wasmplane/plugins/host/bare"
)

// TestEveryFormDecidesTheSame: what is compared is one policy.
func TestEveryFormDecidesTheSame(t *testing.T) {
	if wanted.String() != "" {
		t.Fatal("FORMS leaves forms out")
	}
	w := newWorld(t)
	fine := ordinary(t)
	for _, s := range sides(t) {
		t.Run(s.name, func(t *testing.T) {
			if s.missing != nil {
				t.Fatalf("it could not be built: %v", s.missing)
			}
			if err := s.validate(t.Context(), w.creating(fine)); err != nil {
				t.Errorf("it refuses a pod that is fine: %v", err)
			}
			if err := labelled(t.Context(), s, w.creating(fine)); err != nil {
				t.Error(err)
			}
			for why, p := range refused(t) {
				if err := s.validate(t.Context(), w.creating(p)); err == nil {
					t.Errorf("it lets a pod in: %s", why)
				}
				if err := s.mutate(t.Context(), w.creating(p)); err == nil && s.name != "CEL policies" {
					t.Errorf("it mutates a pod that it should refuse: %s", why)
				}
			}
			if fine.Labels["checked"] != "" {
				t.Error("it changed the pod that it was shown")
			}
		})
	}
}

// labelled has a pod mutated and looks whether it was.
func labelled(ctx context.Context, s *side, r *admission.Request) error {
	if err := s.mutate(ctx, r); err != nil {
		return err
	}
	o, err := r.Object.Versioned()
	if err != nil {
		return err
	}
	if p, ok := o.(*corev1.Pod); !ok || p.Labels["checked"] != "yes" || len(p.Labels) != 5 {
		return fmt.Errorf("%s left the pod without its label: %v", s.name, o)
	}
	return nil
}

// Sizes of the measurement.
const (
	rounds      = 8
	turn        = 250 * time.Millisecond // of one side, one caller
	turnOfTwo   = 250 * time.Millisecond // of one side, a caller on each processor
	warmUpCalls = 300
)

// figures of one side at one point.
type figures struct {
	took  []time.Duration
	cpu   time.Duration // of the whole process while one caller asked
	calls int           // by callers on every processor
	in    time.Duration
}

func (f *figures) perSecond() float64 { return float64(f.calls) / f.in.Seconds() }

func (f *figures) cells() []string {
	each := f.cpu / time.Duration(max(len(f.took), 1))
	return []string{micros(median(f.took)), micros(quantile(f.took, 0.99)), micros(each), fmt.Sprintf("%.0f", f.perSecond())}
}

// BenchmarkDecisions is the one table.
func BenchmarkDecisions(b *testing.B) {
	for b.Loop() {
		measureDecisions(b, rounds, turn).publish(b)
	}
}

func measureDecisions(tb testing.TB, rounds int, turn time.Duration) *table {
	tb.Helper()
	w, pod := newWorld(tb), ordinary(tb)
	all := sides(tb)
	own := append(bareSide(tb), together(tb)...)
	out := newTable(fmt.Sprintf("One policy on a review of %d bytes, by the admission contract; microseconds, and calls a second on %d processors", len(review(tb, pod)), runtime.GOMAXPROCS(0)),
		"", "decision p50", "p99", "CPU", "calls/s", "mutated p50", "p99", "CPU", "calls/s", "of the webhook", "fuel")
	measured := append(all, own...)
	decide, mutate := make([]figures, len(measured)), make([]figures, len(measured))
	for round := range rounds + 1 {
		for i, s := range measured {
			if s.missing != nil {
				continue
			}
			ask := func(do func(context.Context, *admission.Request) error) func() error {
				return func() error { return do(tb.Context(), w.creating(pod)) }
			}
			if round == 0 { // the first ones warm up
				for range warmUpCalls {
					if err := ask(s.validate)(); err != nil {
						tb.Fatalf("%s: %v", s.name, err)
					}
					if err := ask(s.mutate)(); err != nil {
						tb.Fatalf("%s: %v", s.name, err)
					}
				}
				continue
			}
			decide[i].measure(tb, turn, s.validate, func() *admission.Request { return w.creating(pod) })
			mutate[i].measure(tb, turn, s.mutate, func() *admission.Request { return w.creating(pod) })
		}
	}
	webhook := &decide[len(all)-1]
	for i, s := range all {
		if s.missing != nil {
			out.row(s.name, "missing: "+firstLine(s.missing))
			continue
		}
		cells := append([]string{s.name}, decide[i].cells()...)
		cells = append(cells, mutate[i].cells()...)
		fuel := "-"
		if s.fuel != nil {
			fuel = fmt.Sprint(s.fuel())
		}
		out.row(append(cells, fmt.Sprintf("1/%.0f", ratio(median(webhook.took), median(decide[i].took))), fuel)...)
	}
	for i, s := range own {
		if f, adapter := &decide[len(all)+i], s.name; s.missing == nil {
			out.note("%s: %s for the decision, %s for the mutated object, CPU %s and %s", adapter, micros(median(f.took)),
				micros(median(mutate[len(all)+i].took)), f.cells()[2], mutate[len(all)+i].cells()[2])
		}
	}
	out.note("CPU is the process's for each call of one caller: the garbage collector's, and the webhook's server, are in it.")
	return out
}

// measure is one side's turn: one caller, then one on every processor.
func (f *figures) measure(tb testing.TB, turn time.Duration, do func(context.Context, *admission.Request) error,
	request func() *admission.Request,
) {
	tb.Helper()
	ctx := tb.Context()
	used, until := cpu(tb), time.Now().Add(turn)
	for now := time.Now(); now.Before(until); now = time.Now() {
		r := request()
		start := time.Now()
		err := do(ctx, r)
		f.took = append(f.took, time.Since(start))
		if err != nil {
			tb.Fatal(err)
		}
	}
	f.cpu += cpu(tb) - used
	var wg sync.WaitGroup
	counts, failures := make([]int, runtime.GOMAXPROCS(0)), make(chan error, runtime.GOMAXPROCS(0))
	start := time.Now()
	for i := range counts {
		wg.Go(func() {
			n := 0
			for time.Since(start) < turn {
				if err := do(ctx, request()); err != nil {
					failures <- err
					return
				}
				n++
			}
			counts[i] = n
		})
	}
	wg.Wait()
	f.in += time.Since(start)
	select {
	case err := <-failures:
		tb.Fatal(err)
	default:
	}
	for _, n := range counts {
		f.calls += n
	}
}

func firstLine(err error) string {
	text := err.Error()
	for i, c := range text {
		if c == '\n' {
			return text[:i]
		}
	}
	return text
}

// bareSide is the waPC module's own cost: the engine alone, with a request that is
// JSON already. What it answers is not read.
func bareSide(tb testing.TB) []*side {
	tb.Helper()
	g := policies[len(policies)-1]
	wasm, err := g.build(tb)
	if err != nil {
		return []*side{{name: g.label, missing: err}}
	}
	var asked struct {
		Request json.RawMessage `json:"request"`
	}
	if err := json.Unmarshal(review(tb, ordinary(tb)), &asked); err != nil {
		tb.Fatal(err)
	}
	guests := make(chan *bare.Guest, runtime.GOMAXPROCS(0))
	for range cap(guests) {
		own, err := bare.New(tb.Context(), wasm)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = own.Close(context.WithoutCancel(tb.Context())) })
		guests <- own
	}
	ask := func(settings string) func(context.Context, *admission.Request) error {
		payload := kubewarden.ValidationRequest(asked.Request, []byte(settings))
		return func(ctx context.Context, _ *admission.Request) error {
			own := <-guests
			defer func() { guests <- own }()
			_, err := own.Call(ctx, "validate", payload)
			return err
		}
	}
	return []*side{{
		name:     "the waPC module's own cost (the engine alone, with JSON that is ready)",
		validate: ask("{}"), mutate: ask(`{"label":true}`),
	}}
}

// sharing is how many policies look at one request.
const sharing = 10

// together is the waPC module as ten policies that are asked about one request: what it is encoded into is the same for all.
func together(tb testing.TB) []*side {
	tb.Helper()
	g := policies[len(policies)-1]
	wasm, err := g.build(tb)
	if err != nil {
		return []*side{{name: g.label, missing: err}}
	}
	all := loadedTimes(tb, wasm, ", points: [admission.validate]", sharing).AdmissionPlugins()
	validate := func(ctx context.Context, r *admission.Request) error {
		for _, p := range all {
			v, ok := p.(admission.Validator)
			if !ok {
				return fmt.Errorf("%s does not validate", p.Name())
			}
			if err := v.Validate(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
	return []*side{{name: fmt.Sprintf("%d waPC policies asked about one pod, all together", sharing), validate: validate, mutate: validate}}
}

// BenchmarkForms is each form by itself, for profiles.
func BenchmarkForms(b *testing.B) {
	w, pod := newWorld(b), ordinary(b)
	for _, s := range append(append(sides(b), bareSide(b)...), together(b)...) {
		if s.missing != nil {
			b.Logf("%s is missing: %v", s.name, s.missing)
			continue
		}
		for point, do := range map[string]func(context.Context, *admission.Request) error{"decision": s.validate, "mutated": s.mutate} {
			b.Run(s.name+"/"+point, func(b *testing.B) {
				b.ReportAllocs()
				used := cpu(b)
				for b.Loop() {
					if err := do(b.Context(), w.creating(pod)); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(cpu(b)-used)/float64(b.N), "cpu-ns/op")
				if s.fuel != nil {
					b.ReportMetric(float64(s.fuel()), "fuel")
				}
			})
		}
	}
}
