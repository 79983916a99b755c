// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What is made for a subPath has its volume's mode whole: with the bit that gives its group on, and the one by which a
// volume in memory keeps users from removing each other's files.
func TestMissingFoldersHaveTheVolumesMode(t *testing.T) {
	for _, want := range []fs.FileMode{0o750, 0o777 | fs.ModeSticky, 0o770 | fs.ModeSetgid, 0o777 | fs.ModeSetgid | fs.ModeSticky} {
		dir := t.TempDir()
		if err := os.Chmod(dir, want); err != nil {
			t.Fatal(err)
		}
		volume, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		made, err := openInside(volume, "a/b", true)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "a/b"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode() &^ fs.ModeDir; got != want {
				t.Errorf("%s in a volume of %v has %v", name, want, got)
			}
		}
		unix.Close(made)
		unix.Close(volume)
	}
}
