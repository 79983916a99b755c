// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// result is how a group ended with one build.
type result struct {
	Group  string `json:"group"`
	Passed bool   `json:"passed"`
	// Message is the first assertion that failed.
	Message string        `json:"message,omitempty"`
	Took    time.Duration `json:"took"`
	Build   string        `json:"build"`
	At      time.Time     `json:"at"`
}

func (r result) line() string {
	if r.Passed {
		return fmt.Sprintf("ok     %5.0fs %s", r.Took.Seconds(), r.Group)
	}
	return fmt.Sprintf("FAILED %5.0fs %s: %s", r.Took.Seconds(), r.Group, r.Message)
}

// book is a file of results, one a line; the last of a group counts.
type book struct {
	file string

	mu  sync.Mutex
	all map[string]result
}

// openBook reads the results of a build.
func openBook(file, build string) (*book, error) {
	b := &book{file: file, all: map[string]result{}}
	return b, journal.Read(file, func(r result) {
		if r.Build == build {
			b.all[r.Group] = r
		}
	})
}

func (b *book) of(group string) (result, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.all[group]
	return r, ok
}

// add remembers a result.
func (b *book) add(r result) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[r.Group] = r
	return journal.Append(b.file, r)
}

// begun is how the driver begins the line that says which group follows.
const begun = "=== run"

var (
	// colors are what upstream's functions print for terminals.
	colors = regexp.MustCompile(`\x1b(\[[0-9;]*[A-Za-z]|\([A-Z])`)
	// callTree begins what upstream prints where a command failed; callers are its lines.
	callTree = regexp.MustCompile(`(?m)^!!! \[.*\] Call tree:$`)
	callers  = regexp.MustCompile(`(?m)^!!! \[.*\]  \d+: (.*)$`)
)

// firstFailure is the first assertion that failed in what a group printed, in a line:
// upstream's functions print FAIL! and what they compared; a command that fails ends a
// group with a tree of its callers.
func firstFailure(log string) string {
	log = colors.ReplaceAllString(log, "")
	if _, of, ok := strings.Cut(log, begun); ok {
		log = of
	}
	at := callTree.FindStringIndex(log)
	if fail := strings.Index(log, "FAIL"); fail >= 0 && (at == nil || fail < at[0]) {
		begin := strings.LastIndexByte(log[:fail], '\n') + 1
		return journal.InLine(log[begin:], 12)
	}
	if at == nil {
		return ""
	}
	where := ""
	if c := callers.FindStringSubmatch(log[at[1]:]); c != nil {
		where = c[1]
	}
	before := strings.Split(strings.TrimSpace(log[:at[0]]), "\n")
	return journal.InLine(where+" failed after: "+strings.Join(before[max(0, len(before)-2):], "\n"), 3)
}
