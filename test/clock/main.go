// SPDX-License-Identifier: Apache-2.0

// Command clock makes an overlay for `go build` and `go test` with which a program's
// wall clock is some days ahead; everything else, timers too, runs as usual. It shows
// tests that know the day they were written on.
// Usage: clock DIR DAYS; DIR gets overlay.json. `make test-clock` calls it.
//
// DAYS may be 0: such a program's clock is right until somebody steps it while it runs, by
// a variable of the runtime that has no other use (test/internal/stepping), as make faults does.
//
// The overlay replaces one line of the Go runtime. No other line moves and no symbol is new, so only the
// packages that import the runtime itself are compiled again. Programs of others and
// the kernel (the times of files) keep the true time.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// before is what time.Now calls in the runtime, outside of synctest's bubbles.
	before = "\n\treturn time_now()\n"
	// starttime is in use for GODEBUG=schedtrace alone, and 0 otherwise.
	after = "\n\tsec, nsec, mono = time_now(); return sec + %d*86400 + starttime, nsec, mono\n"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: clock DIR DAYS")
		os.Exit(2)
	}
	days, err := strconv.ParseUint(os.Args[2], 10, 16)
	if err != nil {
		fmt.Fprintf(os.Stderr, "clock: the days are %q, expected a number such as 31\n", os.Args[2])
		os.Exit(2)
	}
	if err := overlay(context.Background(), os.Args[1], days); err != nil {
		fmt.Fprintln(os.Stderr, "clock:", err)
		os.Exit(1)
	}
}

// overlay writes the changed file of the runtime and overlay.json into dir.
func overlay(ctx context.Context, dir string, days uint64) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "runtime", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return err
	}
	changed, err := advance(source, days)
	if err != nil {
		return fmt.Errorf("%s: %w", original, err)
	}
	replacement := filepath.Join(dir, "time.go.overlay")
	document, err := json.Marshal(map[string]any{"Replace": map[string]string{original: replacement}})
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(replacement, changed, 0o600),
		os.WriteFile(filepath.Join(dir, "overlay.json"), document, 0o600))
}

// advance puts the days into the runtime's clock.
func advance(source []byte, days uint64) ([]byte, error) {
	if n := bytes.Count(source, []byte(before)); n != 1 {
		return nil, fmt.Errorf("expected the line %q once, found it %d times: look in this Go release for what time.Now calls, and change test/clock accordingly", bytes.TrimSpace([]byte(before)), n)
	}
	return bytes.Replace(source, []byte(before), fmt.Appendf(nil, after, days), 1), nil
}
