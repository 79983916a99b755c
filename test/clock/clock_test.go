// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/stepping"
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

const waiting = `package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

func main() {
	began := time.Now()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(time.Now().Unix(), int(time.Since(began).Seconds()))
	}
}
`

// A program that runs has its wall clock stepped, ahead and back; what it measures is not.
func TestAClockIsSteppedWhileItRuns(t *testing.T) {
	dir := t.TempDir()
	if err := overlay(t.Context(), dir, 0); err != nil {
		t.Fatal(err)
	}
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "waiting")
	if err := os.WriteFile(source, []byte(waiting), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, source)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program := exec.CommandContext(t.Context(), binary)
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = program.Wait() }()
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		if err := stepping.Set(program.Process.Pid, binary, ahead); err != nil {
			t.Fatal(err)
		}
		before := time.Now().Add(ahead).Unix()
		if _, err := fmt.Fprintln(in); err != nil {
			t.Fatal(err)
		}
		var at int64
		var since int
		if _, err := fmt.Fscanln(out, &at, &since); err != nil {
			t.Fatal(err)
		}
		if last := time.Now().Add(ahead).Unix(); at < before || at > last || since < 0 || since > 600 {
			t.Errorf("stepped by %s it is %d for the program, %d s after its start, expected %d to %d", ahead, at, since, before, last)
		}
	}
	if err := stepping.Set(program.Process.Pid, "/bin/sh", time.Hour); err == nil {
		t.Error("a program without the overlay was stepped")
	}
}

func TestAnotherRuntimeIsRefused(t *testing.T) {
	if _, err := advance([]byte("package runtime\n"), 1); err == nil || !strings.Contains(err.Error(), "change test/clock") {
		t.Errorf("a runtime without the line: %v", err)
	}
}
