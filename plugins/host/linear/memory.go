// SPDX-License-Identifier: Apache-2.0

// Package linear keeps the linear memories of guests outside of Go's heap, bounds them together,
// and puts them back to what they were.
package linear

import (
	"fmt"

	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

// Allocator makes the memories of one instance: the address range is reserved once, and pages exist
// when they are touched, or before that where a memory is large (populate).
type Allocator struct {
	Limit    uint64 // bytes of all of them together; 0 = each memory's own bound is enough
	memories []*Memory
	begin    []*image // what the memories begin as, in their order; more of them begin empty
}

// Allocate implements experimental.MemoryAllocator.
func (a *Allocator) Allocate(_, maximum uint64) experimental.LinearMemory {
	m := &Memory{reserved: maximum, among: a}
	if n := len(a.memories); n < len(a.begin) {
		m.begun = a.begin[n]
	}
	a.memories = append(a.memories, m)
	return m
}

// Size is what all memories have.
func (a *Allocator) Size() (n uint64) {
	for _, m := range a.memories {
		n += m.size
	}
	return n
}

// SharedSize is what of them is mapped from an image that others map too.
func (a *Allocator) SharedSize() (n uint64) {
	for _, m := range a.memories {
		if m.shared != nil {
			n += m.shared.bytes
		}
	}
	return n
}

// Large says whether to give the pages back takes long.
func (a *Allocator) Large() bool { return a.Size() > lazy }

// Grown says, once, that a memory has grown.
func (a *Allocator) Grown() bool {
	grown := false
	for _, m := range a.memories {
		grown = grown || m.grown
		m.grown = false
	}
	return grown
}

// Freeze makes an image of the memories as they are, and maps them onto it. Where Share has mapped one just now, that is
// its image.
func (a *Allocator) Freeze() error {
	for _, m := range a.memories {
		if m.shared != nil && m.shared.size == m.size {
			if m.begun != nil {
				m.others = m.differences(m.begun)
			}
			continue
		}
		img, err := m.freeze()
		if err != nil {
			return err
		}
		m.image = img
	}
	return nil
}

// Thaw puts the memories back to what they were at Freeze. One that has grown since cannot be.
func (a *Allocator) Thaw() error {
	for _, m := range a.memories {
		switch {
		case m.image != nil:
			if err := m.thaw(m.image.size); err != nil {
				return err
			}
		case m.shared != nil:
			if err := m.thaw(m.shared.size); err != nil {
				return err
			}
			m.rewrite()
		}
	}
	return nil
}

// Close ends the images.
func (a *Allocator) Close() {
	for _, m := range a.memories {
		if m.image != nil {
			m.image.close()
			m.image = nil
		}
	}
}

// Memory is one linear memory.
type Memory struct {
	reserved uint64
	region   []byte
	size     uint64
	grown    bool // since somebody looked last
	among    *Allocator
	image    *image  // that it is put back to; nil = it is not, or to what it shares
	shared   *common // what it shares with other instances; nil = nothing
	others   []own   // pages in which it differed from that after start-up
	begun    *image  // that it shares since it was made, before the guest ran; nil = it began empty, or shares another one
}

// Reallocate implements experimental.LinearMemory; nil means that the growth failed.
func (m *Memory) Reallocate(size uint64) []byte {
	if size > m.reserved || m.among.Limit > 0 && m.among.Size()-m.size+size > m.among.Limit {
		return nil
	}
	if m.region == nil {
		if m.reserved == 0 {
			return []byte{}
		}
		region, err := unix.Mmap(-1, 0, int(m.reserved), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err != nil {
			return nil
		}
		m.region = region
		if m.begun != nil {
			return m.first(size)
		}
	}
	m.populate(max(m.size, lazy), size)
	m.size, m.grown = size, true
	return m.region[:size:m.reserved]
}

const (
	lazy         = 4 << 20 // of a memory whose pages exist when they are touched
	populateStep = 1 << 20
)

// populate makes pages exist. The kernel takes about a microsecond for each page
// that a guest touches first, which the guest's fuel knows nothing of, and the guest comes to no safe
// point meanwhile: with 32 MiB of them it would hold up the collector, and everybody, for many milliseconds.
// Here the processor is Go's to give to others.
func (m *Memory) populate(from, to uint64) {
	for ; from < to; from += populateStep {
		// A kernel before 5.14 cannot; then they exist when they are touched.
		_ = unix.Madvise(m.region[from:min(from+populateStep, to)], unix.MADV_POPULATE_WRITE)
	}
}

// Free implements experimental.LinearMemory.
func (m *Memory) Free() {
	if m.region != nil {
		_ = unix.Munmap(m.region) // fails only for a range that is not mapped
		m.region = nil
	}
}

// image is the content that a memory is put back to: the pages are mapped
// privately from a file in memory, so that only those that a call has written
// are thrown away and read again.
//
// Only runs of pages that hold something are mapped from it. The rest is zero, stays the memory's own, and is zero again
// when its pages are thrown away: what a guest writes there first is there once, not in the file too.
type image struct {
	fd      int
	size    uint64
	runs    []run
	content []byte // mapped for reading, where it is shared
}

// run is a part of an image, in whole pages.
type run struct{ from, to uint64 }

// gap is how many bytes of zeros part two runs. It bounds the mappings of a memory.
const gap = 256 << 10

// freeze makes an image of the memory as it is, and maps the memory onto it.
func (m *Memory) freeze() (*image, error) {
	fd, err := unix.MemfdCreate("wasm-image", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create memory image: %w", err)
	}
	img := &image{fd: fd, size: m.size}
	if err := img.fill(m.region[:m.size]); err != nil {
		img.close()
		return nil, err
	}
	if err := m.onto(img); err != nil {
		img.close()
		return nil, err
	}
	return img, nil
}

// onto maps the memory onto an image of its size: it then is the image, and what is written to it is its own.
func (m *Memory) onto(img *image) error {
	for _, r := range img.runs {
		if _, err := unix.MmapPtr(img.fd, int64(r.from), ptr(m.region[r.from:]), uintptr(r.to-r.from),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED); err != nil {
			return fmt.Errorf("map memory image: %w", err)
		}
	}
	return nil
}

const pageSize = 4096

var zero [pageSize]byte

func (i *image) fill(content []byte) error {
	if err := unix.Ftruncate(i.fd, int64(len(content))); err != nil {
		return fmt.Errorf("size memory image: %w", err)
	}
	for at := 0; at < len(content); at += pageSize {
		page := content[at:min(at+pageSize, len(content))]
		if string(page) == string(zero[:len(page)]) {
			continue // stays a hole
		}
		from, to := uint64(at), uint64(at+len(page))
		if last := len(i.runs) - 1; last >= 0 && from-i.runs[last].to < gap {
			i.runs[last].to = to
		} else {
			i.runs = append(i.runs, run{from, to})
		}
		if _, err := unix.Pwrite(i.fd, page, int64(at)); err != nil {
			return fmt.Errorf("write memory image: %w", err)
		}
	}
	return nil
}

// thaw puts the memory back to the image of a size. A memory that has grown since cannot be.
func (m *Memory) thaw(size uint64) error {
	if m.size != size {
		return fmt.Errorf("memory grew from %d to %d bytes", size, m.size)
	}
	if m.size == 0 {
		return nil
	}
	return unix.Madvise(m.region[:m.size], unix.MADV_DONTNEED)
}

func (i *image) close() { _ = unix.Close(i.fd) }
