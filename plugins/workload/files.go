// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
)

// opened are the directories that a module may use.
type opened struct {
	root        *tree
	directories []volume
}

type volume struct {
	path string
	tree *tree
}

// open opens the root directory and the volumes below it.
func open(root string, mounts []string) (*opened, error) {
	o := &opened{}
	devices := map[uint64]bool{}
	r, err := openTree(root, devices)
	if err != nil {
		return nil, err
	}
	o.root = r
	for _, m := range mounts {
		p := path.Join(root, m)
		info, err := os.Stat(p)
		if err != nil {
			o.close()
			return nil, fmt.Errorf("look at the volume mounted at %s: %w", m, err)
		}
		if !info.IsDir() {
			devices[device(info)] = true
			continue
		}
		t, err := openTree(p, devices)
		if err != nil {
			o.close()
			return nil, err
		}
		o.directories = append(o.directories, volume{path: m, tree: t})
	}
	return o, nil
}

func (o *opened) close() {
	_ = o.root.Close()
	for _, v := range o.directories {
		_ = v.tree.Close()
	}
}

// tree is a directory with everything below it. A path, whatever links are on its way, never leads out of it, and what is opened
// is a regular file or a directory on one of the file systems of the container's root and volumes: neither
// a device, nor a file of /proc.
type tree struct {
	experimentalsys.UnimplementedFS
	*os.Root
	devices map[uint64]bool
}

func openTree(dir string, devices map[uint64]bool) (*tree, error) {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory for the module: %w", err)
	}
	info, err := r.Stat(".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look at the directory for the module: %w", err), r.Close())
	}
	devices[device(info)] = true
	return &tree{Root: r, devices: devices}, nil
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}

// errno is WASI's number of an error. What would have led out of a tree is not permitted.
func errno(err error) experimentalsys.Errno {
	var number syscall.Errno
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return 0
	case errors.As(err, &number):
		return experimentalsys.UnwrapOSError(number)
	case errors.Is(err, fs.ErrNotExist):
		return experimentalsys.ENOENT
	case errors.Is(err, fs.ErrExist):
		return experimentalsys.EEXIST
	case errors.Is(err, fs.ErrInvalid):
		return experimentalsys.EINVAL
	case errors.Is(err, fs.ErrClosed):
		return experimentalsys.EBADF
	}
	return experimentalsys.EPERM
}

// flags of the system for those of WASI.
var flags = map[experimentalsys.Oflag]int{
	experimentalsys.O_APPEND: syscall.O_APPEND, experimentalsys.O_CREAT: syscall.O_CREAT,
	experimentalsys.O_DIRECTORY: syscall.O_DIRECTORY, experimentalsys.O_DSYNC: syscall.O_DSYNC,
	experimentalsys.O_EXCL: syscall.O_EXCL, experimentalsys.O_RSYNC: syscall.O_RSYNC,
	experimentalsys.O_SYNC: syscall.O_SYNC, experimentalsys.O_TRUNC: syscall.O_TRUNC,
}

// OpenFile implements experimentalsys.FS. It never waits, as the opening of a pipe would.
func (t *tree) OpenFile(name string, flag experimentalsys.Oflag, perm fs.FileMode) (experimentalsys.File, experimentalsys.Errno) {
	mode := syscall.O_NONBLOCK | syscall.O_NOCTTY
	if flag&experimentalsys.O_RDWR != 0 {
		mode |= os.O_RDWR
	} else if flag&experimentalsys.O_WRONLY != 0 {
		mode |= os.O_WRONLY
	}
	for theirs, ours := range flags {
		if flag&theirs != 0 {
			mode |= ours
		}
	}
	if flag&experimentalsys.O_NOFOLLOW != 0 {
		if info, err := t.Root.Lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, experimentalsys.ELOOP
		}
	}
	f, err := t.Root.OpenFile(trimmed(name), mode, perm.Perm())
	if err != nil {
		return nil, errno(err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular() && !info.IsDir(), !t.devices[device(info)]:
		err = syscall.EPERM
	case strings.HasSuffix(name, "/") && !info.IsDir():
		err = syscall.ENOTDIR
	}
	if err != nil {
		_ = f.Close()
		return nil, errno(err)
	}
	return &file{File: f, directory: info.IsDir(), append: mode&syscall.O_APPEND != 0}, 0
}

// trimmed is a path without the slash that says that it is a directory's.
func trimmed(name string) string {
	if name = strings.TrimRight(name, "/"); name == "" {
		return "."
	}
	return name
}

// Lstat implements experimentalsys.FS.
func (t *tree) Lstat(name string) (sys.Stat_t, experimentalsys.Errno) {
	return stat(t.Root.Lstat(trimmed(name)))
}

// Stat implements experimentalsys.FS.
func (t *tree) Stat(name string) (sys.Stat_t, experimentalsys.Errno) {
	return stat(t.Root.Stat(trimmed(name)))
}

func stat(info fs.FileInfo, err error) (sys.Stat_t, experimentalsys.Errno) {
	if err != nil {
		return sys.Stat_t{}, errno(err)
	}
	return sys.NewStat_t(info), 0
}

// Mkdir implements experimentalsys.FS.
func (t *tree) Mkdir(name string, perm fs.FileMode) experimentalsys.Errno {
	return errno(t.Root.Mkdir(trimmed(name), perm.Perm()))
}

// Chmod implements experimentalsys.FS.
func (t *tree) Chmod(name string, perm fs.FileMode) experimentalsys.Errno {
	return errno(t.Root.Chmod(trimmed(name), perm.Perm()))
}

// Rename implements experimentalsys.FS.
func (t *tree) Rename(from, to string) experimentalsys.Errno {
	return errno(t.Root.Rename(trimmed(from), trimmed(to)))
}

// Rmdir implements experimentalsys.FS.
func (t *tree) Rmdir(name string) experimentalsys.Errno {
	info, err := t.Root.Lstat(trimmed(name))
	if err == nil && !info.IsDir() {
		return experimentalsys.ENOTDIR
	}
	if err == nil {
		err = t.Remove(trimmed(name))
	}
	return errno(err)
}

// Unlink implements experimentalsys.FS.
func (t *tree) Unlink(name string) experimentalsys.Errno {
	info, err := t.Root.Lstat(trimmed(name))
	if err == nil && info.IsDir() {
		return experimentalsys.EISDIR
	}
	if err == nil {
		err = t.Remove(trimmed(name))
	}
	return errno(err)
}

// Link implements experimentalsys.FS.
func (t *tree) Link(from, to string) experimentalsys.Errno {
	return errno(t.Root.Link(trimmed(from), trimmed(to)))
}

// Symlink implements experimentalsys.FS. A link may point anywhere: it is not followed out of the tree.
func (t *tree) Symlink(target, name string) experimentalsys.Errno {
	return errno(t.Root.Symlink(target, trimmed(name)))
}

// Readlink implements experimentalsys.FS.
func (t *tree) Readlink(name string) (string, experimentalsys.Errno) {
	target, err := t.Root.Readlink(trimmed(name))
	return target, errno(err)
}

// Utimens implements experimentalsys.FS.
func (t *tree) Utimens(name string, atim, mtim int64) experimentalsys.Errno {
	return errno(t.Chtimes(trimmed(name), at(atim), at(mtim)))
}

// at is a time; the zero one is not changed.
func at(nanoseconds int64) time.Time {
	if nanoseconds == experimentalsys.UTIME_OMIT {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// file is an open file or directory.
type file struct {
	*os.File
	directory, append bool
}

// Dev implements experimentalsys.File.
func (f *file) Dev() (uint64, experimentalsys.Errno) {
	st, err := f.Stat()
	return st.Dev, err
}

// Ino implements experimentalsys.File.
func (f *file) Ino() (sys.Inode, experimentalsys.Errno) {
	st, err := f.Stat()
	return st.Ino, err
}

// IsDir implements experimentalsys.File.
func (f *file) IsDir() (bool, experimentalsys.Errno) { return f.directory, 0 }

// IsAppend implements experimentalsys.File.
func (f *file) IsAppend() bool { return f.append }

// SetAppend implements experimentalsys.File.
func (f *file) SetAppend(enable bool) experimentalsys.Errno {
	raw, err := f.SyscallConn()
	if err != nil {
		return errno(err)
	}
	var failed syscall.Errno
	err = raw.Control(func(fd uintptr) {
		now, _, e := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
		if e == 0 {
			now &^= syscall.O_APPEND
			if enable {
				now |= syscall.O_APPEND
			}
			_, _, e = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_SETFL, now)
		}
		failed = e
	})
	switch {
	case err != nil:
		return errno(err)
	case failed != 0:
		return experimentalsys.UnwrapOSError(failed)
	}
	f.append = enable
	return 0
}

// Stat implements experimentalsys.File.
func (f *file) Stat() (sys.Stat_t, experimentalsys.Errno) { return stat(f.File.Stat()) }

// kind says what is wrong with reading or writing a directory.
func (f *file) kind() experimentalsys.Errno {
	if f.directory {
		return experimentalsys.EISDIR
	}
	return 0
}

// Read implements experimentalsys.File.
func (f *file) Read(b []byte) (int, experimentalsys.Errno) {
	if e := f.kind(); e != 0 || len(b) == 0 {
		return 0, e
	}
	n, err := f.File.Read(b)
	return n, errno(err)
}

// Pread implements experimentalsys.File.
func (f *file) Pread(b []byte, offset int64) (int, experimentalsys.Errno) {
	if e := f.kind(); e != 0 || len(b) == 0 {
		return 0, e
	}
	n, err := f.ReadAt(b, offset)
	return n, errno(err)
}

// position is a name of its own, so that vet does not take the method below for that of io.Seeker.
type position = int64

// Seek implements experimentalsys.File.
func (f *file) Seek(offset position, whence int) (int64, experimentalsys.Errno) {
	if uint(whence) > io.SeekEnd {
		return 0, experimentalsys.EINVAL
	}
	if f.directory && (offset != 0 || whence != io.SeekStart) {
		return 0, experimentalsys.EISDIR
	}
	n, err := f.File.Seek(offset, whence)
	return n, errno(err)
}

// Readdir implements experimentalsys.File.
func (f *file) Readdir(n int) ([]experimentalsys.Dirent, experimentalsys.Errno) {
	if !f.directory {
		return nil, experimentalsys.ENOTDIR
	}
	entries, err := f.ReadDir(n)
	var out []experimentalsys.Dirent
	for _, e := range entries {
		d := experimentalsys.Dirent{Name: e.Name(), Type: e.Type()}
		if info, err := e.Info(); err == nil {
			d.Ino = sys.NewStat_t(info).Ino
		}
		out = append(out, d)
	}
	return out, errno(err)
}

// Write implements experimentalsys.File.
func (f *file) Write(b []byte) (int, experimentalsys.Errno) {
	if e := f.kind(); e != 0 || len(b) == 0 {
		return 0, e
	}
	n, err := f.File.Write(b)
	return n, errno(err)
}

// Pwrite implements experimentalsys.File.
func (f *file) Pwrite(b []byte, offset int64) (int, experimentalsys.Errno) {
	if e := f.kind(); e != 0 || len(b) == 0 {
		return 0, e
	}
	n, err := f.WriteAt(b, offset)
	return n, errno(err)
}

// Truncate implements experimentalsys.File.
func (f *file) Truncate(size int64) experimentalsys.Errno {
	if e := f.kind(); e != 0 {
		return e
	}
	return errno(f.File.Truncate(size))
}

// Sync implements experimentalsys.File.
func (f *file) Sync() experimentalsys.Errno { return errno(f.File.Sync()) }

// Datasync implements experimentalsys.File.
func (f *file) Datasync() experimentalsys.Errno { return errno(f.File.Sync()) }

// Utimens implements experimentalsys.File.
func (f *file) Utimens(atim, mtim int64) experimentalsys.Errno {
	raw, err := f.SyscallConn()
	if err != nil {
		return errno(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = setTimes(int(fd), atim, mtim) })
	return errno(errors.Join(err, failed))
}

// Close implements experimentalsys.File.
func (f *file) Close() experimentalsys.Errno { return errno(f.File.Close()) }
