package machine

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// inFreshNetns runs do in a network namespace of its own, which ends with it.
func inFreshNetns(do func()) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread is spoilt and ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		do()
		done <- nil
	}()
	return <-done
}
