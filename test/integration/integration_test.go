// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lines are what test2json prints.
func lines(events ...event) string {
	var b strings.Builder
	for _, e := range events {
		line, err := json.Marshal(e)
		if err != nil {
			panic(err)
		}
		b.Write(append(line, '\n'))
	}
	return b.String()
}

func TestResultsAreThoseOfLeaves(t *testing.T) {
	said := lines(
		event{Action: "run", Test: "TestGood"}, event{Action: "run", Test: "TestGood/a"}, event{Action: "run", Test: "TestGood/b"},
		event{Action: "output", Test: "TestGood/b", Output: "    x_test.go:9: needs the server's inside: no equivalent of --foo\n    gate.go:1: put back\n"},
		event{Action: "skip", Test: "TestGood/b"}, event{Action: "pass", Test: "TestGood/a"}, event{Action: "pass", Test: "TestGood"},
		event{Action: "run", Test: "TestBad"}, event{Action: "run", Test: "TestBad/a"},
		event{Action: "output", Test: "TestBad/a", Output: "=== RUN   TestBad/a\n    x_test.go:12: wanted 1\n"},
		event{Action: "fail", Test: "TestBad/a", Elapsed: 2}, event{Action: "fail", Test: "TestBad"},
		event{Action: "run", Test: "TestAfter"}, event{Action: "run", Test: "TestAfter/a"}, event{Action: "pass", Test: "TestAfter/a"},
		event{Action: "output", Test: "TestAfter", Output: "    x_test.go:30: left something behind\n"}, event{Action: "fail", Test: "TestAfter"},
		event{Action: "run", Test: "TestUpstream"}, event{Action: "skip", Test: "TestUpstream"},
		event{Action: "run", Test: "TestCut"}, event{Action: "output", Test: "TestCut", Output: "panic: test timed out\n"},
	) + "not JSON\n" + `{"Action":"outp`
	results, err := read(strings.NewReader(said), "p")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range results {
		got = append(got, fmt.Sprintf("%s %s %s", r.Outcome, r.Test, r.Reason))
	}
	slices.Sort(got)
	want := []string{
		"FAILED TestAfter x_test.go:30: left something behind",
		"FAILED TestBad/a x_test.go:12: wanted 1",
		"FAILED TestCut the process ended while it ran: panic: test timed out",
		"inside TestGood/b no equivalent of --foo",
		"passed TestAfter/a ",
		"passed TestGood/a ",
		"skipped TestUpstream ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("results are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestBookResumes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.jsonl")
	b, err := openBook(file, "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []result{
		{Package: "p", Test: "TestA/x", Outcome: passed},
		{Package: "p", Test: "TestA/y", Outcome: inside, Reason: "no equivalent of --foo"},
		{Package: "p", Test: "TestB/x", Outcome: failed, Reason: "wanted 1"},
		{Package: "p", Test: whole, Outcome: passed},
	} {
		if err := b.add(r); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"package":"p","te`); err != nil { // a crash
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err = openBook(file, "one"); err != nil {
		t.Fatal(err)
	}
	if !b.well("p", "TestA") || b.well("p", "TestB") || b.well("p", "TestC") {
		t.Error("TestA alone has ended well")
	}
	if b.complete("p") {
		t.Error("a package with a failure is not complete")
	}
	page, sum := render(b, []string{"p", "q"})
	for _, want := range []string{"| p | 1 | 1 | 0 | 1 |", "| q | not run |", "- `p` `TestB/x`: wanted 1", "- 1: no equivalent of --foo"} {
		if !strings.Contains(page, want) {
			t.Errorf("the report lacks %q:\n%s", want, page)
		}
	}
	if sum[failed] != 1 {
		t.Errorf("the sums are %v", sum)
	}
	other, err := openBook(file, "two")
	if err != nil {
		t.Fatal(err)
	}
	if other.well("p", "TestA") {
		t.Error("another build has passed nothing yet")
	}
}

func TestOverlayNamesFilesOfTheTree(t *testing.T) {
	tr := &tree{cache: t.TempDir(), dir: filepath.Join(t.TempDir(), "kubernetes")}
	tr.overlay = filepath.Join(tr.cache, "overlay.json")
	if err := tr.writeOverlay(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(tr.overlay)
	if err != nil {
		t.Fatal(err)
	}
	var o struct{ Replace map[string]string }
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{
		"cmd/kube-apiserver/app/testing/testserver.go", "test/integration/framework/test_server.go",
		"test/integration/wasmplane/server.go", "test/integration/wasmplane/translate.go",
	} {
		file := o.Replace[filepath.Join(tr.dir, place)]
		text, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%s: %v", place, err)
		}
		if !strings.HasPrefix(string(text), "// SPDX-License-Identifier: Apache-2.0") {
			t.Errorf("%s is replaced by something else than a file of ours", place)
		}
		formatted, err := format.Source(text)
		if err != nil || !bytes.Equal(formatted, text) {
			t.Errorf("%s is not as gofmt writes it (%v)", place, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, args := range [][]string{{"--packages", "("}, {"--focus", "("}, {"--patience", "0s"}, {"quota"}} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
