// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type outcome struct {
	Test   string `json:"test"`
	Passed bool   `json:"passed"`
}

func results(t *testing.T, file string) []outcome {
	t.Helper()
	var all []outcome
	if err := Read(file, func(o outcome) { all = append(all, o) }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestHalfALineCostsNoOtherResult(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "results.jsonl")
	if got := results(t, file); got != nil {
		t.Errorf("a file that is missing has %v", got)
	}
	want := []outcome{{"a", false}, {"a", true}, {"c", true}}
	for _, o := range want[:2] {
		if err := Append(file, o); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(data, `{"test":"b","pas`...), 0o600); err != nil { // a crash
		t.Fatal(err)
	}
	if got := results(t, file); !slices.Equal(got, want[:2]) {
		t.Errorf("got %v, want %v", got, want[:2])
	}
	if err := Append(file, want[2]); err != nil {
		t.Fatal(err)
	}
	if got := results(t, file); !slices.Equal(got, want) {
		t.Errorf("after the crash: got %v, want %v", got, want)
	}
}

func TestAnUnreadableFileIsAnError(t *testing.T) {
	if err := Read(t.TempDir(), func(outcome) {}); err == nil {
		t.Error("a folder was read")
	}
}

func TestABuildIsKnownByWhatItIs(t *testing.T) {
	dir := t.TempDir()
	build := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		id, err := Build(file)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if a, b, c := build("a", "one"), build("b", "one"), build("c", "two"); a != b || a == c || len(a) != 16 {
		t.Errorf("builds are %s, %s and %s", a, b, c)
	}
	if _, err := Build(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("a program that is missing: %v", err)
	}
}

func TestTextsBecomeOneLine(t *testing.T) {
	for _, c := range []struct {
		text  string
		lines int
		want  string
	}{
		{"", 3, ""},
		{"\n a\n\n\tb\nc\n", 2, "a | b"},
		{"a", 5, "a"},
		{strings.Repeat("ä", MaxText), 1, strings.Repeat("ä", MaxText/2) + "..."},
		{"x" + strings.Repeat("ä", MaxText), 1, "x" + strings.Repeat("ä", MaxText/2-1) + "..."},
	} {
		if got := InLine(c.text, c.lines); got != c.want {
			t.Errorf("%.20q in %d lines: got %q, want %q", c.text, c.lines, got, c.want)
		}
	}
}
