// SPDX-License-Identifier: Apache-2.0

// Package progress prints for a person how far a start has come, and what it waits for
// where that takes long.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// slowAfter is how long a part may take to start before it is reported as slow;
	// it is reported again after twice the time, and so on.
	slowAfter = 20 * time.Second
	// slowLines of the log are shown with it, and at most slowBytes are read.
	slowLines, slowBytes = 5, 8 << 10
)

// Printer prints a line for each part that is ready, and says what a start that
// takes long is waiting for.
type Printer struct {
	W io.Writer
	// Log is the path of the log; "" = none is shown.
	Log string

	mu      sync.Mutex
	waiting string // the part that starts now
	since   time.Time
	slow    *time.Timer
}

// Report implements run.Progress.
func (p *Printer) Report(name string, ready bool, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slow != nil {
		p.slow.Stop()
	}
	if !ready {
		p.waiting, p.since = name, time.Now()
		p.slow = time.AfterFunc(slowAfter, p.explain)
		return
	}
	p.waiting = ""
	line := "  ready: " + name
	if took >= time.Millisecond { // less is a part that nothing has to wait for
		line = fmt.Sprintf("%-37s %8s", line, Short(took))
	}
	fmt.Fprintln(p.W, line)
}

// explain says which part a start waits for, and shows the end of the log.
func (p *Printer) explain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == "" {
		return // it became ready meanwhile
	}
	took := time.Since(p.since)
	fmt.Fprintf(p.W, "  still waiting for %s after %s; Ctrl-C ends it. The log ends:\n", p.waiting, Short(took.Round(time.Second)))
	for _, line := range lastLines(p.Log, slowLines) {
		fmt.Fprintln(p.W, "    "+line)
	}
	p.slow.Reset(took)
}

// Stop ends what would still be reported.
func (p *Printer) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = ""
	if p.slow != nil {
		p.slow.Stop()
	}
}

// PrintLine prints what else a person wants to know.
func (p *Printer) PrintLine(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.W, "  "+text)
}

// lastLines are the last lines of a file; what cannot be read is the only line.
func lastLines(path string, n int) []string {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return []string{err.Error()}
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return []string{err.Error()}
	}
	end, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-slowBytes), slowBytes))
	if err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimRight(string(end), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}

// Short writes a duration as people read one: 12 ms, 1.4 s, 3 min.
func Short(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
}
