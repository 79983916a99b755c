// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"strings"
	"syscall"
)

// refusals are what the system refuses for want of something, and what to do about it.
var refusals = []struct {
	errno         syscall.Errno
	means, advice string
}{
	{syscall.ENOSPC, "the disk is full", "make room (bytes or inodes) and try again"},
	{syscall.EDQUOT, "the disk quota is used up", "make room or raise the quota, and try again"},
	{syscall.EROFS, "the disk takes no writes", "it is mounted read-only, as after an error of the disk: look at the kernel's log (dmesg)"},
	{syscall.EMFILE, "this process may open no more files", "raise its limit (ulimit -n, or LimitNOFILE= of its service)"},
}

// advised is an error's text, with what to do where the system refused something: any file may be the one that
// meets it first, and its own error names no more than that file.
func advised(err error) string {
	text := err.Error()
	for _, r := range refusals {
		if errors.Is(err, r.errno) && !strings.Contains(text, r.means) {
			return text + "; " + r.means + ": " + r.advice
		}
	}
	return text
}
