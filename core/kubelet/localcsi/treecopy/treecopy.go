// SPDX-License-Identifier: Apache-2.0

// Package treecopy copies directories and files of volumes, with their owners, modes, times, extended attributes, links
// and holes, while a pod may be changing them: nothing outside of the two directories is ever reached.
package treecopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// deepest directory of a volume that is copied.
	deepest = 512
	// mostLinks is what a copy remembers of files with several names, in bytes: their names, which a pod can make
	// very long, and linkCost for each.
	mostLinks = 128 << 20
	linkCost  = 64
	piece     = 1 << 20
)

// Clone shares the blocks of a file.
func Clone(to, from *os.File) error { return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) }

// Data copies what was written into a file, and leaves holes holes.
func Data(ctx context.Context, to, from *os.File, size int64) error {
	buf := make([]byte, min(piece, max(size, 1)))
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole to the end
		}
		if err != nil {
			return fmt.Errorf("look for data: %w", err)
		}
		hole, err := unix.Seek(int(from.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("look for a hole: %w", err)
		}
		for at = data; at < min(hole, size); {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := from.ReadAt(buf[:min(int64(len(buf)), hole-at)], at)
			if n == 0 && errors.Is(err, io.EOF) {
				break // it became shorter
			}
			if n == 0 && err != nil {
				return fmt.Errorf("read: %w", err)
			}
			if _, err := to.WriteAt(buf[:n], at); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			at += int64(n)
		}
		at = max(at, hole)
	}
	if err := to.Truncate(size); err != nil {
		return fmt.Errorf("make a file as long as it was: %w", err)
	}
	return nil
}

// tree is one copy of a directory with all that is in it. A pod may be changing it
// meanwhile: nothing outside of either directory is ever reached, whatever links say.
type tree struct {
	from, to *os.Root
	links    map[uint64]string // files with several names: where the first is
	room     int               // bytes that links may still have
}

// Tree copies what is in a directory into another one, which is there.
func Tree(ctx context.Context, from, to string) error {
	in, err := os.OpenRoot(from)
	if err != nil {
		return fmt.Errorf("open a volume: %w", err)
	}
	defer in.Close()
	out, err := os.OpenRoot(to)
	if err != nil {
		return fmt.Errorf("open a copy: %w", err)
	}
	defer out.Close()
	t := &tree{from: in, to: out, links: map[uint64]string{}, room: mostLinks}
	return t.dir(ctx, ".", 0)
}

// dir copies what is in a directory, and then what it is itself: its time is that of the
// source, though files were put into it.
func (t *tree) dir(ctx context.Context, name string, depth int) error {
	if depth > deepest {
		return fmt.Errorf("%s: directories are copied %d deep", name, deepest)
	}
	in, err := t.from.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer in.Close()
	for {
		entries, err := in.ReadDir(256)
		for _, e := range entries {
			if err := t.entry(ctx, filepath.Join(name, e.Name()), depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", name, err)
		}
	}
	info, err := in.Stat()
	if err != nil {
		return fmt.Errorf("look at %s: %w", name, err)
	}
	out, err := t.to.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the copy of %s: %w", name, err)
	}
	defer out.Close()
	return attributes(out, in, info)
}

func (t *tree) entry(ctx context.Context, name string, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	info, err := t.from.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", name, err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: the system does not say what it is", name)
	}
	if first, again := t.links[st.Ino]; again && !info.IsDir() {
		return wrap(name, t.to.Link(first, name))
	}
	switch kind := info.Mode().Type(); kind {
	case fs.ModeDir:
		if err := t.to.Mkdir(name, 0o700); err != nil {
			return wrap(name, err)
		}
		return t.dir(ctx, name, depth+1)
	case fs.ModeSymlink:
		err = t.symlink(name, st)
	case 0:
		err = t.file(ctx, name)
	case fs.ModeSocket:
		return nil // without who listens it is nothing
	default:
		err = t.node(name, info, st)
	}
	if err != nil {
		return wrap(name, err)
	}
	if st.Nlink > 1 {
		if t.room -= linkCost + len(name); t.room < 0 {
			return fmt.Errorf("%s: the names of files with several names have more than %d bytes together", name, mostLinks)
		}
		t.links[st.Ino] = name
	}
	return nil
}

func wrap(name string, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile
	}
	return fmt.Errorf("copy %s: %w", name, err)
}

func (t *tree) symlink(name string, st *syscall.Stat_t) error {
	target, err := t.from.Readlink(name)
	if err != nil {
		return err
	}
	if err := t.to.Symlink(target, name); err != nil {
		return err
	}
	return t.to.Lchown(name, int(st.Uid), int(st.Gid))
}

// file opens without waiting: a pod may have put a pipe in its place.
func (t *tree) file(ctx context.Context, name string) (err error) {
	in, err := t.from.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	out, err := t.to.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if Clone(out, in) != nil {
		if err := Data(ctx, out, in, info.Size()); err != nil {
			return err
		}
	}
	return attributes(out, in, info)
}

// node is a pipe or a device.
func (t *tree) node(name string, info fs.FileInfo, st *syscall.Stat_t) error {
	parent, err := t.to.OpenFile(filepath.Dir(name), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := unix.Mknodat(int(parent.Fd()), filepath.Base(name), st.Mode, int(st.Rdev)); err != nil { //nolint:gosec // a device's number
		return err
	}
	if err := t.to.Lchown(name, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return t.to.Chmod(name, info.Mode())
}

// attributes gives a copy its owner, extended attributes, mode and times: the mode after
// the owner, for a change of owner takes bits of it away.
func attributes(to, from *os.File, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("the system does not say whose it is")
	}
	if err := to.Chown(int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := extended(to, from); err != nil {
		return err
	}
	if err := to.Chmod(info.Mode()); err != nil {
		return err
	}
	times := []unix.Timeval{{Sec: st.Atim.Sec, Usec: st.Atim.Nsec / 1000}, {Sec: st.Mtim.Sec, Usec: st.Mtim.Nsec / 1000}}
	return unix.Futimes(int(to.Fd()), times)
}

// extended attributes, with access lists among them.
func extended(to, from *os.File) error {
	const most = 64 << 10 // of the kernel, for the list and for each value
	names, value := make([]byte, most), make([]byte, most)
	n, err := unix.Flistxattr(int(from.Fd()), names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list extended attributes: %w", err)
	}
	for _, name := range splitZero(names[:n]) {
		n, err := unix.Fgetxattr(int(from.Fd()), name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read attribute %s: %w", name, err)
		}
		if err := unix.Fsetxattr(int(to.Fd()), name, value[:n], 0); err != nil {
			return fmt.Errorf("write attribute %s: %w", name, err)
		}
	}
	return nil
}

func splitZero(b []byte) []string {
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == 0 })
}
