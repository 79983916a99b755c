// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// mostAgain is how many failed tests get a second try. More than a few that fail have a common cause, which is not the machine.
const mostAgain = 3

// try is a second try: tests of a package that failed and that are run once more with nothing beside them.
type try struct {
	pkg string
	// patterns are those of `go test -run`, one for each run.
	patterns []string
}

// tries are the second tries. Real clusters on a machine that others share miss deadlines of the kernel, the disk and
// containerd that no test can choose; a test that passes alone is told apart from one that cannot pass, and is named.
// A package that ended in the middle, or whose end the log does not have, did not run all of its tests, and one
// without a failed test failed for another reason: neither has a second try.
func (s *summary) tries() (all []try) {
	units := 0
	for pkg, tests := range s.failedTests {
		if s.crashed[pkg] || !s.ended[pkg] {
			continue
		}
		subs := map[string][]string{} // by test
		for _, test := range tests {
			top, rest, sub := strings.Cut(test, "/")
			second, _, _ := strings.Cut(rest, "/")
			switch {
			case !sub:
				subs[top] = slices.Clip(subs[top])
			case !slices.Contains(subs[top], second):
				subs[top] = append(subs[top], second)
			}
		}
		one := try{pkg: pkg}
		for top, second := range subs {
			pattern := "^" + regexp.QuoteMeta(top) + "$"
			if len(second) > 0 {
				slices.Sort(second)
				for i, name := range second {
					second[i] = regexp.QuoteMeta(name)
				}
				pattern += "/^(" + strings.Join(second, "|") + ")$"
			}
			units += max(1, len(second))
			one.patterns = append(one.patterns, pattern)
		}
		slices.Sort(one.patterns)
		all = append(all, one)
	}
	if units > mostAgain {
		return nil
	}
	slices.SortFunc(all, func(a, b try) int { return strings.Compare(a.pkg, b.pkg) })
	return all
}

// again runs the second tries and counts what passes then as passed. run gives the log of `go test -json` for a pattern of tests.
func (s *summary) again(run func(pkg, pattern string) []byte) {
	for _, t := range s.tries() {
		passes := true
		for _, pattern := range t.patterns {
			_, _ = fmt.Fprintf(s.out, "second try, alone: %s %s\n", t.pkg, pattern)
			second := newSummary(io.Discard)
			if err := second.read(bytes.NewReader(run(t.pkg, pattern))); err != nil || second.failed+second.skipped > 0 || second.passed == 0 {
				_, _ = fmt.Fprintf(s.out, "  failed again\n")
				passes = false
				break
			}
		}
		if passes {
			s.forgive(t.pkg)
		}
	}
}

// forgive counts a package's failed tests as passed, and keeps what they printed for the report.
func (s *summary) forgive(pkg string) {
	s.failed-- // the package
	for _, test := range s.failedTests[pkg] {
		s.failed--
		s.passed++
		s.second = append(s.second, pkg+" "+test)
	}
	s.bad = slices.DeleteFunc(s.bad, func(name string) bool {
		return name == pkg+" " || slices.Contains(s.second, name)
	})
}

// goTest runs tests of a package as test/run.sh does.
func goTest(timeout string) func(pkg, pattern string) []byte {
	return func(pkg, pattern string) []byte {
		cmd := exec.Command("go", "test", "-json", "-count=1", "-timeout", timeout, "-run", pattern, pkg)
		cmd.Stderr = os.Stderr
		// The log says what failed; a failed command has one too.
		log, _ := cmd.Output()
		return log
	}
}
