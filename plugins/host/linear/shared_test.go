// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"bytes"
	"testing"
)

const megabyte = 1 << 20

// started makes a memory as it is after a start-up: each page has its number, and some are the instance's own.
func started(t *testing.T, size uint64, mine map[int]byte) (*Allocator, []byte) {
	t.Helper()
	a := &Allocator{}
	m := a.Allocate(0, size+megabyte)
	t.Cleanup(m.Free)
	t.Cleanup(a.Close)
	b := m.Reallocate(size)
	for at := 0; at < len(b); at += pageSize {
		b[at+7] = byte(at / pageSize)
	}
	for page, v := range mine {
		b[page*pageSize+1] = v
	}
	return a, b
}

func share(t *testing.T, a *Allocator, s *Shared) {
	t.Helper()
	if err := a.Share(s); err != nil {
		t.Fatal(err)
	}
}

func isShared(a *Allocator) bool { return a.memories[0].shared != nil }

func TestInstancesDoNotSeeEachOthersWrites(t *testing.T) {
	var s Shared
	t.Cleanup(s.Close)
	first, a := started(t, 2*megabyte, map[int]byte{3: 'a'})
	second, b := started(t, 2*megabyte, map[int]byte{3: 'b', 9: 'c'})
	wasA, wasB := bytes.Clone(a), bytes.Clone(b)
	share(t, first, &s)
	share(t, second, &s)
	if !isShared(first) || !isShared(second) || len(second.memories[0].others) != 2 {
		t.Fatalf("shared: %t, %t, with %d pages of its own", isShared(first), isShared(second), len(second.memories[0].others))
	}
	if !bytes.Equal(a, wasA) || !bytes.Equal(b, wasB) {
		t.Fatal("sharing has changed a memory")
	}
	for i := range a {
		a[i] = 0xff
	}
	if !bytes.Equal(b, wasB) {
		t.Error("the second instance sees what the first one writes")
	}
	for i := range b {
		b[i] = 0xee
	}
	if !bytes.Equal(a, bytes.Repeat([]byte{0xff}, len(a))) {
		t.Error("the first instance sees what the second one writes")
	}
	third, c := started(t, 2*megabyte, nil)
	wasC := bytes.Clone(c)
	share(t, third, &s)
	if !isShared(third) || !bytes.Equal(c, wasC) {
		t.Error("a later instance sees what earlier ones wrote after their start-up")
	}
}

func TestAMemoryThatIsSharedIsPutBack(t *testing.T) {
	var s Shared
	t.Cleanup(s.Close)
	for i := range 3 {
		a, b := started(t, 2*megabyte, map[int]byte{3: byte('a' + i), 100 + i: 'x'})
		was := bytes.Clone(b)
		share(t, a, &s)
		if err := a.Freeze(); err != nil {
			t.Fatal(err)
		}
		if a.memories[0].image != nil {
			t.Error("an image of its own was made for a memory that is shared")
		}
		for range 2 {
			for at := range b {
				b[at] ^= 0x55
			}
			if err := a.Thaw(); err != nil || !bytes.Equal(b, was) {
				t.Fatalf("instance %d was not put back: %v", i, err)
			}
		}
		a.memories[0].Reallocate(2*megabyte + pageSize)
		if err := a.Thaw(); err == nil {
			t.Error("a memory that has grown was put back")
		}
	}
}

func TestWhatDiffersIsNotShared(t *testing.T) {
	var s Shared
	t.Cleanup(s.Close)
	small, _ := started(t, megabyte/2, nil)
	share(t, small, &s)
	first, _ := started(t, 2*megabyte, nil)
	share(t, first, &s)
	larger, _ := started(t, 3*megabyte, nil)
	share(t, larger, &s)
	much := map[int]byte{}
	for page := range 200 {
		much[page] = 'z'
	}
	other, b := started(t, 2*megabyte, much)
	was := bytes.Clone(b)
	share(t, other, &s)
	if isShared(small) || !isShared(first) || isShared(larger) || isShared(other) || !bytes.Equal(b, was) {
		t.Errorf("small %t, first %t, larger %t, other %t", isShared(small), isShared(first), isShared(larger), isShared(other))
	}
}

// TestAMemoryOutlivesWhatItShares: instances may be closed after their module.
func TestAMemoryOutlivesWhatItShares(t *testing.T) {
	var s Shared
	a, b := started(t, 2*megabyte, map[int]byte{3: 'a'})
	was := bytes.Clone(b)
	share(t, a, &s)
	if err := a.Freeze(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
	clear(b)
	if err := a.Thaw(); err != nil || !bytes.Equal(b, was) {
		t.Errorf("it was not put back: %v", err)
	}
	late, _ := started(t, 2*megabyte, nil)
	if share(t, late, &s); isShared(late) {
		t.Error("a memory was mapped onto what is closed")
	}
}

// Of a memory that is mostly zero, only what holds something is mapped from the image.
func TestWhatIsZeroIsNotMapped(t *testing.T) {
	var s Shared
	t.Cleanup(s.Close)
	for i := range 2 {
		a := &Allocator{}
		m := a.Allocate(0, 16*megabyte)
		t.Cleanup(m.Free)
		t.Cleanup(a.Close)
		b := m.Reallocate(8 * megabyte)
		b[5], b[5*megabyte], b[5*megabyte+3*pageSize] = 1, 2, 3
		b[7*megabyte+i*pageSize] = byte(i) // the second instance's own
		was := bytes.Clone(b)
		share(t, a, &s)
		if got, want := a.SharedSize(), uint64(5*pageSize); got != want {
			t.Errorf("%d bytes are mapped, expected %d", got, want)
		}
		for at := range b {
			b[at] ^= 0x55
		}
		if err := a.Thaw(); err != nil || !bytes.Equal(b, was) {
			t.Errorf("instance %d was not put back: %v", i, err)
		}
	}
}
