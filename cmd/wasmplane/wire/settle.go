package wire

import (
	"bufio"
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settleAfter is how long after the server was ready its own start is over (first
// lists, first writes), and after that the start of everything else.
func settleAfter() []time.Duration { return []time.Duration{2 * time.Second, 8 * time.Second} }

// settle makes what first writes would have to wait for, once the start is over,
// and hands back the memory that only the start needed: garbage of the heap, and the
// pages of the program that initialization has run through, which are two thirds of
// it and would stay mapped for good.
func (s *server) settle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.boot.Ready():
	}
	for i, after := range settleAfter() {
		timer := time.NewTimer(after)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if i == 0 {
			s.warm(ctx)
		}
		s.handBack()
	}
	<-ctx.Done() // the parts beside it run until then
	return nil
}

// warm spares the first write to each group the 11 ms that its schemas take.
func (s *server) warm(ctx context.Context) {
	if err := s.contract.Warm(ctx); err != nil && ctx.Err() == nil {
		s.o.Logger.WarnContext(ctx, "Schemas were not made ahead; the first write to a group will make them.", "error", err)
	}
}

func (s *server) handBack() {
	debug.FreeOSMemory()
	if err := unmapProgram(); err != nil {
		s.o.Logger.Debug("the program's own pages stay mapped", "error", err)
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
