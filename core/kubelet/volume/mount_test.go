// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What the kernel says of a path is what the table of mounts says.
func TestALocalMountIsSeen(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	dir := t.TempDir()
	check := func(want bool) {
		t.Helper()
		quick, err := isLocalMount(dir)
		if err != nil || quick != want {
			t.Errorf("%v (%v), want %v", quick, err, want)
		}
		if table, err := isMount(dir); err != nil || table != want {
			t.Errorf("in the table: %v (%v), want %v", table, err, want)
		}
	}
	check(false)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	check(true)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	check(false)
	dir += "/none"
	check(false)
}
