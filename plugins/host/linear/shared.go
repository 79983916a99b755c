// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"bytes"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Shared is what the memories of a module's first instance were after its start-up. Other instances map it, each for
// itself, so that a page which none of them writes is there once for all. The zero value is ready.
//
// Instances never see each other's writes: an instance maps a page privately, and only a page that is the same
// already, byte by byte. The image itself can be written by nobody any more.
type Shared struct {
	mu     sync.RWMutex
	before []*image // of the memories before the guest has run, where Keep was asked to
	images []*image // after start-up, by the order in which the memories were made; nil where one is small, or that of before will do
	closed bool
}

// Sizes from which on sharing pays: a mapping costs the kernel more than a small memory holds. Of an instance that
// differs in more than a quarter of its pages, nothing is shared.
const (
	worthSharing = 1 << 20
	mostOther    = 4
)

// own is a page in which a memory differs from the image that it shares.
type own struct {
	at      uint64
	content []byte
}

// Share maps the memories onto what the module's instances have in common. It belongs to the end of the start-up: the guest
// must not run meanwhile.
func (a *Allocator) Share(s *Shared) error {
	worth := false
	for _, m := range a.memories {
		worth = worth || m.size >= worthSharing
	}
	if !worth {
		return nil
	}
	first, err := s.begin(a)
	if first || err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed || len(s.images) != len(a.memories) {
		return nil
	}
	for i, m := range a.memories {
		if img := s.images[i]; img != nil && img.size == m.size {
			if err := m.adopt(img); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin makes the images of the first instance's memories.
func (s *Shared) begin(a *Allocator) (first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.images != nil {
		return false, nil
	}
	images := make([]*image, len(a.memories))
	for i, m := range a.memories {
		if m.size < worthSharing || m.begun != nil && m.size == m.begun.size && m.near(m.begun) {
			continue
		}
		if images[i], err = m.common(); err != nil {
			for _, img := range images {
				img.release()
			}
			return true, err
		}
	}
	s.images = images
	return true, nil
}

// Close ends the images. What has mapped them keeps what it has.
func (s *Shared) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, img := range append(s.before, s.images...) {
		img.release()
	}
	s.before, s.images = nil, nil
}

// common makes an image of the memory that others share, and maps the memory onto it.
func (m *Memory) common() (*image, error) {
	img, err := m.freeze()
	if err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(img.fd), unix.F_ADD_SEALS, seals); err != nil {
		img.close()
		return nil, fmt.Errorf("seal memory image: %w", err)
	}
	if img.content, err = unix.Mmap(img.fd, 0, int(img.size), unix.PROT_READ, unix.MAP_PRIVATE); err != nil {
		img.close()
		return nil, fmt.Errorf("map memory image: %w", err)
	}
	m.mapped(img, nil)
	m.present(img)
	return img, nil
}

// adopt maps the memory onto an image of another one, but for the pages that differ.
func (m *Memory) adopt(img *image) error {
	memory, runs := m.region[:m.size], img.runs
	var others []own
	for at := uint64(0); at < m.size; at += pageSize {
		end := min(at+pageSize, m.size)
		for len(runs) > 0 && runs[0].to <= at {
			runs = runs[1:]
		}
		if bytes.Equal(memory[at:end], img.page(at, end, runs)) {
			continue
		}
		if uint64(len(others)+1)*pageSize*mostOther > m.size {
			return nil
		}
		others = append(others, own{at, bytes.Clone(memory[at:end])})
	}
	if err := m.onto(img); err != nil {
		return err
	}
	m.mapped(img, others)
	m.present(img)
	m.rewrite()
	return nil
}

// mapped says that the memory is an image, but for some pages.
func (m *Memory) mapped(img *image, others []own) {
	m.shared, m.others, m.begun, m.grown = &common{size: img.size}, others, nil, true
	for _, r := range img.runs {
		m.shared.bytes += r.to - r.from
	}
}

// present has the pages of an image mapped that calls have touched already.
func (m *Memory) present(img *image) {
	// The pages are in memory; that they are mapped too has calls find them as quickly as before. A kernel before
	// 5.14 cannot; then they are mapped when they are touched.
	for _, r := range img.runs {
		_ = unix.Madvise(m.region[r.from:r.to], unix.MADV_POPULATE_READ)
	}
}

// rewrite puts the pages back in which the memory differs from what it shares.
func (m *Memory) rewrite() {
	for _, o := range m.others {
		copy(m.region[o.at:], o.content)
	}
}

// common is what a memory knows of the image that it shares, which may be closed meanwhile.
type common struct {
	size  uint64
	bytes uint64 // of them are mapped from it
}

// release ends an image that is shared; nil is none.
func (i *image) release() {
	if i == nil {
		return
	}
	if i.content != nil {
		_ = unix.Munmap(i.content) // fails only for a range that is not mapped
	}
	i.close()
}
