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
	dir := t.TempDir()
	if err := overlay(dir); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "program")
	if out, err := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for days, ahead := range map[string]int{"": 0, "1": 1, "366": 366} {
		cmd := exec.Command(binary)
		cmd.Env = append(os.Environ(), "CLOCK_AHEAD_DAYS="+days)
		began := time.Now().UTC()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		// Midnight may pass meanwhile.
		first, last := began.AddDate(0, 0, ahead).Format(time.DateOnly), time.Now().UTC().AddDate(0, 0, ahead).Format(time.DateOnly)
		if got := string(out); got != first && got != last {
			t.Errorf("with CLOCK_AHEAD_DAYS=%q the program's day is %s, expected %s", days, got, first)
		}
	}
}

func TestAnotherRuntimeIsRefused(t *testing.T) {
	if _, err := advance([]byte("package runtime\n")); err == nil || !strings.Contains(err.Error(), "change test/clock") {
		t.Errorf("a runtime without the line: %v", err)
	}
}
