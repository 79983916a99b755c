// SPDX-License-Identifier: Apache-2.0

package result

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestARunIsCarriedOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "results.jsonl")
	b, err := Open(file, "new")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Result{
		{Test: "a", SIG: "sig-x", State: "failed", Message: "first", Build: "new"},
		{Test: "a", SIG: "sig-x", Passed: true, State: "passed", Took: time.Second, Build: "new"},
		{Test: "b [Conformance]", SIG: "sig-x", State: "skipped", Message: "needs two nodes", Build: "new"},
		{Test: "e", SIG: "sig-x", State: "skipped", Message: "only for a|b", Build: "new"},
		{Test: "c", SIG: "sig-y", Passed: true, State: "passed", Build: "old"},
	} {
		if err := b.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	// A crash in the middle of a line.
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"test":"d","pas`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	if b, err = Open(file, "new"); err != nil {
		t.Fatal(err)
	}
	if r, ok := b.Of("a"); !ok || !r.Passed {
		t.Errorf("a: the last result counts, found %+v", r)
	}
	if _, ok := b.Of("c"); ok {
		t.Error("c passed with another build, which does not count")
	}
	sigs := map[string]string{"a": "sig-x", "b [Conformance]": "sig-x", "c": "sig-y", "e": "sig-x"}
	if again := b.Again(sigs); len(again) != 1 || again[0] != "a" {
		t.Errorf("passed after a failure: %v, expected a", again)
	}
	lines := b.Summary(sigs)
	if len(lines) != 2 || lines[0].Passed != 1 || lines[0].Failed != 1 || lines[0].Skipped != 1 || lines[1].NotRun != 1 {
		t.Errorf("summary: %+v", lines)
	}
	for _, report := range []string{Text(lines), Markdown(lines)} {
		if !strings.Contains(report, "needs two nodes") || !strings.Contains(report, "sig-y") {
			t.Errorf("report:\n%s", report)
		}
	}
	if md := Markdown(lines); !strings.Contains(md, `| 1 | only for a\|b |`) || strings.Contains(Text(lines), "FAILED e") {
		t.Errorf("what is skipped is to be listed with its reason, and has not failed:\n%s", md)
	}
	if b, err = Open(file, ""); err != nil {
		t.Fatal(err)
	}
	if _, ok := b.Of("c"); !ok {
		t.Error("c is not there although every build counts")
	}
}

func TestWhy(t *testing.T) {
	message := "\n<*errors.StatusError | 0xc000>: \n  pods \"x\" not found\n{\n  code\n}\n" + strings.Repeat("x", 400)
	got := strings.Split(Why(message, 3), "\n")
	if len(got) != 3 || got[0] != `pods "x" not found` || len(got[2]) > 310 {
		t.Errorf("why: %q", got)
	}
	if Why("", 3) == "" {
		t.Error("an empty message has to be said to be empty")
	}
}
