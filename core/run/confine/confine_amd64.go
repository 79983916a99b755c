// SPDX-License-Identifier: Apache-2.0

package confine

import "golang.org/x/sys/unix"

const auditMachine = unix.AUDIT_ARCH_X86_64

// machineCalls are needed on this machine only.
func machineCalls() []uint32 {
	return []uint32{unix.SYS_NEWFSTATAT, unix.SYS_EPOLL_WAIT, unix.SYS_ARCH_PRCTL, unix.SYS_RENAME, unix.SYS_GETRLIMIT}
}
