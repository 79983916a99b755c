// SPDX-License-Identifier: Apache-2.0

// Package diskusage measures what directories take of the disk.
package diskusage

import (
	"context"
	"io/fs"
	"path/filepath"
	"syscall"
)

// Of counts the blocks, in bytes, that a directory takes, and stops once they are more than enough.
func Of(ctx context.Context, dir string, enough int64) (total int64) {
	const block = 512
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // files come and go while we count
		}
		if ctx.Err() != nil || total > enough {
			return fs.SkipAll
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			if st.Nlink > 1 && !d.IsDir() {
				if seen[st.Ino] {
					return nil
				}
				seen[st.Ino] = true
			}
			total += st.Blocks * block
		}
		return nil
	})
	return total
}
