// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files in one step: whoever opens the file finds the
// former content or the new one, whole, whatever happens meanwhile.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write puts data in place of file, with exactly these permissions from the first
// byte on. When it returns, the content survives a power cut.
func Write(file string, data []byte, perm fs.FileMode) error {
	return replace(file, perm, true, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteVolatile is Write for content that can be made again, such as a cache's: it
// does not wait for the disk, and after a power cut the file may be empty or the
// former one.
func WriteVolatile(file string, data []byte, perm fs.FileMode) error {
	return replace(file, perm, false, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFrom is Write with the content that fill writes. Where fill fails, the file
// stays as it was.
func WriteFrom(file string, perm fs.FileMode, fill func(io.Writer) error) error {
	return replace(file, perm, true, fill)
}

// replace writes beside the file, so that the rename stays within its file system.
// The other name is hidden and ends in digits: folders whose readers go by the
// ending (CNI's, containerd's) can be written to.
func replace(file string, perm fs.FileMode, sync bool, fill func(io.Writer) error) (err error) {
	dir := filepath.Dir(file)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", file, errors.Join(err, os.Remove(tmp.Name())))
		}
	}()
	err = errors.Join(tmp.Chmod(perm), fill(tmp))
	if err == nil && sync {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return err
	}
	if sync {
		return SyncDir(dir)
	}
	return nil
}

// SyncDir makes the names in a folder survive a power cut.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
