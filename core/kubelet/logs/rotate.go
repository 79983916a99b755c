// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Rotation bounds what a container's logs take.
type Rotation struct {
	// Size in bytes beyond which a log is rotated (10 MiB if zero).
	Size int64
	// Files is how many are kept of a log, the one in use among them (5 if zero).
	Files int
}

const rotatedStamp = "20060102-150405"

// Rotate moves a log that has grown too large out of the way, tells the runtime
// to open a new one, and drops or compresses the older ones.
func (r Rotation) Rotate(ctx context.Context, path string, now time.Time, reopen func(context.Context) error) error {
	limit, files := r.Size, r.Files
	if limit <= 0 {
		limit = 10 << 20
	}
	if files < 2 {
		files = 5
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// Moved away by one who did not live to have it opened anew.
		return reopen(ctx)
	}
	if err != nil {
		return fmt.Errorf("look at log: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() < limit {
		return nil
	}
	if err := tidy(path, files-2); err != nil {
		return err
	}
	old := path + "." + now.UTC().Format(rotatedStamp)
	if err := os.Rename(path, old); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	if err := reopen(ctx); err != nil {
		// The runtime still writes to the one that it has open.
		if back := os.Rename(old, path); back != nil {
			return fmt.Errorf("rotate log: %w", errors.Join(err, back))
		}
		return fmt.Errorf("have log %s opened anew: %w", path, err)
	}
	return nil
}

// tidy keeps so many of the rotated logs, compressed.
func tidy(path string, keep int) error {
	old, err := filepath.Glob(escape(path) + ".*")
	if err != nil {
		return fmt.Errorf("list rotated logs: %w", err)
	}
	slices.Sort(old) // by time, as their names have it
	for i, f := range old {
		if strings.HasSuffix(f, ".tmp") || i < len(old)-keep {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("drop rotated log: %w", err)
			}
			continue
		}
		if !strings.HasSuffix(f, ".gz") {
			if err := compress(f); err != nil {
				return err
			}
		}
	}
	return nil
}

func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(s)
}

func compress(file string) error {
	in, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	defer in.Close()
	tmp := file + ".tmp"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	err = errors.Join(err, z.Close(), out.Close())
	if err == nil {
		err = os.Rename(tmp, file+".gz")
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("compress rotated log %s: %w", file, err)
	}
	return os.Remove(file)
}
