// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// table is what a benchmark prints; it names the machine's load before and after.
type table struct {
	title, before string
	rows          [][]string
	notes         []string
}

func newTable(title string, header ...string) *table {
	return &table{title: title, before: load(), rows: [][]string{header}}
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// String is the table as text.
func (t *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", t.title)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range t.rows {
		fmt.Fprintf(w, "  %s\t\n", strings.Join(row, "\t"))
	}
	_ = w.Flush()
	for _, n := range t.notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	fmt.Fprintf(&b, "  load average %s before, %s after\n", t.before, load())
	return b.String()
}

// publish prints the table; the benchmark's own time means nothing.
func (t *table) publish(b *testing.B) {
	b.Helper()
	fmt.Println(t)
	b.ReportMetric(0, "ns/op")
}

// load is the machine's load average.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}

// quantile of durations, which it sorts.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

func median(d []time.Duration) time.Duration { return quantile(d, 0.5) }

// micros is a duration in microseconds, in three digits or so.
func micros(d time.Duration) string {
	us := float64(d.Nanoseconds()) / 1000
	switch {
	case us >= 100:
		return fmt.Sprintf("%.0f", us)
	case us >= 10:
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.2f", us)
}

func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// cpu is the processor time of the whole process.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
