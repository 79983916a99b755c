// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

// memory is a linear memory outside of Go's heap: its addresses are reserved once, so that it grows
// without being copied, and a page exists when it is touched.
type memory struct {
	reserved uint64
	region   []byte
}

func allocate(_, maximum uint64) experimental.LinearMemory { return &memory{reserved: maximum} }

// Reallocate implements experimental.LinearMemory; nil means that the growth failed.
func (m *memory) Reallocate(size uint64) []byte {
	if size > m.reserved {
		return nil
	}
	if m.reserved == 0 {
		return []byte{}
	}
	if m.region == nil {
		region, err := unix.Mmap(-1, 0, int(m.reserved), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err != nil {
			return nil
		}
		m.region = region
	}
	return m.region[:size:m.reserved]
}

// Free implements experimental.LinearMemory.
func (m *memory) Free() {
	if m.region != nil {
		_ = unix.Munmap(m.region) // fails only for a range that is not mapped
		m.region = nil
	}
}
