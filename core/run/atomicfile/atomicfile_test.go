// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFileIsReplacedWholeWithItsPermissions(t *testing.T) {
	writers := map[string]func(string, []byte, fs.FileMode) error{
		"Write": Write, "WriteVolatile": WriteVolatile,
		"WriteFrom": func(file string, data []byte, perm fs.FileMode) error {
			return WriteFrom(file, perm, func(w io.Writer) error { _, err := w.Write(data); return err })
		},
	}
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "state.json")
			for _, want := range []struct {
				content string
				perm    fs.FileMode
			}{{"a longer first content", 0o600}, {"second", 0o644}} {
				before, _ := os.Open(file)
				if err := write(file, []byte(want.content), want.perm); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(file)
				if err != nil || string(got) != want.content {
					t.Fatalf("content %q, %v; want %q", got, err, want.content)
				}
				if info, err := os.Stat(file); err != nil || info.Mode().Perm() != want.perm {
					t.Errorf("permissions %v, %v; want %v", info.Mode(), err, want.perm)
				}
				if before != nil { // whoever had it open reads on in the former content
					if old, err := io.ReadAll(before); err != nil || string(old) != "a longer first content" {
						t.Errorf("a reader of the former content got %q, %v", old, err)
					}
					before.Close()
				}
			}
			only(t, filepath.Dir(file), "state.json")
		})
	}
}

func TestAFailureLeavesTheFileAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state.json")
	if err := Write(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := errors.New("no more content")
	err := WriteFrom(file, 0o600, func(w io.Writer) error {
		_, _ = io.WriteString(w, "half")
		return bad
	})
	if !errors.Is(err, bad) || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v, want one that names the file and the cause", err)
	}
	if got, _ := os.ReadFile(file); string(got) != "kept" {
		t.Errorf("content %q, want the former", got)
	}
	// A name that a folder has cannot be replaced by a file.
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "folder"), nil, 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	only(t, dir, "folder", "state.json")
	if err := Write(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v in a folder that is not there", err)
	}
}

func only(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("the folder has %v, want %v", names, want)
	}
}
