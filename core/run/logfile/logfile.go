// SPDX-License-Identifier: Apache-2.0

// Package logfile writes logs that do not fill the disk.
package logfile

import (
	"context"
	"fmt"
	"os"
	"sync"
)

// File is a log that takes at most twice its limit: the file, and the one before it as
// PATH.1. It is safe for concurrent use.
type File struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// Open goes on with a log, or begins one. limit is in bytes; 0 = there is none. The file is
// the owner's to read alone.
func Open(path string, limit int64) (*File, error) {
	f := &File{path: path, limit: limit}
	return f, f.open()
}

func (f *File) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("open the log: %w", err)
	}
	f.file, f.size = file, info.Size()
	return nil
}

// Write appends. Where the file would grow past the limit it is put aside first.
func (f *File) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.limit > 0 && f.size > 0 && f.size+int64(len(p)) > f.limit {
		f.close()
		if err := os.Rename(f.path, f.path+".1"); err != nil {
			return 0, fmt.Errorf("put the log aside: %w", err)
		}
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	n, err := f.file.Write(p)
	f.size += int64(n)
	return n, err
}

// ReopenOn opens the log again for each signal until ctx ends: another program has moved the file away.
func (f *File) ReopenOn(ctx context.Context, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			f.mu.Lock()
			f.close()
			_ = f.open() // else the next Write tries, and says why not
			f.mu.Unlock()
		}
	}
}

// Close closes the file; a later Write opens it again.
func (f *File) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.close()
}

func (f *File) close() {
	if f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
}
