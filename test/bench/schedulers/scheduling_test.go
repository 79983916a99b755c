// SPDX-License-Identifier: Apache-2.0

package schedulers

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/test/internal/sides"
)

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

// contestant is one side of the comparison.
type contestant struct {
	name  string
	start func(tb testing.TB, r row) (side *sides.Side, metrics string)
}

func contestants() []contestant {
	return []contestant{
		{"wasmplane", func(tb testing.TB, r row) (*sides.Side, string) {
			tb.Helper()
			s := sides.Ours(tb)
			return s, s.Schedule(tb, sides.Scheduler{Without: r.without})
		}},
		{"kube-scheduler on wasmplane", func(tb testing.TB, r row) (*sides.Side, string) {
			tb.Helper()
			s := sides.Ours(tb)
			return s, s.Schedule(tb, upstreams(r))
		}},
		{"upstream", func(tb testing.TB, r row) (*sides.Side, string) {
			tb.Helper()
			s := sides.Theirs(tb, "--authorization-mode", "RBAC")
			return s, s.Schedule(tb, upstreams(r))
		}},
	}
}

// upstreams is upstream's scheduler, as a row wants it.
func upstreams(r row) sides.Scheduler {
	as := sides.Scheduler{Upstreams: true}
	if r.emulate != "" { // there the gate switches the plugin
		as.Flags = append(as.Flags, "--emulated-version", r.emulate)
	}
	if len(r.gates) > 0 {
		as.Flags = append(as.Flags, "--feature-gates", strings.Join(r.gates, ","))
	}
	return as
}

// BenchmarkScheduling runs every row on every side, and prints what it measured.
func BenchmarkScheduling(b *testing.B) {
	names, who, all := pattern(b, "ROWS"), pattern(b, "SIDES"), contestants()
	if os.Getenv("KUBE_SCHEDULER_BIN") == "" { // with the other benchmarks: ours alone, small
		names, all = regexp.MustCompile("^Plain/1000Nodes$"), all[:1]
	}
	most := 1 << 30
	if text := os.Getenv("NODES"); text != "" {
		var err error
		if most, err = strconv.Atoi(text); err != nil {
			b.Fatalf("NODES=%s is no number", text)
		}
	}
	part := scale(b)
	for _, r := range rows(b) {
		if !names.MatchString(r.name) {
			continue
		}
		if part < 1 {
			r = r.scaled(part)
		}
		if r.nodes > most {
			r.not("it has %d nodes, and NODES=%d", r.nodes, most)
		}
		if r.reason != "" {
			fmt.Printf("%s: not run: %s\n", r.name, r.reason)
			continue
		}
		for _, c := range all {
			if !who.MatchString(c.name) {
				continue
			}
			b.Run(r.name+"/"+c.name, func(b *testing.B) {
				for b.Loop() {
					measure(b, c, r)
				}
				b.ReportMetric(0, "ns/op") // it is the time of the whole, and means nothing
			})
		}
	}
}

// scale is the part of each row's objects that is made.
func scale(tb testing.TB) float64 {
	tb.Helper()
	text := os.Getenv("SCALE")
	if text == "" {
		return 1
	}
	part, err := strconv.ParseFloat(text, 64)
	if err != nil || part <= 0 || part > 1 {
		tb.Fatalf("SCALE=%s is no number of 0 to 1", text)
	}
	return part
}

func pattern(tb testing.TB, variable string) *regexp.Regexp {
	tb.Helper()
	p, err := regexp.Compile("(?i)" + os.Getenv(variable))
	if err != nil {
		tb.Fatalf("%s: %v", variable, err)
	}
	return p
}

func measure(b *testing.B, c contestant, r row) {
	b.Helper()
	side, metrics := c.start(b, r)
	f, err := run(b, side, r)
	if err != nil {
		b.Errorf("%s: %v", c.name, err)
		return
	}
	p50, p99, err := attempts(b.Context(), side, metrics)
	if err != nil {
		b.Errorf("%s: read the scheduler's metrics: %v", c.name, err)
	}
	b.ReportMetric(float64(f.pods)/f.took.Seconds(), "pods/s")
	b.ReportMetric(float64(f.cpu.Microseconds())/1e3/float64(max(f.pods, 1)), "cpu-ms/pod")
	b.ReportMetric(float64(f.memory>>20), "MiB")
	b.ReportMetric(p50*1e3, "attempt-p50-ms")
	b.ReportMetric(p99*1e3, "attempt-p99-ms")
}

// scrape reads a scheduler's metrics.
func scrape(ctx context.Context, side *sides.Side, url string) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: side.TLS.Certificates, InsecureSkipVerify: true} //nolint:gosec // it made its certificate itself
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(resp.Body)
}

// attempts reads how long the scheduler's successful attempts took, binding included, to the
// bounds of the histogram's buckets.
func attempts(ctx context.Context, side *sides.Side, url string) (p50, p99 float64, err error) {
	families, err := scrape(ctx, side, url)
	if err != nil {
		return 0, 0, err
	}
	const name = "scheduler_scheduling_attempt_duration_seconds"
	family := families[name]
	for _, m := range family.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() != "result" || l.GetValue() != "scheduled" {
				continue
			}
			h := m.GetHistogram()
			at := func(share float64) float64 {
				for _, bucket := range h.GetBucket() {
					if float64(bucket.GetCumulativeCount()) >= share*float64(h.GetSampleCount()) {
						return bucket.GetUpperBound()
					}
				}
				return 0
			}
			return at(0.5), at(0.99), nil
		}
	}
	return 0, 0, fmt.Errorf("no %s of scheduled pods", name)
}

// TestSmallRow runs a row of five pods that keep away from each other on five nodes: each gets a
// node of its own, and there are figures.
func TestSmallRow(t *testing.T) {
	for _, r := range rows(t) {
		if r.name != "AntiAffinity/1000Nodes" {
			continue
		}
		for i := range r.ops {
			r.ops[i].Count = min(r.ops[i].Count, 5)
		}
		side, metrics := contestants()[0].start(t, r)
		f, err := run(t, side, r)
		if err != nil {
			t.Fatal(err)
		}
		if f.pods != 5 || f.memory == 0 || f.took <= 0 {
			t.Errorf("measured %+v", f)
		}
		taken := map[string]bool{}
		for _, node := range f.nodes {
			taken[node] = true
		}
		if len(taken) != 5 {
			t.Errorf("five pods that keep away from each other are on %d nodes: %v", len(taken), f.nodes)
		}
		if p50, p99, err := attempts(t.Context(), side, metrics); err != nil || p50 <= 0 || p99 < p50 {
			t.Errorf("attempts took %v and %v: %v", p50, p99, err)
		}
		return
	}
	t.Fatal("there is no such row")
}

// TestUpstreamsRowsAreRead: those of v1.37.1 that have a threshold, and what keeps some from being run.
func TestUpstreamsRowsAreRead(t *testing.T) {
	run, not := 0, []string{}
	seen := map[string]bool{}
	for _, r := range rows(t) {
		if seen[r.name] {
			t.Errorf("two rows are called %s", r.name)
		}
		seen[r.name] = true
		if r.reason == "" {
			run++
			if r.nodes == 0 {
				t.Errorf("%s has no nodes", r.name)
			}
			continue
		}
		not = append(not, r.name+": "+r.reason)
	}
	t.Logf("%d rows are run, not: \n%s", run, strings.Join(not, "\n"))
	if run < 55 || len(not) > 0 {
		t.Errorf("%d rows are run and %d are not", run, len(not))
	}
}
