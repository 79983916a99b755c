// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"

	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tried opens a file and reads it.
func tried(t *testing.T, tr *tree, name string, flag experimentalsys.Oflag) (string, experimentalsys.Errno) {
	t.Helper()
	f, e := tr.OpenFile(name, flag, 0o644)
	if e != 0 {
		return "", e
	}
	defer f.Close()
	b := make([]byte, 100)
	n, e := f.Read(b)
	return string(b[:n]), e
}

// TestNoPathLeadsOut: neither a link, nor dots, nor a device or pipe, nor a file system of the kernel below the root.
func TestNoPathLeadsOut(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	write(t, filepath.Join(dir, "secret"), "secret")
	write(t, filepath.Join(root, "in/file"), "inside")
	for name, target := range map[string]string{
		"absolute": filepath.Join(dir, "secret"), "up": "../secret", "to": "in", "in/back": "file", "proc": "/proc",
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(root, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := open(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	for _, name := range []string{"in/file", "to/file", "to/back", "in/back"} {
		if text, e := tried(t, o.root, name, experimentalsys.O_RDONLY); text != "inside" || e != 0 {
			t.Errorf("%s: %q, %v", name, text, e)
		}
	}
	for _, name := range []string{"absolute", "up", "../secret", "in/../../secret", "proc/version", "pipe"} {
		if text, e := tried(t, o.root, name, experimentalsys.O_RDONLY); e == 0 {
			t.Errorf("%s was read: %q", name, text)
		}
		if _, e := tried(t, o.root, name, experimentalsys.O_WRONLY|experimentalsys.O_CREAT); e == 0 {
			t.Errorf("%s was written", name)
		}
	}
	if e := o.root.Symlink("/etc/passwd", "mine"); e != 0 {
		t.Error(e)
	}
	if _, e := tried(t, o.root, "mine", experimentalsys.O_RDONLY); e == 0 {
		t.Error("a link of the module's own was followed out of its directory")
	}
	if e := o.root.Rename("in/file", "../taken"); e == 0 {
		t.Error("a file was moved out")
	}
	machine, err := open("/", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer machine.close()
	for _, name := range []string{"proc/self/status", "sys/kernel/mm", "dev/zero", "dev/null"} {
		if _, e := machine.root.OpenFile(name, experimentalsys.O_RDONLY, 0); e != experimentalsys.EPERM && e != experimentalsys.ENOENT {
			t.Errorf("%s: %v, want EPERM", name, e)
		}
	}
}

// TestVolumesAreDirectoriesOfTheirOwn, and files that are mounted can be read in the root.
func TestVolumesAreDirectoriesOfTheirOwn(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "data/..v1/key"), "value")
	if err := os.Symlink("..v1", filepath.Join(root, "data/..data")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..data/key", filepath.Join(root, "data/key")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "etc/hosts"), "hosts")
	o, err := open(root, []string{"/data", "/etc/hosts"})
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	if len(o.directories) != 1 || o.directories[0].path != "/data" {
		t.Fatalf("the volumes are %+v", o.directories)
	}
	if text, e := tried(t, o.directories[0].tree, "key", experimentalsys.O_RDONLY); text != "value" || e != 0 {
		t.Errorf("the config map's key is %q, %v", text, e)
	}
	if text, e := tried(t, o.root, "etc/hosts", experimentalsys.O_RDONLY); text != "hosts" || e != 0 {
		t.Errorf("/etc/hosts is %q, %v", text, e)
	}
	if _, err := open(root, []string{"/nowhere"}); err == nil {
		t.Error("a volume that is not there was opened")
	}
}

// TestFilesBehave as the interface's documentation wants it.
func TestFilesBehave(t *testing.T) {
	o, err := open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	ok := func(e experimentalsys.Errno) {
		t.Helper()
		if e != 0 {
			t.Fatal(e)
		}
	}
	ok(o.root.Mkdir("dir/", 0o755))
	f, e := o.root.OpenFile("dir/a", experimentalsys.O_RDWR|experimentalsys.O_CREAT|experimentalsys.O_EXCL, 0o644)
	ok(e)
	if n, e := f.Write([]byte("0123456789")); n != 10 || e != 0 {
		t.Fatal(n, e)
	}
	ok(f.Truncate(5))
	ok(f.Utimens(experimentalsys.UTIME_OMIT, 1e9))
	ok(f.SetAppend(true))
	if at, e := f.Seek(0, io.SeekStart); at != 0 || e != 0 {
		t.Fatal(at, e)
	}
	if _, e := f.Write([]byte("!")); e != 0 {
		t.Fatal(e)
	}
	b := make([]byte, 10)
	if n, e := f.Pread(b, 1); string(b[:n]) != "1234!" || e != 0 {
		t.Errorf("%q, %v", b[:n], e)
	}
	st, e := f.Stat()
	ok(e)
	if ino, _ := f.Ino(); st.Size != 6 || st.Ino == 0 || st.Ino != ino || !f.IsAppend() {
		t.Errorf("%+v", st)
	}
	ok(f.Close())
	ok(o.root.Utimens("dir/a", 2e9, 3e9))
	if st, e := o.root.Stat("dir/a"); e != 0 || st.Mtim != 3e9 || st.Atim != 2e9 {
		t.Errorf("%+v, %v", st, e)
	}
	ok(o.root.Link("dir/a", "dir/b"))
	ok(o.root.Rename("dir/b", "dir/c"))
	ok(o.root.Symlink("a", "dir/link"))
	if to, e := o.root.Readlink("dir/link"); to != "a" || e != 0 {
		t.Error(to, e)
	}
	if _, e := o.root.OpenFile("dir/link", experimentalsys.O_RDONLY|experimentalsys.O_NOFOLLOW, 0); e != experimentalsys.ELOOP {
		t.Error("a link was followed: ", e)
	}
	d, e := o.root.OpenFile("dir", experimentalsys.O_RDONLY|experimentalsys.O_DIRECTORY, 0)
	ok(e)
	for range 2 { // again after the directory was rewound
		entries, e := d.Readdir(-1)
		ok(e)
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name)
			if entry.Name == "link" && entry.Type != fs.ModeSymlink || entry.Ino == 0 {
				t.Errorf("%+v", entry)
			}
		}
		if slices.Sort(names); !slices.Equal(names, []string{"a", "c", "link"}) {
			t.Error(names)
		}
		if _, e := d.Seek(0, io.SeekStart); e != 0 {
			t.Fatal(e)
		}
	}
	ok(d.Close())
	for want, e := range map[experimentalsys.Errno]experimentalsys.Errno{
		experimentalsys.ENOTDIR: o.root.Rmdir("dir/a"), experimentalsys.EISDIR: o.root.Unlink("dir"),
		experimentalsys.ENOENT: o.root.Unlink("none"), experimentalsys.EEXIST: o.root.Mkdir("dir", 0o755),
		experimentalsys.ENOTEMPTY: o.root.Rmdir("dir"),
	} {
		if e != want {
			t.Errorf("%v, want %v", e, want)
		}
	}
	ok(o.root.Unlink("dir/link"))
	ok(o.root.Unlink("dir/a"))
	ok(o.root.Unlink("dir/c"))
	ok(o.root.Rmdir("dir/"))
}

// TestCodeIsCompiledOnce: what Compile archives runs the module without compiling it.
func TestCodeIsCompiledOnce(t *testing.T) {
	wasm, err := wat.Assemble(`(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start") (call $exit (i32.const 5))))`)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := compile(t.Context(), t.TempDir(), wasm, &archive); err != nil {
		t.Fatal(err)
	}
	root, code := t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "main.wasm"), string(wasm))
	r, files := tar.NewReader(&archive), 0
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(code, h.Name), string(text))
			files++
		}
	}
	if files != 1 {
		t.Fatalf("the archive has %d files", files)
	}
	was := modified(t, code)
	got, err := Run(t.Context(), Config{Root: root, Cache: code}, []string{"main.wasm"}, nil, Stdio{})
	if got != 5 || err != nil {
		t.Errorf("it ended with %d, %v", got, err)
	}
	if now := modified(t, code); !maps.Equal(was, now) {
		t.Errorf("the code was %v and is %v: it was compiled again", was, now)
	}
}

// modified are the files below a directory, and when they were written.
func modified(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	out := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		out[name] = info.ModTime()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
