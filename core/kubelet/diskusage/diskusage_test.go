// SPDX-License-Identifier: Apache-2.0

package diskusage_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
)

func write(t *testing.T, file string, size int) {
	t.Helper()
	if err := os.WriteFile(file, []byte(strings.Repeat("x", size)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// blocks that a file takes, in bytes.
func blocks(t *testing.T, file string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(file, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestFilesLinksAndDirectories(t *testing.T) {
	dir := t.TempDir()
	if got := diskusage.Of(t.Context(), filepath.Join(dir, "nothing")); got != (diskusage.Usage{}) {
		t.Errorf("what is not there takes %+v", got)
	}
	sub := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(sub, "file")
	write(t, file, 1<<20)
	for i := range 7 { // seven more names of the same
		if err := os.Link(file, filepath.Join(dir, fmt.Sprintf("link%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, 4<<20)
	for i, to := range []string{outside, filepath.Dir(outside), "/", dir} { // not followed
		if err := os.Symlink(to, filepath.Join(dir, fmt.Sprintf("symbolic%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	want := diskusage.Usage{Inodes: 3 + 1 + 4} // directories, the file, symbolic links
	for _, p := range []string{dir, filepath.Join(dir, "a"), sub, file} {
		want.Bytes += blocks(t, p)
	}
	for i := range 4 {
		want.Bytes += blocks(t, filepath.Join(dir, fmt.Sprintf("symbolic%d", i)))
	}
	if got := diskusage.Of(t.Context(), dir); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := diskusage.Of(t.Context(), file); got != (diskusage.Usage{}) {
		t.Errorf("a file is no directory, and takes %+v", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := diskusage.Of(ended, dir); got.Inodes > 1 {
		t.Errorf("%+v was counted though nobody waits", got)
	}
}

// Directories within each other, their path longer than any that the kernel takes.
func TestWhatIsHiddenDeepIsCounted(t *testing.T) {
	for _, c := range []struct {
		depth int
		least int64
	}{{600, 1 << 20}, {diskusage.MaxDepth + 50, diskusage.TooDeep}} {
		dir := t.TempDir()
		nest(t, dir, c.depth, 1<<20)
		if got := diskusage.Of(t.Context(), dir); got.Bytes < c.least || got.Bytes > c.least+1<<30 {
			t.Errorf("%d deep: %d bytes, want at least %d", c.depth, got.Bytes, c.least)
		}
	}
}

// nest makes directories within each other, and a file in the last. It takes them away at the test's end.
func nest(t *testing.T, dir string, depth, size int) {
	t.Helper()
	name := strings.Repeat("d", 60)
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		_ = unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	fd, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "file")
	if _, err := f.WriteString(strings.Repeat("x", size)); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	_ = unix.Close(at)
}

// What one measurement has in memory does not depend on how many files there are.
func TestMemoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	first := filepath.Join(dir, "first")
	write(t, first, 1)
	const links = 20_000
	for i := range links {
		if err := os.Link(first, filepath.Join(dir, fmt.Sprintf("%0200d", i))); err != nil {
			t.Fatal(err)
		}
	}
	most := uint64(0)
	ctx := &watched{Context: t.Context(), every: 1000, look: func() {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		most = max(most, s.HeapAlloc)
	}}
	ctx.look()
	before := most
	got := diskusage.Of(ctx, dir)
	if got.Inodes != 2 {
		t.Errorf("%d inodes, want the directory's and the file's", got.Inodes)
	}
	if ctx.asked < links {
		t.Errorf("%d of %d names were looked at", ctx.asked, links)
	}
	if grown := int64(most) - int64(before); grown > 2<<20 { // 20,000 names of 200 bytes would be 4 MB
		t.Errorf("%d bytes more while it counts", grown)
	}
}

// watched looks at something now and then when it is asked whether it has ended.
type watched struct {
	context.Context
	asked, every int
	look         func()
}

func (w *watched) Err() error {
	if w.asked++; w.asked%w.every == 0 {
		w.look()
	}
	return w.Context.Err()
}
