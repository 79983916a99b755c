// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"unsafe"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"golang.org/x/sys/unix"
)

// setTimes is futimens, which the libraries have for paths only.
func setTimes(fd int, atim, mtim int64) error {
	var times [2]unix.Timespec
	for i, t := range []int64{atim, mtim} {
		times[i] = unix.NsecToTimespec(t)
		if t == experimentalsys.UTIME_OMIT {
			times[i] = unix.Timespec{Nsec: unix.UTIME_OMIT}
		}
	}
	_, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0) //nolint:gosec // the call's form
	if e != 0 {
		return e
	}
	return nil
}
