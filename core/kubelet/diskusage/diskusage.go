// SPDX-License-Identifier: Apache-2.0

// Package diskusage measures what directories take of the disk.
//
// What is measured is written by containers, which may mean harm: the memory that a measurement takes does not grow with
// the number of files or links, names of any length are followed, and nothing outside of the directory's file system is.
package diskusage

import (
	"context"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// TooDeep is what is counted, in bytes, for each directory that lies below more than MaxDepth others, instead of what it
// holds: nobody's use should look small because it is hidden well.
const (
	TooDeep  = 1 << 50
	MaxDepth = 1000
)

// Usage of a disk: blocks in bytes, and inodes.
type Usage struct{ Bytes, Inodes int64 }

// Plus is what both take.
func (u Usage) Plus(o Usage) Usage { return Usage{u.Bytes + o.Bytes, u.Inodes + o.Inodes} }

// Of counts what a directory takes, itself included. Where ctx ends before all is counted, it is what was counted so far; of
// what cannot be read, and of a directory that is not there, nothing.
func Of(ctx context.Context, dir string) Usage {
	root, err := os.Open(dir)
	if err != nil {
		return Usage{}
	}
	defer root.Close()
	var st unix.Stat_t
	if unix.Fstat(int(root.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return Usage{}
	}
	m := measurement{device: st.Dev}
	m.add(&st)
	m.walk(ctx, root, 0)
	return Usage{Bytes: m.bytes, Inodes: int64(math.Round(m.inodes))}
}

type measurement struct {
	device uint64
	bytes  int64
	inodes float64
}

// add counts a file's share for one of its names: who has several names in the directory is counted once, without a list of
// those that were seen.
func (m *measurement) add(st *unix.Stat_t) {
	const block = 512
	names := int64(1)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		names = max(int64(st.Nlink), 1) //nolint:gosec,unconvert // a count of links; its type differs by architecture
	}
	m.bytes += st.Blocks * block / names
	m.inodes += 1 / float64(names)
}

// walk counts what is in a directory. Each level holds it open, so that a path is never longer than one name.
func (m *measurement) walk(ctx context.Context, dir *os.File, depth int) {
	const batch = 512 // names that are in memory at once
	for {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if ctx.Err() != nil {
				return
			}
			m.visit(ctx, dir, name, depth)
		}
		if err != nil {
			return // io.EOF, or it cannot be read further
		}
	}
}

func (m *measurement) visit(ctx context.Context, dir *os.File, name string, depth int) {
	var st unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != m.device {
		return // files come and go while we count
	}
	m.add(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	if depth >= MaxDepth {
		m.bytes += TooDeep
		return
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	child := os.NewFile(uintptr(fd), name)
	defer child.Close()
	m.walk(ctx, child, depth+1)
}
