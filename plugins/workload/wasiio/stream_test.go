// SPDX-License-Identifier: Apache-2.0

package wasiio_test

import (
	"errors"
	"io"
	"testing"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/workload/wasiio"
)

// TestAReaderThatIsClosedEnds: a client of HTTP closes a body that it is reading.
func TestAReaderThatIsClosedEnds(t *testing.T) {
	p := &wasiio.Pipe{}
	read := run.Go("reading", func() error {
		_, err := p.Read(make([]byte, 1))
		return err
	})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("reading ends with %v", err)
	}
}

// TestWhatIsAbandonedIsNotWaitedFor: a component may keep the stream of a body that it has dropped.
func TestWhatIsAbandonedIsNotWaitedFor(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	s := wasiio.Pump("a body", r)
	if ready, _ := s.Ready(); ready {
		t.Error("there is nothing yet")
	}
	s.End()
	if ready, _ := s.Ready(); !ready {
		t.Error("its end is waited for")
	}
	if _, err := s.Pull(t.Context(), 1, true); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("reading ends with %v", err)
	}
}
