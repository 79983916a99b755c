// SPDX-License-Identifier: Apache-2.0

// Package result remembers how tests ended, so that a run can be carried on, and
// reports it by SIG.
package result

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// Result of one test with one build.
type Result struct {
	Test    string        `json:"test"`
	SIG     string        `json:"sig"`
	Passed  bool          `json:"passed"`
	State   string        `json:"state"`
	Message string        `json:"message,omitempty"`
	Took    time.Duration `json:"took"`
	Build   string        `json:"build"`
	At      time.Time     `json:"at"`
}

// Skipped says whether the test found here what it is not written for. A
// conformance test is written for every cluster: if it is skipped, it has failed.
func (r Result) Skipped() bool {
	return r.State == "skipped" && !strings.Contains(r.Test, "[Conformance]")
}

// Failed says whether the test ran and did not pass.
func (r Result) Failed() bool { return !r.Passed && !r.Skipped() }

// Book is a file of results, one a line, the last of a test counts.
type Book struct {
	file string

	mu  sync.Mutex
	all map[string]Result
	// failures counts how often each test failed.
	failures map[string]int
}

// Open reads the results of build; those of other builds count where build is "".
func Open(file, build string) (*Book, error) {
	b := &Book{file: file, all: map[string]Result{}, failures: map[string]int{}}
	return b, journal.Read(file, func(r Result) {
		if r.Test != "" && (build == "" || r.Build == build) {
			b.note(r)
		}
	})
}

// Add remembers a result.
func (b *Book) Add(r Result) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(r)
	return journal.Append(b.file, r)
}

func (b *Book) note(r Result) {
	b.all[r.Test] = r
	if r.Failed() {
		b.failures[r.Test]++
	}
}

// Of is the result of a test.
func (b *Book) Of(test string) (Result, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.all[test]
	return r, ok
}

// Again are those of the tests that passed, but had failed before.
func (b *Book) Again(tests map[string]string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	for t := range tests {
		if b.all[t].Passed && b.failures[t] > 0 {
			names = append(names, t)
		}
	}
	slices.Sort(names)
	return names
}

// Line is one SIG's count.
type Line struct {
	SIG                             string
	Passed, Failed, Skipped, NotRun int
	Took                            time.Duration
	Failures                        []Result
	// Skips counts the skipped tests by their reason.
	Skips map[string]int
}

// Summary of tests: which are named by their SIG.
func (b *Book) Summary(sigs map[string]string) []Line {
	by := map[string]*Line{}
	for test, sig := range sigs {
		l := by[sig]
		if l == nil {
			l = &Line{SIG: sig, Skips: map[string]int{}}
			by[sig] = l
		}
		r, ok := b.Of(test)
		switch {
		case !ok:
			l.NotRun++
			continue
		case r.Passed:
			l.Passed++
		case r.Skipped():
			l.Skipped++
			l.Skips[Why(r.Message, 1)]++
		default:
			l.Failed++
			l.Failures = append(l.Failures, r)
		}
		l.Took += r.Took
	}
	var lines []Line
	for _, l := range by {
		slices.SortFunc(l.Failures, func(a, b Result) int { return strings.Compare(a.Test, b.Test) })
		lines = append(lines, *l)
	}
	slices.SortFunc(lines, func(a, b Line) int { return strings.Compare(a.SIG, b.SIG) })
	return lines
}

// Total of several lines.
func Total(lines []Line) Line {
	t := Line{SIG: "all"}
	for _, l := range lines {
		t.Passed, t.Failed, t.Skipped, t.NotRun = t.Passed+l.Passed, t.Failed+l.Failed, t.Skipped+l.Skipped, t.NotRun+l.NotRun
		t.Took += l.Took
	}
	return t
}

// Text is the report for a terminal.
func Text(lines []Line) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%-24s %7s %7s %8s %8s %10s\n", "SIG", "passed", "failed", "skipped", "not run", "time")
	for _, l := range append(slices.Clone(lines), Total(lines)) {
		fmt.Fprintf(&out, "%-24s %7d %7d %8d %8d %10s\n", l.SIG, l.Passed, l.Failed, l.Skipped, l.NotRun, l.Took.Round(time.Second))
	}
	for _, l := range lines {
		for _, r := range l.Failures {
			fmt.Fprintf(&out, "\nFAILED %s (%s, %s)\n%s\n", r.Test, r.State, r.Took.Round(time.Second), indent(Why(r.Message, 6)))
		}
	}
	return out.String()
}

// Markdown is the report for a document.
func Markdown(lines []Line) string {
	var out strings.Builder
	out.WriteString("| SIG | passed | failed | skipped | not run | time |\n|---|---|---|---|---|---|\n")
	for _, l := range append(slices.Clone(lines), Total(lines)) {
		fmt.Fprintf(&out, "| %s | %d | %d | %d | %d | %s |\n", l.SIG, l.Passed, l.Failed, l.Skipped, l.NotRun, l.Took.Round(time.Second))
	}
	for _, l := range lines {
		if len(l.Failures) == 0 {
			continue
		}
		fmt.Fprintf(&out, "\n## %s: what failed\n", l.SIG)
		for _, r := range l.Failures {
			fmt.Fprintf(&out, "\n- %s (%s, %s)\n\n  ```\n%s\n  ```\n", r.Test, r.State, r.Took.Round(time.Second), indent(Why(r.Message, 4)))
		}
	}
	skips(&out, lines)
	return out.String()
}

// skips lists why tests were skipped, the most frequent reason first.
func skips(out *strings.Builder, lines []Line) {
	reasons := map[string]int{}
	for _, l := range lines {
		for why, n := range l.Skips {
			reasons[why] += n
		}
	}
	if len(reasons) == 0 {
		return
	}
	out.WriteString("\n## Skipped, for the reason that the tests give\n\n| tests | reason |\n|---|---|\n")
	byCount := func(a, b string) int { return cmp.Or(reasons[b]-reasons[a], strings.Compare(a, b)) }
	for _, why := range slices.SortedFunc(maps.Keys(reasons), byCount) {
		fmt.Fprintf(out, "| %d | %s |\n", reasons[why], strings.ReplaceAll(why, "|", `\|`))
	}
}

// Why are the first lines of a message that say something.
func Why(message string, most int) string {
	var kept []string
	for _, line := range strings.Split(message, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "<") || strings.HasPrefix(line, "{") || strings.HasPrefix(line, "}") {
			continue
		}
		if len(line) > 300 {
			line = line[:300] + "..."
		}
		if kept = append(kept, line); len(kept) == most {
			break
		}
	}
	if len(kept) == 0 {
		return "no reason was given"
	}
	return strings.Join(kept, "\n")
}

func indent(s string) string { return "  " + strings.ReplaceAll(s, "\n", "\n  ") }
