// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// rotating is a file that is put aside when it is full. Names of old ones carry
// the time: audit.log becomes audit-20060102T150405.000000000.log.
type rotating struct {
	path     string
	maxBytes int64
	maxFiles int
	maxAge   time.Duration // 0 = for ever
	now      func() time.Time

	mu   sync.Mutex
	file *os.File
	size int64
}

func openRotating(path string, maxBytes int64, maxFiles int, maxAge time.Duration, now func() time.Time) (*rotating, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the audit log: %w", err)
	}
	r := &rotating{path: path, maxBytes: maxBytes, maxFiles: maxFiles, maxAge: maxAge, now: now}
	return r, r.open()
}

func (r *rotating) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open the audit log: %w", err), f.Close())
	}
	r.file, r.size = f, info.Size()
	return nil
}

// write writes whole lines with one call, so that lines of two processes never mix.
func (r *rotating) write(line []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return os.ErrClosed
	}
	if r.size > 0 && r.size+int64(len(line)) > r.maxBytes {
		if err := r.rotate(); err != nil {
			return err
		}
	}
	n, err := r.file.Write(line)
	r.size += int64(n)
	return err
}

// rotate goes on with the full file where it cannot be put aside.
func (r *rotating) rotate() error {
	if err := os.Rename(r.path, r.aside(r.now().UTC().Format(stamp))); err != nil {
		return fmt.Errorf("put the full audit log aside: %w", err)
	}
	old := r.file
	if err := r.open(); err != nil {
		return err
	}
	return errors.Join(old.Close(), r.prune())
}

// stamp is the time in a name; names sort by it.
const stamp = "20060102T150405.000000000"

func (r *rotating) aside(at string) string {
	ext := filepath.Ext(r.path)
	return strings.TrimSuffix(r.path, ext) + "-" + at + ext
}

// prune removes the oldest; their names sort by time.
func (r *rotating) prune() error {
	old, err := filepath.Glob(r.aside("[0-9]*T*"))
	if err != nil {
		return err
	}
	slices.Sort(old)
	var errs []error
	oldest := r.aside(r.now().Add(-r.maxAge).UTC().Format(stamp))
	for len(old) > r.maxFiles || r.maxAge > 0 && len(old) > 0 && old[0] < oldest {
		errs = append(errs, os.Remove(old[0]))
		old = old[1:]
	}
	return errors.Join(errs...)
}

func (r *rotating) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	f := r.file
	r.file = nil
	return f.Close()
}
