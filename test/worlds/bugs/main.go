// SPDX-License-Identifier: Apache-2.0

// Command bugs puts known bugs back, one at a time and in the compiler's view alone, and
// looks whether the worlds of test/worlds find them. `make world-bugs` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/wasmplane/wasmplane/test/worlds/bugs/known"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := find(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

// find prints a line for each bug.
func find(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "world-bugs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, err := known.Read("test/worlds/testdata/bugs")
	if err != nil {
		return err
	}
	missed := 0
	for _, bug := range all {
		found, err := try(ctx, dir, bug)
		if err != nil {
			return err
		}
		if found == "" {
			missed++
			found = "NOT FOUND"
		}
		fmt.Printf("%-20s %s\n%20s %s\n", bug.Name, bug.Text, "", found)
	}
	fmt.Printf("%d of %d known bugs were found\n", len(all)-missed, len(all))
	return nil
}

var wrong = regexp.MustCompile(`(?m)--- FAIL: Test\w+/\S+|wrong, after (.*)$`)

// try builds the worlds with the bug, runs them and answers what the first that failed found.
func try(ctx context.Context, dir string, bug known.Bug) (string, error) {
	file, err := filepath.Abs(bug.File)
	if err != nil {
		return "", err
	}
	text, err := bug.Applied(".")
	if err != nil {
		return "", err
	}
	changed, overlay, binary := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "world.test")
	if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", overlay, "-o", binary, "./test/worlds") //nolint:gosec // made above
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build with the bug %s: %w\n%s", bug.Name, err, out)
	}
	run := exec.CommandContext(ctx, binary, "-test.v", "-test.failfast") //nolint:gosec // made above
	run.Dir, run.Env = "test/worlds", append(os.Environ(), "WORLD_SHRINK=0")
	out, err := run.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return "", err
	}
	found := wrong.FindAllString(string(out), 2)
	if failed != nil && found == nil {
		return "", fmt.Errorf("the worlds with the bug %s ended otherwise: %w\n%s", bug.Name, err, out[max(0, len(out)-2000):])
	}
	return strings.Join(found, "; "), ctx.Err()
}
