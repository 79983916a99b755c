// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bufio"
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// releaseAfter is how long after a process was ready its own start is over (first
// lists, first writes), and after that the start of everything else.
func releaseAfter() []time.Duration { return []time.Duration{2 * time.Second, 8 * time.Second} }

// Startup hands back the memory that only a start needed: garbage of the heap, and
// the pages of the program that initialization has run through, which are two thirds
// of it and would stay mapped for good.
type Startup struct {
	// Ready is closed when the process serves. Required.
	Ready <-chan struct{}
	// Warm makes what first requests would have to wait for, before anything is handed
	// back. Nil = nothing.
	Warm func(context.Context)
	// Logger may be nil.
	Logger *slog.Logger
}

// Run waits for the end of the start, hands back, and waits for ctx's end.
func (s Startup) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.Ready:
	}
	for i, after := range releaseAfter() {
		timer := time.NewTimer(after)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if i == 0 && s.Warm != nil {
			s.Warm(ctx)
		}
		s.release(ctx)
	}
	<-ctx.Done() // a unit that returns would end those that run beside it
	return nil
}

func (s Startup) release(ctx context.Context) {
	debug.FreeOSMemory()
	if err := unmapProgram(); err != nil && s.Logger != nil {
		s.Logger.DebugContext(ctx, "the program's own pages stay mapped", "error", err)
	}
}

// unmapProgram takes the program's read-only pages out of the process's memory.
// They stay in the kernel's page cache, and each that is needed again is back
// without a read from the disk. Pages that can be written are left alone: private
// changes would be lost.
func unmapProgram() error {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer func() { _ = maps.Close() }()
	for sc := bufio.NewScanner(maps); sc.Scan(); {
		if from, to, ok := programPages(sc.Text(), self); ok {
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
				return errno
			}
		}
	}
	return nil
}

// programPages reads a line of /proc/self/maps: 00400000-0461a000 r-xp 00000000 fe:00 1008 /bin/wasmplane.
func programPages(line, program string) (from, to uintptr, ok bool) {
	f := strings.SplitN(line, " ", 6)
	if len(f) < 6 || strings.TrimSpace(f[5]) != program || f[1] != "r-xp" && f[1] != "r--p" {
		return 0, 0, false
	}
	low, high, _ := strings.Cut(f[0], "-")
	a, errA := strconv.ParseUint(low, 16, 64)
	b, errB := strconv.ParseUint(high, 16, 64)
	return uintptr(a), uintptr(b), errA == nil && errB == nil && a < b
}
