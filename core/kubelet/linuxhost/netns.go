// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

// inFreshNetns runs do in a network namespace of its own, which ends with it.
func inFreshNetns(do func()) error {
	return <-run.Go("a network namespace", func() error {
		// Never unlocked: the thread is spoilt and ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		do()
		return nil
	})
}
