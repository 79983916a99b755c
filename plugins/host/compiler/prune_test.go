// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTheOldestCompiledCodeGoes(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"old", "middle", "new"} {
		path := filepath.Join(dir, name)
		when := time.Unix(int64(1_000_000*(i+1)), 0)
		if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			names = append(names, e.Name())
		}
		return names
	}
	if err := prune(dir, 3000, 2000); err != nil || len(left()) != 3 {
		t.Errorf("left %v, %v", left(), err)
	}
	if err := prune(dir, 2999, 1500); err != nil || len(left()) != 1 || left()[0] != "new" {
		t.Errorf("left %v, %v", left(), err)
	}
}
