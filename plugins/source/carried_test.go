// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/source"
)

func TestOnlyFilesOfACacheAreCarried(t *testing.T) {
	dir, hex := filepath.Join(t.TempDir(), "cache"), strings.Repeat("0", 64)
	for _, name := range []string{
		"", "x", "../x", "blobs/../../x", "blobs/sha256-0", "sources/" + hex, "/blobs/sha256-" + hex, "blobs/sha256-" + hex + "/x",
	} {
		if err := source.Carry(dir, name, strings.NewReader("x"), true); err == nil {
			t.Errorf("%q was carried", name)
		}
	}
	name := "sources/" + hex + ".json"
	for _, c := range []struct {
		again         bool
		content, want string
	}{{false, "one", "one"}, {false, "two", "one"}, {true, "three", "three"}} {
		if err := source.Carry(dir, name, strings.NewReader(c.content), c.again); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != c.want {
			t.Errorf("%q, %v; want %q", got, err, c.want)
		}
	}
	names, err := source.CacheFiles(dir)
	if err != nil || len(names) != 1 || names[0] != name {
		t.Errorf("%v, %v", names, err)
	}
}
