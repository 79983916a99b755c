// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// times are durations of one kind of thing.
type times []time.Duration

// quantile of the times; zero where there are none.
func (ts times) quantile(q float64) time.Duration {
	if len(ts) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(ts))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (ts times) median() time.Duration { return ts.quantile(0.5) }

func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// short is a duration in three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

func percent(part, of time.Duration) string { return fmt.Sprintf("%.1f%%", 100*ratio(part, of)) }

// load is the machine's load average, and its number of processors.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}

// report is a table that names the machine's load before and after.
type report struct {
	title, before string
	rows          [][]string
	notes         []string
	// metrics go into the benchmark's line, by unit.
	metrics map[string]float64
}

func newReport(title string, header ...string) *report {
	return &report{title: title, before: load(), rows: [][]string{header}, metrics: map[string]float64{}}
}

func (r *report) row(cells ...string) { r.rows = append(r.rows, cells) }

func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

func (r *report) metric(unit string, value float64) { r.metrics[unit] = value }

func (r *report) duration(unit string, d time.Duration) {
	r.metric("ms/"+unit, float64(d.Microseconds())/1000)
}

// String is the table.
func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", r.title)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range r.rows {
		fmt.Fprintf(w, "  %s\t\n", strings.Join(row, "\t"))
	}
	_ = w.Flush()
	for _, n := range r.notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	fmt.Fprintf(&b, "  load average %s before, %s after\n", r.before, load())
	return b.String()
}

// publish prints the table and puts the metrics into the benchmark's line.
func (r *report) publish(b *testing.B) {
	b.Helper()
	fmt.Println(r)
	for unit, v := range r.metrics {
		b.ReportMetric(v, unit)
	}
	b.ReportMetric(0, "ns/op") // it is the time of the whole measurement, and means nothing
}

// memory of a process, in bytes.
type memory struct{ rss, anon, file, peak int64 }

// memoryOf reads a process's memory.
func memoryOf(pid int) (m memory, err error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return m, err
	}
	fields := map[string]*int64{"VmRSS:": &m.rss, "RssAnon:": &m.anon, "RssFile:": &m.file, "VmHWM:": &m.peak}
	for l := range strings.Lines(string(data)) {
		f := strings.Fields(l)
		if len(f) < 2 || fields[f[0]] == nil {
			continue
		}
		kb, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return m, fmt.Errorf("/proc/%d/status: %s: %w", pid, f[0], err)
		}
		*fields[f[0]] = kb << 10
	}
	return m, nil
}

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// cpuOf is the processor time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(data), ") ")
	f := strings.Fields(after) // from the third field on: utime is the 14th, stime the 15th
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: unexpected: %q", pid, data)
	}
	var ticks int64
	for _, s := range f[11:13] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 on every platform of Go's
}
