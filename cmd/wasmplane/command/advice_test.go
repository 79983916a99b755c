// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

func TestWhatTheSystemRefusesComesWithAdvice(t *testing.T) {
	full := fmt.Errorf("write the cluster's state: %w", &fs.PathError{Op: "write", Path: "state.json", Err: syscall.ENOSPC})
	for _, c := range []struct {
		err   error
		wants string // at its end
	}{
		{full, "no space left on device; the disk is full: make room (bytes or inodes) and try again"},
		{fmt.Errorf("%w; the disk is full (3 KiB are free): make room and start again", full), "(3 KiB are free): make room and start again"},
		{errors.Join(errors.New("a"), &fs.PathError{Op: "open", Path: "b", Err: syscall.EMFILE}), "LimitNOFILE= of its service)"},
		{&fs.PathError{Op: "open", Path: "b", Err: syscall.EACCES}, "open b: permission denied"},
	} {
		if text := advised(c.err); !strings.HasSuffix(text, c.wants) || !strings.HasPrefix(text, c.err.Error()) {
			t.Errorf("%q: %q", c.err, text)
		}
	}
}
