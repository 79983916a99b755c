// SPDX-License-Identifier: Apache-2.0

// Package payload writes the files of a volume whose content comes from the API
// (ConfigMaps, Secrets, tokens), all at once: a reader sees one version of them. It
// refuses paths that lead out of the volume.
package payload

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// File is one file of a volume.
type File struct {
	Data []byte
	Mode os.FileMode
	// User who owns it; nil is root.
	User *int64
}

// Files are all files of a volume, by their paths in it.
type Files map[string]File

const (
	dataLink = "..data"
	dataTemp = "..data_tmp"
)

// Write brings the volume at dir to these files, all at once: readers see the old
// files or the new ones, never some of both. The files are in a directory of
// their own, to which the link ..data points; what is seen at the top of the
// volume are links through that one, and so a rename of ..data swaps all of it.
// prepare is called with the new files before anybody sees them.
func Write(dir string, want Files, prepare func(dir string) error) error {
	for p := range want {
		if err := checkPath(p); err != nil {
			return err
		}
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read volume: %w", err)
	}
	if !ofOurs(old) {
		old = ""
	}
	if old != "" && same(filepath.Join(dir, old), want) {
		return links(dir, want)
	}
	fresh, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return fmt.Errorf("make directory of new files: %w", err)
	}
	if err := fill(fresh, want, prepare); err != nil {
		_ = os.RemoveAll(fresh)
		return err
	}
	if err := swap(dir, filepath.Base(fresh)); err != nil {
		_ = os.RemoveAll(fresh)
		return err
	}
	if err := links(dir, want); err != nil {
		return err
	}
	if old != "" {
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			return fmt.Errorf("remove old files: %w", err)
		}
	}
	return nil
}

// ofOurs says whether a link leads to a directory as Write makes them, and not out of the volume.
func ofOurs(to string) bool {
	return strings.HasPrefix(to, "..") && len(to) > len("..") && !strings.Contains(to, "/")
}

func fill(dir string, want Files, prepare func(string) error) error {
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // what is in it has modes of its own
		return fmt.Errorf("open up directory of new files: %w", err)
	}
	for p, f := range want {
		full := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return fmt.Errorf("make directory of %s: %w", p, err)
		}
		if err := os.WriteFile(full, f.Data, f.Mode); err != nil {
			return fmt.Errorf("write %s: %w", p, err)
		}
		if err := os.Chmod(full, f.Mode); err != nil { // the umask took some away
			return fmt.Errorf("set the mode of %s: %w", p, err)
		}
		if f.User != nil {
			if err := os.Chown(full, int(*f.User), -1); err != nil {
				return fmt.Errorf("give %s to user %d: %w", p, *f.User, err)
			}
		}
	}
	if prepare != nil {
		return prepare(dir)
	}
	return nil
}

func swap(dir, fresh string) error {
	temp := filepath.Join(dir, dataTemp)
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a link left behind: %w", err)
	}
	if err := os.Symlink(fresh, temp); err != nil {
		return fmt.Errorf("link new files: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(dir, dataLink)); err != nil {
		return fmt.Errorf("swap in new files: %w", err)
	}
	return nil
}

// links makes what is seen at the top of the volume, and removes what is no longer there.
func links(dir string, want Files) error {
	tops := map[string]bool{}
	for p := range want {
		top, _, _ := strings.Cut(filepath.Clean(p), "/")
		tops[top] = true
	}
	for top := range tops {
		link := filepath.Join(dir, top)
		if _, err := os.Lstat(link); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(dataLink, top), link); err != nil {
			return fmt.Errorf("link %s: %w", top, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list volume: %w", err)
	}
	for _, e := range entries {
		if tops[e.Name()] || strings.HasPrefix(e.Name(), "..") {
			continue
		}
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, dataLink+"/") {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove link %s: %w", e.Name(), err)
			}
		}
	}
	return nil
}

// same tells whether a directory holds just these files.
func same(dir string, want Files) bool {
	var have []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			rel, err := filepath.Rel(dir, p)
			if err != nil {
				return err
			}
			have = append(have, rel)
		}
		return nil
	})
	if err != nil || len(have) != len(want) {
		return false
	}
	for p, f := range want {
		if !slices.Contains(have, filepath.Clean(p)) {
			return false
		}
		full := filepath.Join(dir, p)
		data, err := os.ReadFile(full)
		if err != nil || !bytes.Equal(data, f.Data) {
			return false
		}
		// The group's rights are fsGroup's business.
		if info, err := os.Stat(full); err != nil || (info.Mode().Perm()^f.Mode.Perm())&0o707 != 0 {
			return false
		}
	}
	return true
}

// checkPath refuses names that would lead out of a volume, or into its works.
func checkPath(p string) error {
	const longest = 255
	switch {
	case p == "":
		return errors.New("invalid path: must not be empty")
	case filepath.IsAbs(p):
		return fmt.Errorf("invalid path: must be relative path: %s", p)
	case len(p) > 4096:
		return errors.New("invalid path: must be less than or equal to 4096 characters")
	}
	for i, part := range strings.Split(p, "/") {
		if part == ".." {
			return fmt.Errorf("invalid path: must not contain '..': %s", p)
		}
		if len(part) > longest {
			return fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", longest)
		}
		if i == 0 && strings.HasPrefix(part, "..") {
			return fmt.Errorf("invalid path: must not start with '..': %s", p)
		}
	}
	return nil
}
