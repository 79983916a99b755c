// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"bytes"
	leb "encoding/binary"
	"os"
)

// worthKeeping is from how many bytes of data on the memories begin as an image of it: to map one costs as much as to
// copy a tenth of that.
const worthKeeping = 256 << 10

// Begin decides how the memories that are made next begin, which the guest fills with so many bytes of data. filled says that
// they do with the data, as those of an instance before this one had it. Otherwise keep, if it is not nil, is to be
// called when they have their data and the guest has not run.
func (a *Allocator) Begin(s *Shared, data int64) (filled bool, keep func() error) {
	if data < worthKeeping {
		return false, nil
	}
	return a.From(s), func() error { return a.Keep(s) }
}

// Keep makes images of the memories as they are before the guest has run, so that those of further instances (From)
// begin with this content, without a copy of it. The guest must not run meanwhile.
func (a *Allocator) Keep(s *Shared) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.before != nil {
		return nil // another instance was first
	}
	images := make([]*image, len(a.memories))
	for i, m := range a.memories {
		if m.size == 0 {
			continue // it begins empty
		}
		var err error
		if images[i], err = m.common(); err != nil {
			for _, img := range images {
				img.release()
			}
			return err
		}
	}
	for i, m := range a.memories {
		m.begun = images[i]
	}
	s.before = images
	return nil
}

// From has the memories that are made next begin as those that Keep was asked for, and says whether there are such. The
// Shared must not be closed before they are freed.
func (a *Allocator) From(s *Shared) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	a.begin = s.before
	return s.before != nil
}

// first gives a memory that begins with an image its first pages.
func (m *Memory) first(size uint64) []byte {
	img := m.begun
	if size != img.size { // no two instances of a module begin with other sizes
		return nil
	}
	if err := m.onto(img); err != nil {
		// Without mappings the content is its own, as any memory's.
		for _, r := range img.runs {
			copy(m.region[r.from:r.to], img.content[r.from:r.to])
		}
		m.size, m.begun, m.grown = size, nil, true
		return m.region[:size:m.reserved]
	}
	m.mapped(img, nil)
	m.begun = img
	m.size = size
	m.populateHoles(img)
	return m.region[:size:m.reserved]
}

// populateHoles makes the pages exist that are not the image's, but for the first ones (lazy).
func (m *Memory) populateHoles(img *image) {
	var holes, at uint64
	for _, r := range append(img.runs[:len(img.runs):len(img.runs)], run{m.size, m.size}) {
		hole := r.from - at
		m.populate(at+min(hole, lazy-min(holes, lazy)), r.from)
		holes += hole
		at = r.to
	}
}

// near says whether the memory is still so much like the image with which it began that a later one would spare little.
func (m *Memory) near(img *image) bool {
	return uint64(len(m.differences(img)))*pageSize <= worthSharing
}

// differences are the pages in which the memory differs from the image that it is mapped onto.
func (m *Memory) differences(img *image) (out []own) {
	written := m.written()
	runs := img.runs
	for at := uint64(0); at < m.size; at += pageSize {
		if written != nil && !written[at/pageSize] {
			continue
		}
		end := min(at+pageSize, m.size)
		for len(runs) > 0 && runs[0].to <= at {
			runs = runs[1:]
		}
		if page := m.region[at:end]; !bytes.Equal(page, img.page(at, end, runs)) {
			out = append(out, own{at, bytes.Clone(page)})
		}
	}
	return out
}

// page is the content of a page of the image, of whose runs those before it are left out.
func (i *image) page(at, end uint64, runs []run) []byte {
	if len(runs) > 0 && runs[0].from <= at {
		return i.content[at:end]
	}
	return zero[:end-at]
}

// Bits of an entry of /proc/self/pagemap (the kernel's documentation, admin-guide/mm/pagemap).
const (
	pageIsFiles = 1 << 61 // it is a file's, as every page of an image that nobody has written
	pageIsSwap  = 1 << 62
	pageIsThere = 1 << 63
)

// written says of each page whether it may have been written since the memory was mapped; nil where the kernel does
// not tell.
func (m *Memory) written() []bool {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil
	}
	defer f.Close()
	entries := make([]byte, (m.size+pageSize-1)/pageSize*8)
	if _, err := f.ReadAt(entries, int64(address(m.region)/pageSize*8)); err != nil {
		return nil
	}
	out := make([]bool, len(entries)/8)
	for i := range out {
		e := leb.LittleEndian.Uint64(entries[8*i:])
		out[i] = e&(pageIsThere|pageIsSwap) != 0 && e&pageIsFiles == 0
	}
	return out
}
