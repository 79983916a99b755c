// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Bounds of the directory of compiled code: when it holds more than the first, the oldest
// files go until it holds less than the second.
const (
	cacheFull = 1 << 30
	cacheLeft = 1 << 29
)

// Prune removes what has not been written for longest, where there is too much.
func (s *Store) Prune() error { return prune(s.dir, cacheFull, cacheLeft) }

// prune keeps the directory from growing with every version that was ever loaded.
func prune(dir string, full, left int64) error {
	type file struct {
		path string
		size int64
		used time.Time
	}
	var files []file
	var total int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), stagePrefix):
			return fs.SkipDir // in use
		case d.IsDir():
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		total += info.Size()
		files = append(files, file{path, info.Size(), info.ModTime()})
		return nil
	})
	if err != nil || total <= full {
		return err
	}
	slices.SortFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		if total <= left {
			break
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		total -= f.size
	}
	return nil
}
