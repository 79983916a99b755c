// SPDX-License-Identifier: Apache-2.0

// Package mounttable reads the kernel's table of mounts. The kernel makes it anew for each reader, in pieces of a page, under a lock that
// whoever mounts something needs too: hundreds of pods that end at once and read it side by side hold each other, and the starts of
// others, up for minutes. So there is one reader at a time, and those who have asked meanwhile share the next.
package mounttable

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// Mount is a line of the table.
type Mount struct {
	Device  string // major:minor
	Root    string // what of the file system is mounted
	Point   string // where
	Type    string
	Options string // those of the file system
}

var table = newReader(func() ([]byte, error) { return os.ReadFile("/proc/self/mountinfo") })

// Read is the table as it is after the call began: the oldest mount first. It is shared: nobody may change it.
func Read() ([]Mount, error) { return table.read() }

// reader reads a file for many.
type reader struct {
	file func() ([]byte, error)
	turn chan struct{} // has one who reads

	mu   sync.Mutex
	next *reading // has not begun; nil = nobody waits for it
}

func newReader(file func() ([]byte, error)) *reader {
	return &reader{file: file, turn: make(chan struct{}, 1)}
}

type reading struct {
	done   chan struct{}
	mounts []Mount
	err    error
}

func (r *reader) read() ([]Mount, error) {
	r.mu.Lock()
	mine := r.next
	if mine != nil {
		r.mu.Unlock()
		<-mine.done
		return mine.mounts, mine.err
	}
	mine = &reading{done: make(chan struct{})}
	r.next = mine
	r.mu.Unlock()
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.mu.Lock()
	r.next = nil // who asks from here on would get what is old by then
	r.mu.Unlock()
	defer close(mine.done)
	text, err := r.file()
	if err != nil {
		mine.err = fmt.Errorf("list mounts: %w", err)
		return nil, mine.err
	}
	mine.mounts = parse(string(text))
	return mine.mounts, nil
}

// parse reads lines like
//
//	36 35 98:0 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu
func parse(text string) []Mount {
	var out []Mount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 1 {
			continue
		}
		m := Mount{Device: left[2], Root: escapes.Replace(left[3]), Point: escapes.Replace(left[4]), Type: right[0]}
		if len(right) > 2 {
			m.Options = right[2]
		}
		out = append(out, m)
	}
	return out
}

// escapes are the kernel's, which are octal.
var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
