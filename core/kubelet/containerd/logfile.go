// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"

	"github.com/wasmplane/wasmplane/core/run"
)

// logTo sends the process's log to a file of bounded size. containerd writes
// through logrus and copies its shims' output to os.Stderr: both go into a pipe
// that one goroutine drains into the file. File descriptor 2 stays what the parent
// gave, so that the runtime's own last words (a Go panic) are not lost in a pipe
// that nobody drains any more. The returned func waits until all is written.
func logTo(path string, limit int64) (drained func(), err error) {
	out := &boundedFile{path: path, limit: limit}
	if err := out.open(); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("make the log pipe: %w", err)
	}
	os.Stdout, os.Stderr = w, w
	logrus.SetOutput(w)
	done := run.Go("containerd: its log", func() error {
		defer out.Close()
		// A full disk must not block containerd: what cannot be written is dropped.
		_, _ = io.Copy(lossy{out}, r)
		return nil
	})
	return func() {
		w.Close()
		<-done
	}, nil
}

// lossy reports every write as done.
type lossy struct{ io.Writer }

func (l lossy) Write(p []byte) (int, error) {
	_, _ = l.Writer.Write(p)
	return len(p), nil
}

// boundedFile is a log that keeps at most twice its limit: the file, and the one
// before it as path.1.
type boundedFile struct {
	path  string
	limit int64
	file  *os.File
	size  int64
}

func (b *boundedFile) open() error {
	f, err := os.OpenFile(b.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open the log: %w", err)
	}
	b.file, b.size = f, info.Size()
	return nil
}

// Write appends, and turns the file over first when it would grow past the limit.
func (b *boundedFile) Write(p []byte) (int, error) {
	if b.limit > 0 && b.size > 0 && b.size+int64(len(p)) > b.limit {
		if err := b.rotate(); err != nil {
			return 0, err
		}
	}
	if b.file == nil {
		if err := b.open(); err != nil {
			return 0, err
		}
	}
	n, err := b.file.Write(p)
	b.size += int64(n)
	return n, err
}

func (b *boundedFile) rotate() error {
	b.Close()
	if err := os.Rename(b.path, b.path+".1"); err != nil {
		return fmt.Errorf("turn the log over: %w", err)
	}
	return nil
}

// Close closes the file; the next Write opens it again.
func (b *boundedFile) Close() {
	if b.file != nil {
		b.file.Close()
		b.file = nil
	}
}
