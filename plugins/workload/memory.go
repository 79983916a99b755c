// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"slices"
	"sync"

	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

// mostSpare bounds the regions that wait for the next memory: as many as a server's instances have, with two memories each.
const mostSpare = 32

// memories are the linear memories of this process. What one of them leaves behind is a region of addresses for the next one with the
// same bound, and nothing else: a server makes an instance for each request, and to map and unmap its memory, and to have
// its pages made anew, took a fifth of the request.
type memories struct {
	mu    sync.Mutex
	spare [][]byte // all zero
	ended bool
}

// Allocate implements experimental.MemoryAllocator.
func (a *memories) Allocate(_, maximum uint64) experimental.LinearMemory {
	return &memory{reserved: maximum, among: a}
}

// take answers a region without content.
func (a *memories) take(size uint64) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, region := range a.spare {
		if uint64(len(region)) == size {
			a.spare = slices.Delete(a.spare, i, i+1)
			return region, nil
		}
	}
	return unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
}

// give takes a region back of which used bytes were a memory's.
func (a *memories) give(region []byte, used uint64) {
	empty := wipe(region[:used]) == nil
	a.mu.Lock()
	defer a.mu.Unlock()
	if !empty || a.ended || len(a.spare) >= mostSpare {
		_ = unix.Munmap(region) // fails only for a range that is not mapped
		return
	}
	a.spare = append(a.spare, region)
}

// wipe leaves nothing of a memory's content. One page of WebAssembly is written over, and stays; the pages of larger ones go
// back to the kernel, so that what waits for a request takes no memory away from those that run.
func wipe(content []byte) error {
	if len(content) <= pageSize {
		clear(content)
		return nil
	}
	return unix.Madvise(content, unix.MADV_DONTNEED)
}

// end frees the regions that wait, and those that are given back from now on.
func (a *memories) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	for _, region := range a.spare {
		_ = unix.Munmap(region)
	}
	a.spare = nil
}

// memory is a linear memory outside of Go's heap: its addresses are reserved once, so that it grows
// without being copied, and a page exists when it is touched.
type memory struct {
	reserved, size uint64
	region         []byte
	among          *memories
}

// Reallocate implements experimental.LinearMemory; nil means that the growth failed.
func (m *memory) Reallocate(size uint64) []byte {
	if size > m.reserved {
		return nil
	}
	if m.reserved == 0 {
		return []byte{}
	}
	if m.region == nil {
		region, err := m.among.take(m.reserved)
		if err != nil {
			return nil
		}
		m.region = region
	}
	m.size = max(m.size, size)
	return m.region[:size:m.reserved]
}

// Free implements experimental.LinearMemory. No code of the instance runs any more.
func (m *memory) Free() {
	if m.region != nil {
		m.among.give(m.region, m.size)
		m.region = nil
	}
}
