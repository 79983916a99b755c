// SPDX-License-Identifier: Apache-2.0

package schedulers

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/toolchain"
	"github.com/wasmplane/wasmplane/test/internal/guests"
	"github.com/wasmplane/wasmplane/test/internal/sides"
)

// wasmRow is what is run without ROWS.
const wasmRow = "^Plain/5000Nodes$"

// rater is a scheduler with a plugin that filters and scores all nodes by how many pods they have; without one, native
// plugins decide alone.
type rater struct {
	name     string
	language toolchain.Language
	module   []byte
}

// raters are native plugins alone, and the same plugin beside them in three languages.
func raters(tb testing.TB) []rater {
	tb.Helper()
	all := []rater{{name: "native"}, {"C", toolchain.C, nil}, {"Rust", toolchain.Rust, nil}, {"Go", toolchain.Go, nil}}
	for i := range all {
		if all[i].language == "" {
			continue
		}
		folder := strings.ToLower(all[i].name)
		module, err := guests.Build(tb, guests.Guest{
			Folder: filepath.Join("..", "decisions", "testdata", "nodes", folder), Name: "nodes-" + folder, Language: all[i].language,
		})
		if err != nil {
			tb.Fatalf("build the plugin in %s: %v", all[i].name, err)
		}
		all[i].module = module
	}
	return all
}

// start our server and scheduler, with the plugin.
func (r rater) start(tb testing.TB) (side *sides.Side, metrics string) {
	tb.Helper()
	side = sides.Ours(tb)
	if r.module == nil {
		return side, side.Schedule(tb, sides.Scheduler{})
	}
	dir := tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.wasm"), r.module, 0o600); err != nil {
		tb.Fatal(err)
	}
	// The limits are those of every plugin, but for a deadline that a busy machine meets too: a failed call would be no measurement.
	const plugins = "[{name: fewest-pods, source: 'file:p.wasm', limits: {deadline: 30s}}]"
	return side, side.Schedule(tb, sides.Scheduler{Dir: dir, Plugins: plugins})
}

// turn is what one run of a row measured.
type turn struct {
	rate   float64 // pods/s
	cpu    time.Duration
	memory int64
	calls  float64 // of the plugin
}

// BenchmarkWasmScheduling runs rows with native plugins alone and with a Wasm plugin beside them, by turns, and prints the
// share of the native rate that is left.
func BenchmarkWasmScheduling(b *testing.B) {
	pattern, rounds := cmp.Or(os.Getenv("ROWS"), wasmRow), 3
	if text := os.Getenv("ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			b.Fatalf("ROUNDS=%s is no number above 0", text)
		}
		rounds = n
	}
	names, err := regexp.Compile("(?i)" + pattern)
	if err != nil {
		b.Fatalf("ROWS: %v", err)
	}
	all, part := raters(b), scale(b)
	for b.Loop() {
		for _, r := range rows(b) {
			if !names.MatchString(r.name) || r.reason != "" {
				continue
			}
			if part < 1 {
				r = r.scaled(part)
			}
			compareRaters(b, r, all, rounds)
		}
	}
	b.ReportMetric(0, "ns/op") // it is the time of the whole, and means nothing
}

// compareRaters measures a row with each rater by turns, each round beginning with another one, and prints medians.
func compareRaters(b *testing.B, r row, all []rater, rounds int) {
	b.Helper()
	turns := make([][]turn, len(all))
	for round := range rounds {
		for i := range all {
			at := (round + i) % len(all)
			b.Run(fmt.Sprintf("%s/%s/%d", r.name, all[at].name, round), func(b *testing.B) {
				for b.Loop() {
					turns[at] = append(turns[at], measureRater(b, r, all[at]))
				}
				b.ReportMetric(turns[at][len(turns[at])-1].rate, "pods/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
	if slices.ContainsFunc(turns, func(t []turn) bool { return len(t) == 0 }) {
		return // a pattern of -bench left them out, or they failed
	}
	native := median(turns[0])
	fmt.Printf("\n%s, %d rounds, medians\n| plugin | pods/s | of native | CPU a pod | of native | memory | calls of the plugin |\n"+
		"|---|---|---|---|---|---|---|\n", r.name, rounds)
	for i := range all {
		m := median(turns[i])
		fmt.Printf("| %s | %.0f | %.0f %% | %.2f ms | %.0f %% | %d MiB | %.0f |\n", all[i].name, m.rate, 100*m.rate/native.rate,
			float64(m.cpu.Microseconds())/1e3, 100*float64(m.cpu)/float64(native.cpu), m.memory>>20, m.calls)
	}
}

// median of each figure by itself.
func median(of []turn) (m turn) {
	mid := func(less func(a, b turn) int) turn { return slices.SortedFunc(slices.Values(of), less)[len(of)/2] }
	m.rate = mid(func(a, b turn) int { return cmp.Compare(a.rate, b.rate) }).rate
	m.cpu = mid(func(a, b turn) int { return cmp.Compare(a.cpu, b.cpu) }).cpu
	m.memory = mid(func(a, b turn) int { return cmp.Compare(a.memory, b.memory) }).memory
	m.calls = mid(func(a, b turn) int { return cmp.Compare(a.calls, b.calls) }).calls
	return m
}

// measureRater runs a row once. A plugin that was not asked about the pods would make the figures those of another thing.
func measureRater(tb testing.TB, r row, by rater) (t turn) {
	tb.Helper()
	side, metrics := by.start(tb)
	if by.module != nil {
		awaitPlugin(tb, side, metrics)
	}
	f, err := run(tb, side, r)
	if err != nil {
		tb.Fatalf("%s: %v", by.name, err)
	}
	t = turn{rate: float64(f.pods) / f.took.Seconds(), cpu: f.cpu / time.Duration(max(f.pods, 1)), memory: f.memory}
	if by.module == nil {
		return t
	}
	if t.calls, err = pluginCalls(tb.Context(), side, metrics); err != nil {
		tb.Fatal(err)
	}
	if t.calls == 0 {
		tb.Fatalf("the plugin in %s was never asked", by.name)
	}
	return t
}

// awaitPlugin waits until the plugin answers.
func awaitPlugin(tb testing.TB, side *sides.Side, url string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		families, err := scrape(ctx, side, url)
		for _, m := range families["wasmplane_plugin_ready"].GetMetric() {
			if m.GetGauge().GetValue() == 1 {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("the plugin does not get ready: %v", err)
		}
	}
}

// pluginCalls is how often the plugin was asked, and an error if it failed once.
func pluginCalls(ctx context.Context, side *sides.Side, url string) (calls float64, err error) {
	families, err := scrape(ctx, side, url)
	if err != nil {
		return 0, err
	}
	for _, m := range families["wasmplane_plugin_failures_total"].GetMetric() {
		if n := m.GetCounter().GetValue(); n > 0 {
			return 0, fmt.Errorf("%.0f calls of the plugin failed: %s", n, m.String())
		}
	}
	for _, m := range families["wasmplane_plugin_calls_total"].GetMetric() {
		calls += m.GetCounter().GetValue()
	}
	return calls, nil
}
