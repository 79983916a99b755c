// SPDX-License-Identifier: Apache-2.0

package confine

import "golang.org/x/sys/unix"

const auditMachine = unix.AUDIT_ARCH_AARCH64

// machineCalls are needed on this machine only.
func machineCalls() []uint32 { return []uint32{unix.SYS_FSTATAT} }
