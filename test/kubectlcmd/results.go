// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
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
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r result
		// The last line may be half of one, after a crash: the group runs again.
		if json.Unmarshal(lines.Bytes(), &r) == nil && r.Build == build {
			b.all[r.Group] = r
		}
	}
	return b, lines.Err()
}

func (b *book) of(group string) (result, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.all[group]
	return r, ok
}

// add remembers a result.
func (b *book) add(r result) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[r.Group] = r
	if err := os.MkdirAll(filepath.Dir(b.file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(b.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// digest identifies the program that is tested.
func digest(program string) (string, error) {
	f, err := os.Open(program)
	if err != nil {
		return "", fmt.Errorf("the program to test is missing, `make build` makes it: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// maxMessage bounds what a table says of a failure, in bytes.
const maxMessage = 600

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
		return inLine(log[begin:], 12)
	}
	if at == nil {
		return ""
	}
	where := ""
	if c := callers.FindStringSubmatch(log[at[1]:]); c != nil {
		where = c[1]
	}
	before := strings.Split(strings.TrimSpace(log[:at[0]]), "\n")
	return inLine(where+" failed after: "+strings.Join(before[max(0, len(before)-2):], "\n"), 3)
}

// inLine joins the first lines of a text that have something to say.
func inLine(text string, lines int) string {
	var said []string
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l != "" {
			said = append(said, l)
		}
		if len(said) == lines {
			break
		}
	}
	line := strings.Join(said, " | ")
	if len(line) > maxMessage {
		line = strings.ToValidUTF8(line[:maxMessage], "") + "..."
	}
	return line
}
