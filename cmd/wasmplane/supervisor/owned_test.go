// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAServiceUsesNothingThatOthersCanChange: neither the file, nor a folder on the way to it or to where a link
// leads.
func TestAServiceUsesNothingThatOthersCanChange(t *testing.T) {
	top := t.TempDir()
	folder := func(name string, mode os.FileMode) string {
		dir := filepath.Join(top, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	file := func(dir string, mode os.FileMode) string {
		name := filepath.Join(dir, "wasmplane")
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Chmod(name, mode)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	link := func(to string) string {
		name := filepath.Join(folder(filepath.Base(filepath.Dir(to))+"-links", 0o755), "link")
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good, anybodys := file(folder("good", 0o755), 0o755), file(folder("anybodys", 0o777), 0o755)
	for path, want := range map[string]string{
		good:       "",
		link(good): "",
		file(folder("sticky", 0o1777|os.ModeSticky), 0o755): "",
		filepath.Join(filepath.Dir(good), "not", "yet"):     "",
		file(folder("file", 0o755), 0o757):                  "wasmplane can be written by others",
		anybodys:                                            "anybodys can be written by others",
		link(anybodys):                                      "anybodys can be written by others",
		filepath.Join(filepath.Dir(anybodys), "not", "yet"): "anybodys can be written by others",
	} {
		err := CheckOwned(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
