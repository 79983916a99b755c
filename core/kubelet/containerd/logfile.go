// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/logfile"
)

// logTo sends the process's log to a file of bounded size. containerd writes
// through logrus and copies its shims' output to os.Stderr: both go into a pipe
// that one goroutine drains into the file. File descriptor 2 stays what the parent
// gave, so that the runtime's own last words (a Go panic) are not lost in a pipe
// that nobody drains any more. The returned func waits until all is written.
func logTo(path string, limit int64) (drained func(), err error) {
	out, err := logfile.Open(path, limit)
	if err != nil {
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
