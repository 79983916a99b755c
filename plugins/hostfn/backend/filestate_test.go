// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestANodeKeepsWhatItsPluginsKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugin-state")
	first := &FileState{Dir: dir}
	if kept, err := first.Sync(t.Context(), "p", nil); err != nil || len(kept) != 0 {
		t.Errorf("%v %v", kept, err)
	}
	if _, err := first.Sync(t.Context(), "p", map[string][]byte{"a": []byte("1"), "b": {0xff, 0}}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Sync(t.Context(), "another", map[string][]byte{"a": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	// The node starts again.
	again := &FileState{Dir: dir}
	kept, err := again.Sync(t.Context(), "p", map[string][]byte{"a": nil, "c": []byte("3")})
	if err != nil || len(kept) != 2 || string(kept["b"]) != "\xff\x00" || string(kept["c"]) != "3" {
		t.Errorf("%v %v", kept, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%v %v", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s %v %v", f.Name(), info.Mode(), err)
		}
		// What somebody else wrote there is not taken for nothing.
		path := filepath.Join(dir, f.Name())
		if err := os.WriteFile(path, []byte(`{"a":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := again.Sync(t.Context(), "p", nil); err == nil || !strings.Contains(err.Error(), "remove it and the plugin begins anew") {
		t.Errorf("%v", err)
	}
}
