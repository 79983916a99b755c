// SPDX-License-Identifier: Apache-2.0

package treecopy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNamesOfLinksAreBounded: a copy remembers where files with several names are, and no more of that than there is room
// for.
func TestNamesOfLinksAreBounded(t *testing.T) {
	from := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		file := filepath.Join(from, name)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Link(file, file+"-again")); err != nil {
			t.Fatal(err)
		}
	}
	copied := func(room int) error {
		in, err := os.OpenRoot(from)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		return (&tree{from: in, to: out, links: map[uint64]string{}, room: room}).dir(t.Context(), ".", 0)
	}
	if err := copied(3 * (linkCost + len("a-again"))); err != nil {
		t.Error(err)
	}
	if err := copied(3 * linkCost); err == nil || !strings.Contains(err.Error(), "files with several names") {
		t.Errorf("beyond the bound: %v", err)
	}
}
