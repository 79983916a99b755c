// SPDX-License-Identifier: Apache-2.0

package payload_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/volume/payload"
)

func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			fmt.Fprintf(&b, "%s/(%s) ", e.Name(), strings.TrimSpace(files(t, path)))
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := os.Stat(path)
		fmt.Fprintf(&b, "%s=%s:%o ", e.Name(), data, info.Mode().Perm())
	}
	return b.String()
}

func of(kv ...string) payload.Files {
	p := payload.Files{}
	for i := 0; i < len(kv); i += 2 {
		p[kv[i]] = payload.File{Data: []byte(kv[i+1]), Mode: 0o640}
	}
	return p
}

func TestWriteSwapsAllAtOnce(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []struct {
		want payload.Files
		see  string
	}{
		{of("a", "1", "b", "2"), "a=1:640 b=2:640 "},
		{of("a", "1", "b", "3", "d/e", "4", "d/f", "5"), "a=1:640 b=3:640 d/(e=4:640 f=5:640) "},
		{of("a", "6"), "a=6:640 "},
		{of(), ""},
		{of("a", "7"), "a=7:640 "},
	} {
		if err := payload.Write(dir, step.want, nil); err != nil {
			t.Fatal(err)
		}
		if got := files(t, dir); got != step.see {
			t.Errorf("files %q, want %q", got, step.see)
		}
		left, _ := filepath.Glob(filepath.Join(dir, "..2*"))
		if len(left) != 1 {
			t.Errorf("old files are left: %v", left)
		}
	}
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	if err := payload.Write(dir, of("a", "7"), nil); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Readlink(filepath.Join(dir, "..data")); before != after {
		t.Error("the same files were written again")
	}
}

// Readers never see the new of one file and the old of another.
func TestReadersSeeOneVersion(t *testing.T) {
	dir := t.TempDir()
	if err := payload.Write(dir, of("a", "0", "b", "0"), nil); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			root, err := os.OpenRoot(filepath.Join(dir, "..data"))
			if err != nil {
				continue
			}
			a, err1 := root.ReadFile("a")
			b, err2 := root.ReadFile("b")
			root.Close()
			if err1 == nil && err2 == nil && string(a) != string(b) {
				t.Errorf("a is %s and b is %s", a, b)
				return
			}
		}
	})
	for i := range 200 {
		if err := payload.Write(dir, of("a", fmt.Sprint(i), "b", fmt.Sprint(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestNamesThatLeadAway(t *testing.T) {
	for _, name := range []string{
		"", "/etc/passwd", "../x", "a/../../x", "..data", "..x/y", strings.Repeat("x", 256),
		"a/" + strings.Repeat("y/", 3000),
	} {
		dir := t.TempDir()
		if err := payload.Write(filepath.Join(dir), of(name, "x"), nil); err == nil {
			t.Errorf("%.20q was written", name)
		}
	}
}

func FuzzWrite(f *testing.F) {
	for _, s := range []string{"a", "../a", "a/b", "..data", "a//b", "./a", "a/.", "\x00"} {
		f.Add(s, "b")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		outer := t.TempDir()
		dir := filepath.Join(outer, "volume")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = payload.Write(dir, of(a, "x", b, "y"), nil)
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 1 {
			t.Fatalf("written outside of the volume: %v %v", entries, err)
		}
	})
}

// Whoever could write to a volume finds no way out of it by the links that the next version of the files goes by.
func TestLinksInAVolumeLeadNowhere(t *testing.T) {
	for _, to := range []string{"..", "../..", "/", "../other", "..x/../../other", "."} {
		base := t.TempDir()
		dir, other := filepath.Join(base, "volume"), filepath.Join(base, "other")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(other, 0o755), os.WriteFile(filepath.Join(other, "a"), []byte("theirs"), 0o644),
			os.Symlink(to, filepath.Join(dir, "..data")), os.Symlink(other, filepath.Join(dir, "..data_tmp")),
			os.Symlink(other, filepath.Join(dir, "b"))); err != nil {
			t.Fatal(err)
		}
		next := payload.Files{"a": {Data: []byte("1"), Mode: 0o644}, "b/c": {Data: []byte("2"), Mode: 0o644}}
		if err := payload.Write(dir, next, nil); err != nil {
			t.Errorf("%s: %v", to, err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "a")); string(data) != "1" {
			t.Errorf("%s: %q, %v", to, data, err)
		}
		entries, err := os.ReadDir(other)
		if data, _ := os.ReadFile(filepath.Join(other, "a")); err != nil || len(entries) != 1 || string(data) != "theirs" {
			t.Errorf("%s: another directory has %v, %q, %v", to, entries, data, err)
		}
	}
}
