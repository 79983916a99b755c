// SPDX-License-Identifier: Apache-2.0

package diskimage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
)

// TestWithoutThePrograms: the error names what is to be installed, and nothing is made.
func TestWithoutThePrograms(t *testing.T) {
	before := lookPath
	lookPath = func(string) string { return "" }
	t.Cleanup(func() { lookPath = before })
	file := filepath.Join(t.TempDir(), "data")
	err := Format(t.Context(), file, Smallest)
	if !errors.Is(err, ErrNoPrograms) || !strings.Contains(err.Error(), "install the package e2fsprogs") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
}

// image is a formatted file and where it is mounted, until the test ends.
func image(t *testing.T) (file, at string) {
	t.Helper()
	dir := t.TempDir()
	file, at = filepath.Join(dir, "data"), filepath.Join(dir, "mount")
	if err := Format(t.Context(), file, Smallest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(thawed(at), Unmount(at)); err != nil {
			t.Error(err)
		}
	})
	if err := Mount(t.Context(), file, at); err != nil {
		t.Fatal(err)
	}
	return file, at
}

// thawed is Thaw where something may not be mounted.
func thawed(at string) error {
	if there, err := Mounted(at); err != nil || !there {
		return err
	}
	return Thaw(at)
}

// TestOneDeviceForAFile: a second mount of it is of the same device, and the device goes with the last.
func TestOneDeviceForAFile(t *testing.T) {
	file, at := image(t)
	second := filepath.Join(filepath.Dir(at), "second")
	if err := Mount(t.Context(), file, second); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unmount(second); err != nil {
			t.Error(err)
		}
	})
	count := func() int {
		t.Helper()
		all, err := Devices(file)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := count(); n != 1 {
		t.Errorf("%d devices", n)
	}
	if err := os.WriteFile(filepath.Join(at, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(second, "file")); err != nil || string(got) != "x" {
		t.Errorf("the second mount has %q (%v)", got, err)
	}
	if err := Unmount(at); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("with one mount, %d devices", n)
	}
	if err := Unmount(second); err != nil {
		t.Fatal(err)
	}
	if unused, err := Unused(t.Context(), file); err != nil || !unused {
		t.Errorf("without a mount: %t, %v", unused, err)
	}
}

// TestSomebodyElseLooks: a device that another has open stays after its last mount, and is waited for.
func TestSomebodyElseLooks(t *testing.T) {
	file, at := image(t)
	over, err := Devices(file)
	if err != nil || len(over) != 1 {
		t.Fatalf("%v, %v", over, err)
	}
	other, err := os.Open(over[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := Unmount(at); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if unused, err := Unused(ended, file); err != nil || unused {
		t.Errorf("while it is open: %t, %v", unused, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if unused, err := Unused(t.Context(), file); err != nil || !unused {
		t.Errorf("when it is closed: %t, %v", unused, err)
	}
}

// TestGrowing: to a thousand times its size, in steps, in use and not; done again it has no effect. A process that may not
// while it is in use says so, and does it afterwards.
func TestGrowing(t *testing.T) {
	file, at := image(t)
	may := hostcheck.HasCapability(unix.CAP_SYS_RESOURCE)
	for i, size := range []int64{Smallest, 10 << 20, 4 << 30, 4 << 30, 1 << 20, 5 << 30} {
		err := Grow(t.Context(), file, size)
		if larger := i == 1 || i == 2 || i == 5; larger && !may {
			if !errors.Is(err, ErrWhileMounted) {
				t.Fatalf("to %d, without the right to: %v", size, err)
			}
			if err := errors.Join(Unmount(at), Grow(t.Context(), file, size), Mount(t.Context(), file, at)); err != nil {
				t.Fatalf("to %d: %v", size, err)
			}
		} else if err != nil {
			t.Fatalf("to %d: %v", size, err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(at, &st); err != nil || int64(st.Blocks)*st.Bsize < size/2 {
			t.Errorf("of %d bytes, it has %d (%v)", size, int64(st.Blocks)*st.Bsize, err)
		}
	}
}

// TestErrorsAreMendedOrSaid: a file system that was not unmounted is mounted again; one that is no file system is not.
func TestErrorsAreMendedOrSaid(t *testing.T) {
	file, at := image(t)
	if err := os.WriteFile(filepath.Join(at, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Freeze(at); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err := errors.Join(err, Thaw(at), Thaw(at)); err != nil {
		t.Fatal(err)
	}
	// The file as a crash would leave it: with a superblock that says that it is not clean.
	const state, errorsFound = 1024 + 0x3a, 2
	text[state] |= errorsFound
	crashed := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(crashed, text, 0o600); err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(filepath.Dir(crashed), "mount")
	t.Cleanup(func() {
		if err := Unmount(again); err != nil {
			t.Error(err)
		}
	})
	// The changed byte makes the superblock's checksum wrong, which is not mended unasked.
	if err := Mount(t.Context(), crashed, again); err == nil || !strings.Contains(err.Error(), "e2fsck "+crashed) {
		t.Errorf("with a damaged superblock: %v", err)
	}
	text[state] &^= errorsFound
	if err := os.WriteFile(crashed, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Mount(t.Context(), crashed, again); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(again, "file")); err != nil || string(got) != "kept" {
		t.Errorf("a file says %q (%v)", got, err)
	}
	if all, err := Devices(crashed); err != nil || len(all) != 1 {
		t.Errorf("devices %v (%v)", all, err)
	}
}

// TestWhoGivesUp: no program goes on for a caller that has gone.
func TestWhoGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Format(ctx, filepath.Join(t.TempDir(), "data"), Smallest); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
