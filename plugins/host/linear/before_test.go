// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"bytes"
	"testing"
)

// begun makes a memory that begins as others do, where there are others.
func begun(t *testing.T, s *Shared, size uint64) (*Allocator, []byte) {
	t.Helper()
	a := &Allocator{}
	a.From(s)
	t.Cleanup(a.Close)
	empty, m := a.Allocate(0, 0), a.Allocate(0, size+megabyte)
	t.Cleanup(m.Free)
	if b := empty.Reallocate(0); b == nil {
		t.Fatal("a memory of no page is refused")
	}
	return a, m.Reallocate(size)
}

// keeps makes the first memory, with content at both ends and nothing between them, and keeps its image.
func keeps(t *testing.T, s *Shared, size uint64) (*Allocator, []byte) {
	t.Helper()
	a, b := begun(t, s, size)
	if (&Allocator{}).From(s) {
		t.Fatal("there is an image already")
	}
	copy(b, bytes.Repeat([]byte("first"), 20000))
	copy(b[len(b)-100000:], bytes.Repeat([]byte("last!"), 20000))
	if err := a.Keep(s); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestMemoriesBeginAsTheFirstDid(t *testing.T) {
	for _, size := range []uint64{megabyte, 12 * megabyte} {
		var s Shared
		t.Cleanup(s.Close)
		_, first := keeps(t, &s, size)
		was := bytes.Clone(first)
		clear(first) // what it writes from now on is its own
		_, a := begun(t, &s, size)
		_, b := begun(t, &s, size)
		if !bytes.Equal(a, was) || !bytes.Equal(b, was) {
			t.Fatalf("%d bytes: they do not begin as the first was", size)
		}
		for i := range a {
			a[i] = 0xff
		}
		if !bytes.Equal(b, was) {
			t.Errorf("%d bytes: one sees what another writes", size)
		}
		if _, c := begun(t, &s, size); !bytes.Equal(c, was) {
			t.Errorf("%d bytes: the image has changed", size)
		}
	}
}

// TestOnlyWhatWasWrittenIsItsOwn: the kernel is asked which pages those are; where it does not say, all are compared.
func TestOnlyWhatWasWrittenIsItsOwn(t *testing.T) {
	var s Shared
	t.Cleanup(s.Close)
	keeps(t, &s, 2*megabyte)
	a, b := begun(t, &s, 2*megabyte)
	m := a.memories[1]
	b[5*pageSize] = 'x'          // in the image
	b[100*pageSize] = 0          // in its hole, as it was
	b[101*pageSize] = 'y'        // and other than it was
	b[len(b)-1], b[0] = '!', 'f' // the last page as it was, and the first
	if got := m.differences(m.begun); len(got) != 2 || got[0].at != 5*pageSize || got[1].at != 101*pageSize || got[1].content[0] != 'y' {
		t.Errorf("differs in %d pages: %v", len(got), got)
	}
	written := m.written()
	if written == nil {
		t.Log("this kernel does not say which pages were written")
		return
	}
	for page, want := range map[int]bool{0: true, 1: false, 5: true, 6: false, 99: false, 101: true} {
		if written[page] != want {
			t.Errorf("page %d was written: %t, want %t", page, written[page], want)
		}
	}
}

// TestABegunMemoryIsPutBack to what it was after its start-up, with what the start-up wrote.
func TestABegunMemoryIsPutBack(t *testing.T) {
	for pages, afresh := range map[int]bool{3: false, 300: true} { // a start-up that writes much makes another image worth it
		var s Shared
		t.Cleanup(s.Close)
		var want []byte
		for i := range 3 {
			a, b := begun(t, &s, 2*megabyte)
			if i == 0 {
				a, b = keeps(t, &s, 2*megabyte)
			}
			for page := range pages {
				b[page*pageSize+9] = byte(page) | 1
			}
			b[400*pageSize] = byte(i) // each writes something else
			if err := a.Share(&s); err != nil {
				t.Fatal(err)
			}
			if got := a.memories[1].begun == nil; got != afresh {
				t.Errorf("%d pages, instance %d: it shares another image: %t", pages, i, got)
			}
			if err := a.Freeze(); err != nil {
				t.Fatal(err)
			}
			want = bytes.Clone(b)
			for at := range b {
				b[at] = 0xee
			}
			if err := a.Thaw(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, want) {
				t.Errorf("%d pages, instance %d: it is not what it was", pages, i)
			}
		}
	}
}

// TestABegunMemoryGrows with zeros.
func TestABegunMemoryGrows(t *testing.T) {
	var s Shared
	t.Cleanup(s.Close)
	_, first := keeps(t, &s, 2*megabyte)
	a, _ := begun(t, &s, 2*megabyte)
	b := a.memories[1].Reallocate(3 * megabyte)
	if !bytes.Equal(b[:2*megabyte], first) || !bytes.Equal(b[2*megabyte:], make([]byte, megabyte)) {
		t.Error("a memory that has grown has other content")
	}
	if err := a.Share(&s); err != nil {
		t.Fatal(err)
	}
	if err := a.Freeze(); err != nil {
		t.Fatal(err)
	}
	b[5], b[2*megabyte+5] = 'x', 'x'
	if err := a.Thaw(); err != nil || b[5] == 'x' || b[2*megabyte+5] == 'x' {
		t.Errorf("it is not put back: %v", err)
	}
}
