// SPDX-License-Identifier: Apache-2.0

// Command report reads `go test -json` and prints what a person wants to see: a
// line for each package, the output of what failed, and the count at the end. A
// skipped test is a failure: a test that cannot run shows nothing. An argument that
// is not empty says what has failed before, and is counted as a failure too.
// With -again TIMEOUT, up to three tests that failed are run once more, alone; those that
// pass then are counted as passed, and named with what they printed at the first try.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
)

// mostLines bounds what one failure prints.
const mostLines = 120

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output, ImportPath string
	// FailedBuild is the import path whose build events say why a package failed.
	FailedBuild string
	Elapsed     float64
}

// result is what is known of a test, of a package (under Test "") or of a build.
type result struct {
	output []string
	action string
}

// summary collects events until the log ends.
type summary struct {
	out                     io.Writer
	results                 map[string]*result
	recent                  map[string]*recent // by package
	blamed                  map[string]bool    // packages with a failed test
	passed, failed, skipped int
	bad                     []string
	failedTests             map[string][]string // by package
	ended                   map[string]bool     // packages that the log follows to their end
	crashed                 map[string]bool     // packages that ended in the middle
	second                  []string            // what passed at the second try
}

func newSummary(out io.Writer) *summary {
	return &summary{
		out: out, results: map[string]*result{}, recent: map[string]*recent{}, blamed: map[string]bool{},
		failedTests: map[string][]string{}, ended: map[string]bool{}, crashed: map[string]bool{},
	}
}

func main() {
	timeout := flag.String("again", "", "run up to three failed tests once more, alone, each with this time-out of go test")
	flag.Parse()
	s := newSummary(os.Stdout)
	for _, what := range flag.Args() {
		s.failedBefore(what)
	}
	err := s.read(os.Stdin)
	if *timeout != "" && err == nil {
		s.again(goTest(*timeout))
	}
	s.print()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "report: read the test log:", err)
		os.Exit(2)
	case s.failed+s.skipped > 0 || s.passed == 0:
		os.Exit(1)
	}
}

func (s *summary) read(log io.Reader) error {
	in := bufio.NewScanner(log)
	in.Buffer(make([]byte, 1<<20), 64<<20)
	for in.Scan() {
		var e event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			_, _ = fmt.Fprintln(s.out, in.Text()) // printed by the toolchain itself
			continue
		}
		s.add(e)
	}
	return in.Err()
}

func (s *summary) failedBefore(what string) {
	if what == "" {
		return
	}
	s.failed++
	s.bad = append(s.bad, what)
	s.results[what] = &result{action: "fail"}
}

func (s *summary) add(e event) {
	name := e.Package + " " + e.Test
	if e.ImportPath != "" {
		name = e.ImportPath + " "
	}
	r := s.results[name]
	if r == nil {
		r = &result{}
		s.results[name] = r
	}
	switch e.Action {
	case "output", "build-output":
		r.output = append(r.output, e.Output)
		if e.Package != "" {
			if s.recent[e.Package] == nil {
				s.recent[e.Package] = &recent{}
			}
			s.recent[e.Package].add(e.Output)
		}
	case "pass", "fail", "skip", "build-fail":
		r.action = e.Action
		if e.Action == "pass" {
			r.output = nil
		}
		s.count(e, name)
	}
}

func (s *summary) count(e event, name string) {
	switch {
	case e.Action == "build-fail":
		s.failed++
		s.bad = append(s.bad, name)
	case e.Test != "":
		s.countTest(e, name)
	case e.Action == "pass", e.Action == "fail":
		_, _ = fmt.Fprintf(s.out, "%-4s %-70s %6.1fs\n", e.Action, strings.TrimPrefix(e.Package, "github.com/wasmplane/wasmplane/"), e.Elapsed)
		if e.Action == "fail" {
			s.failed++
			s.bad = append(s.bad, name)
			s.explain(e, s.results[name])
		}
		s.ended[e.Package] = true
		delete(s.recent, e.Package)
	}
}

func (s *summary) countTest(e event, name string) {
	switch e.Action {
	case "pass":
		s.passed++
		return
	case "fail":
		s.failed++
		s.blamed[e.Package] = true
		s.failedTests[e.Package] = append(s.failedTests[e.Package], e.Test)
	case "skip":
		s.skipped++
	}
	s.bad = append(s.bad, name)
}

// explain gives a package that failed the reason that no failed test of it has: it
// panicked, ran out of time, was killed, or does not build. What it printed then
// belongs, in the log, to whichever test ran last, and that test may have passed.
func (s *summary) explain(e event, r *result) {
	recent := cmp.Or(s.recent[e.Package], &recent{})
	switch {
	case e.FailedBuild != "":
		r.output = append(r.output, "it does not build: see "+e.FailedBuild+"\n")
	case recent.crashed:
		s.crashed[e.Package] = true
		r.output = append([]string{"it ended in the middle:\n"}, append(recent.lines, recent.after...)...)
	case !s.blamed[e.Package]:
		r.output = append([]string{"no test of it failed; it printed last:\n"}, recent.lines...)
	}
}

// recent is what a package printed last, in whichever test. From the line on that
// says why the process ends, its beginning is kept: goroutines without end follow.
type recent struct {
	lines   []string
	crashed bool
	// after has the lines that follow once lines is full: the newest few.
	after []string
}

func (r *recent) add(line string) {
	const few = 5
	if !r.crashed && crash(line) {
		r.crashed = true
		r.lines = slices.Clone(r.lines[max(0, len(r.lines)-mostLines/2):])
	}
	switch {
	case r.crashed && len(r.lines) >= mostLines-few:
		r.after = append(r.after[max(0, len(r.after)-few+1):], line)
	case len(r.lines) == 2*mostLines:
		r.lines = append(slices.Clone(r.lines[mostLines+1:]), line)
	default:
		r.lines = append(r.lines, line)
	}
}

// crash reports whether a line says why a process, not a test of it, ends.
func crash(line string) bool {
	return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.HasPrefix(line, "signal: ")
}

func (s *summary) print() {
	sort.Strings(s.bad)
	for _, name := range s.bad {
		r := s.results[name]
		_, _ = fmt.Fprintf(s.out, "\n--- %s: %s\n%s", strings.ToUpper(r.action), name, tail(r.output))
	}
	slices.Sort(s.second)
	for _, name := range s.second {
		_, _ = fmt.Fprintf(s.out, "\n--- PASSED AT THE SECOND TRY: %s\n%s", name, tail(s.results[name].output))
	}
	if len(s.second) > 0 {
		_, _ = fmt.Fprintf(s.out, "\n%d tests failed at first and passed alone: each is to be mended (AGAIN=0 has no second try)\n", len(s.second))
	}
	_, _ = fmt.Fprintf(s.out, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
}

// tail bounds what one failure prints. The beginning of a crash is its reason, and
// goroutines follow: it is kept too.
func tail(lines []string) string {
	const head = 20
	if len(lines) <= mostLines {
		return strings.Join(lines, "")
	}
	gap := fmt.Sprintf("... %d lines ...\n", len(lines)-mostLines)
	return strings.Join(lines[:head], "") + gap + strings.Join(lines[len(lines)-mostLines+head:], "")
}
