// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// Outcomes of a test.
const (
	passed  = "passed"
	failed  = "FAILED"
	skipped = "skipped" // by upstream
	inside  = "inside"  // it needs the server's inside, or a flag without an equivalent
)

// whole stands for a package's program: it was built, and everything chosen has a result.
const whole = "(package)"

// result is how a test ended with one build.
type result struct {
	Package string    `json:"package"`
	Test    string    `json:"test"`
	Outcome string    `json:"outcome"`
	Reason  string    `json:"reason,omitempty"`
	Seconds float64   `json:"seconds"`
	Build   string    `json:"build"`
	At      time.Time `json:"at"`
}

// insideWords begin the reason with which files of the overlay skip a test.
const insideWords = "needs the server's inside: "

// conclude is the result of a test that has ended.
func conclude(name string, e event, said string) result {
	r := result{Package: name, Test: e.Test, Outcome: passed, Seconds: e.Elapsed, At: time.Now()}
	switch e.Action {
	case "fail":
		r.Outcome, r.Reason = failed, because(said)
	case "skip":
		r.Outcome, r.Reason = skipped, because(said)
		if _, why, ok := strings.Cut(r.Reason, insideWords); ok {
			r.Outcome = inside
			r.Reason, _, _ = strings.Cut(why, " | ") // what follows is said by others
		}
	}
	return r
}

// frame are lines of testing's own.
var frame = regexp.MustCompile(`(?m)^\s*(===|---) .*\n`)

// because is what a test said, in a line: from its last words that name a place in a file,
// or its last lines.
func because(said string) string {
	said = frame.ReplaceAllString(said, "")
	if at := strings.Index(said, "panic: "); at >= 0 {
		return journal.InLine(said[at:], 3)
	}
	if begin := lastSpoken(said); begin != "" {
		return journal.InLine(begin, 4)
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return journal.InLine(strings.Join(lines[max(0, len(lines)-3):], "\n"), 3)
}

// spoken is how testing begins what a test says.
var spoken = regexp.MustCompile(`(?m)^\s*\w+\.go:\d+: `)

// inTests is the same in files of tests.
var inTests = regexp.MustCompile(`(?m)^\s*\w+_test\.go:\d+: `)

// lastSpoken is the text from the last but one thing that the test itself said.
func lastSpoken(said string) string {
	places := spoken.FindAllStringIndex(said, -1)
	if theirs := inTests.FindAllStringIndex(said, -1); theirs != nil {
		places = theirs // and not those of what runs beside the test
	}
	if places == nil {
		return ""
	}
	return said[places[max(0, len(places)-2)][0]:]
}

// book is a file of results, one a line; the last of a test counts.
type book struct {
	file, build string
	all         map[string]map[string]result // by package and test
}

// openBook reads the results of a build.
func openBook(file, build string) (*book, error) {
	b := &book{file: file, build: build, all: map[string]map[string]result{}}
	return b, journal.Read(file, func(r result) {
		if r.Build == build {
			b.remember(r)
		}
	})
}

func (b *book) remember(r result) {
	if b.all[r.Package] == nil {
		b.all[r.Package] = map[string]result{}
	}
	b.all[r.Package][r.Test] = r
}

// add remembers a result, in the file too.
func (b *book) add(r result) error {
	r.Build = b.build
	b.remember(r)
	return journal.Append(b.file, r)
}

// complete says whether a package has a result of each test, and none has failed.
func (b *book) complete(name string) bool {
	for _, r := range b.all[name] {
		if r.Outcome == failed {
			return false
		}
	}
	return b.all[name][whole].Outcome == passed
}

// well says whether a test and its subtests have ended, and none has failed.
func (b *book) well(name, test string) bool {
	found := false
	for _, r := range b.all[name] {
		if top(r.Test) == test {
			if r.Outcome == failed {
				return false
			}
			found = true
		}
	}
	return found
}
