// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A recording has its name once it is whole; one that failed leaves nothing, and none replaces a file.
func TestARecordingIsWholeOrNotThere(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "day.yaml")
	names := func() string {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(entries)
	}
	begin := func() *part {
		t.Helper()
		p, err := unfinished(to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.WriteString("pods"); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if err := begin().end(false); err != nil || names() != "[]" {
		t.Errorf("one that failed: %v, left %s", err, names())
	}
	p, late := begin(), begin()
	if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there before its end: %v", to, err)
	}
	if err := p.end(true); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "pods" {
		t.Errorf("it has %q: %v", text, err)
	}
	if err := late.end(true); !errors.Is(err, os.ErrExist) {
		t.Errorf("another one of the same name: %v", err)
	}
	if _, err := unfinished(to); !errors.Is(err, os.ErrExist) {
		t.Errorf("one whose file exists: %v", err)
	}
	if got := names(); got != "[- day.yaml]" {
		t.Errorf("the folder has %s", got)
	}
}
