// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const program = `package main

import "time"

func main() { print(time.Now().UTC().Format(time.DateOnly)) }
`

func TestAProgramRunsDaysAhead(t *testing.T) {
	const days = 366
	dir := t.TempDir()
	if err := overlay(t.Context(), dir, days); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now().UTC()
	out, err := exec.Command("go", "run", "-overlay", filepath.Join(dir, "overlay.json"), source).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// Midnight may pass meanwhile.
	first, last := began.AddDate(0, 0, days).Format(time.DateOnly), time.Now().UTC().AddDate(0, 0, days).Format(time.DateOnly)
	if got := string(out); got != first && got != last {
		t.Errorf("%d days ahead the program's day is %s, expected %s", days, got, first)
	}
}

func TestAnotherRuntimeIsRefused(t *testing.T) {
	if _, err := advance([]byte("package runtime\n"), 1); err == nil || !strings.Contains(err.Error(), "change test/clock") {
		t.Errorf("a runtime without the line: %v", err)
	}
}
