package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Bounds of the directory of compiled code: when it holds more than the first, the oldest
// files go until it holds less than the second.
const (
	cacheFull = 1 << 30
	cacheLeft = 1 << 29
)

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
		if err != nil || d.IsDir() {
			return err
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
