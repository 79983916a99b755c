// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// module is one whose packages fail in each way in which packages fail.
var module = map[string]string{
	"go.mod": "module example.com/m\n\ngo 1.26\n",
	"assertion/a_test.go": `package a
import "testing"
func TestA(t *testing.T) { t.Error("two is not three") }`,
	"build/b_test.go": `package b
import "testing"
func TestB(t *testing.T) { undefined() }`,
	"exit/e_test.go": `package e
import ("fmt"; "os"; "testing")
func TestMain(m *testing.M) { m.Run(); fmt.Println("a goroutine is left over"); os.Exit(3) }
func TestE(t *testing.T) {}`,
	"goroutine/g_test.go": `package g
import ("testing"; "time")
func TestG1(t *testing.T) { go func() {
	time.Sleep(50 * time.Millisecond); for range 200 { go func() { select {} }() }; panic("the goroutine of a test that passed")
}() }
func TestG2(t *testing.T) { t.Parallel(); time.Sleep(time.Minute) }`,
	"fine/f_test.go": `package f
import "testing"
func TestF(t *testing.T) {}`,
}

func TestEveryFailureHasItsReason(t *testing.T) {
	dir := t.TempDir()
	for name, source := range module {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-json", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTRACEBACK=all", "GOFLAGS=", "GOWORK=off")
	log, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("go test did not fail")
	}
	out := summarise(t, string(log))
	for _, want := range []string{
		"two is not three",
		"undefined: undefined", "it does not build: see example.com/m/build",
		"a goroutine is left over",
		"panic: the goroutine of a test that passed",
		"\n3 passed, 6 failed, 0 skipped\n", // four packages, one of their tests, one build
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report has not %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

func TestAReasonStandsBeforeThousandsOfGoroutines(t *testing.T) {
	var log strings.Builder
	line := func(test, text string) {
		b, err := json.Marshal(event{Action: "output", Package: "p", Test: test, Output: text + "\n"})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&log, "%s\n", b)
	}
	for i := range 1000 {
		line("TestP", fmt.Sprint("before ", i))
	}
	line("TestP", "fatal error: all goroutines are asleep")
	for i := range 5000 {
		line("TestP", fmt.Sprint("goroutine ", i))
	}
	line("", "FAIL p 1s")
	log.WriteString(`{"Action":"fail","Package":"p"}` + "\n")
	out := summarise(t, log.String())
	for _, want := range []string{
		"before 999\n", "fatal error: all goroutines are asleep\n", "goroutine 4999\nFAIL p 1s\n",
		"\n0 passed, 1 failed, 0 skipped\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report has not %q:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "\n"); n > mostLines+10 {
		t.Errorf("one failure printed %d lines", n)
	}
}

func TestAFailureBeforeIsCounted(t *testing.T) {
	var out strings.Builder
	s := newSummary(&out)
	s.failedBefore("")
	s.failedBefore("make fresh: no root")
	s.print()
	if want := "\n--- FAIL: make fresh: no root\n\n0 passed, 1 failed, 0 skipped\n"; out.String() != want {
		t.Errorf("got %q, expected %q", out.String(), want)
	}
}

func summarise(t *testing.T, log string) string {
	t.Helper()
	var out strings.Builder
	s := newSummary(&out)
	if err := s.read(strings.NewReader(log)); err != nil {
		t.Fatal(err)
	}
	s.print()
	return out.String()
}

func TestTheSecondTry(t *testing.T) {
	fails := []event{
		{Action: "output", Package: "p", Test: "TestA/b", Output: "the disk was slow\n"},
		{Action: "pass", Package: "p", Test: "TestA/a"},
		{Action: "fail", Package: "p", Test: "TestA/b/c"},
		{Action: "fail", Package: "p", Test: "TestA/b"},
		{Action: "fail", Package: "p", Test: "TestA"},
		{Action: "fail", Package: "p"},
	}
	crashed := []event{
		{Action: "output", Package: "p", Test: "TestA", Output: "panic: no\n"},
		{Action: "fail", Package: "p", Test: "TestA"},
		{Action: "fail", Package: "p"},
	}
	many := []event{{Action: "fail", Package: "p"}}
	for i := range mostAgain + 1 {
		many = append([]event{{Action: "fail", Package: "p", Test: fmt.Sprint("Test", i)}}, many...)
	}
	passes := []event{{Action: "pass", Package: "p", Test: "TestA"}, {Action: "pass", Package: "p"}}
	skips := []event{{Action: "skip", Package: "p", Test: "TestA"}, {Action: "pass", Package: "p"}}
	for _, c := range []struct {
		name          string
		first, second []event
		runs, want    string
	}{
		{"passes", fails, passes, "p ^TestA$/^(b)$", "\n4 passed, 0 failed, 0 skipped\n"},
		{"fails again", fails, fails, "p ^TestA$/^(b)$", "\n1 passed, 4 failed, 0 skipped\n"},
		{"runs nothing", fails, nil, "p ^TestA$/^(b)$", "\n1 passed, 4 failed, 0 skipped\n"},
		{"is skipped", fails, skips, "p ^TestA$/^(b)$", "\n1 passed, 4 failed, 0 skipped\n"},
		{"ended in the middle", crashed, passes, "", "\n0 passed, 2 failed, 0 skipped\n"},
		{"go test was ended", fails[:len(fails)-1], passes, "", "\n1 passed, 3 failed, 0 skipped\n"},
		{"too many", many, passes, "", "\n0 passed, 5 failed, 0 skipped\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			s := newSummary(&out)
			if err := s.read(strings.NewReader(log(t, c.first))); err != nil {
				t.Fatal(err)
			}
			var runs []string
			s.again(func(pkg, pattern string) []byte {
				runs = append(runs, pkg+" "+pattern)
				return []byte(log(t, c.second))
			})
			s.print()
			if got := strings.Join(runs, ", "); got != c.runs {
				t.Errorf("ran %q, expected %q", got, c.runs)
			}
			if !strings.HasSuffix(out.String(), c.want) {
				t.Errorf("the report does not end with %q:\n%s", c.want, out.String())
			}
			if first := "the disk was slow"; c.runs != "" && !strings.Contains(out.String(), first) {
				t.Errorf("the report has not %q", first)
			}
		})
	}
}

// log is what `go test -json` prints.
func log(t *testing.T, events []event) string {
	t.Helper()
	var lines strings.Builder
	for _, e := range events {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%s\n", b)
	}
	return lines.String()
}
