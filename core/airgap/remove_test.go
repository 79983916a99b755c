// SPDX-License-Identifier: Apache-2.0

package airgap

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func name(i int) string { return fmt.Sprintf("%064x.tar", i) }

// Machines hear of removals and of loads in any order, and come to agree.
func TestTheLaterTurnCounts(t *testing.T) {
	dir := t.TempDir()
	turn := func(want int) {
		t.Helper()
		if is, err := Turn(dir, name(1)); err != nil || is != want {
			t.Errorf("turn %d, %v, want %d", is, err, want)
		}
	}
	turn(0)
	check(t, Want(dir, name(1)))
	turn(0)
	check(t, Remove(dir, name(1), 0))
	turn(1)
	check(t, Remove(dir, name(1), 5))
	turn(5)
	check(t, SetTurn(dir, name(1), 2))
	turn(5)
	check(t, Want(dir, name(1)))
	turn(6)
	check(t, Remove(dir, name(1), 0))
	turn(7)
	if err := Remove(dir, "../../etc/passwd", 0); err == nil || !strings.Contains(err.Error(), "is no name of an archive") {
		t.Errorf("error %v", err)
	}
	check(t, os.WriteFile(turnFile(dir, name(2)), []byte("many"), 0o600))
	if _, err := Turn(dir, name(2)); err == nil || !strings.Contains(err.Error(), "expected a number; remove it") {
		t.Errorf("error %v", err)
	}
}

func TestRemovalsAreNotRememberedWithoutEnd(t *testing.T) {
	dir := t.TempDir()
	for i := range mostRemoved + 10 {
		check(t, Remove(dir, name(i), 0))
	}
	removed, err := Removed(dir)
	check(t, err)
	files, err := filepath.Glob(filepath.Join(dir, ".*"))
	check(t, err)
	if len(removed) != mostRemoved || len(files) != mostRemoved {
		t.Errorf("%d removals in %d files", len(removed), len(files))
	}
}
