// SPDX-License-Identifier: Apache-2.0

// Package wasifiles is wasi:filesystem of WASI 0.2, on file systems as the engine knows them.
package wasifiles

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"

	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/workload/wasiio"
)

const (
	files       = "wasi:filesystem/types"
	entryStream = "directory-entry-stream"
)

// Flags of wasi:filesystem/types.
const (
	flagRead, flagWrite, flagMutate = 1 << 0, 1 << 1, 1 << 5
	followLinks                     = 1 << 0
	openCreate, openDirectory       = 1 << 0, 1 << 1
	openExclusive, openTruncate     = 1 << 2, 1 << 3
)

// descriptor is an open file, or a directory. A directory is kept by its path.
type descriptor struct {
	fs    experimentalsys.FS
	path  string // below the tree; "." = its top
	file  experimentalsys.File
	flags canon.Flags
}

func (d *descriptor) End() {
	if d.file != nil {
		_ = d.file.Close() // nothing is buffered here
	}
}

// Open gives a component a directory that is opened for it.
func Open(w *wasiio.Table, c *link.Call, fs experimentalsys.FS) *canon.Handle {
	return w.Give(c, files, "descriptor", &descriptor{fs: fs, path: ".", flags: flagRead | flagWrite | flagMutate})
}

// Functions are those of wasi:filesystem/types.
var Functions = wasiio.In(files, map[string]wasiio.Function{
	"[method]descriptor.read-via-stream": stream(wasiio.InputStream,
		func(d *descriptor, at uint64) any { return &fileSource{d: d, at: int64(at)} }),
	"[method]descriptor.write-via-stream": stream(wasiio.OutputStream, func(d *descriptor, at uint64) any {
		return &fileSink{d: d, at: int64(at)}
	}),
	"[method]descriptor.append-via-stream": stream(wasiio.OutputStream,
		func(d *descriptor, _ uint64) any { return &fileSink{d: d, append: true} }),
	"[method]descriptor.advise": wasiio.OK,
	"[method]descriptor.sync-data": onFile(func(d *descriptor, _ []any) (any, experimentalsys.Errno) {
		return nil, d.file.Datasync()
	}),
	"[method]descriptor.sync": func(w *wasiio.Table, _ *link.Call, args []any) any {
		if d := wasiio.Resource[*descriptor](w, args, 0); d.file != nil {
			return result(nil, d.file.Sync())
		}
		return canon.OK(nil)
	},
	"[method]descriptor.get-flags": func(w *wasiio.Table, _ *link.Call, args []any) any {
		return canon.OK(wasiio.Resource[*descriptor](w, args, 0).flags)
	},
	"[method]descriptor.get-type": func(w *wasiio.Table, _ *link.Call, args []any) any {
		st, e := wasiio.Resource[*descriptor](w, args, 0).stat()
		return result(kind(st.Mode), e)
	},
	"[method]descriptor.set-size": onFile(func(d *descriptor, args []any) (any, experimentalsys.Errno) {
		return nil, d.file.Truncate(int64(link.Arg[uint64](args, 1)))
	}),
	"[method]descriptor.set-times": func(w *wasiio.Table, _ *link.Call, args []any) any {
		d := wasiio.Resource[*descriptor](w, args, 0)
		accessed, modified := when(args, 1), when(args, 2)
		if d.file != nil {
			return result(nil, d.file.Utimens(accessed, modified))
		}
		return result(nil, d.fs.Utimens(d.path, accessed, modified))
	},
	"[method]descriptor.read": onFile(func(d *descriptor, args []any) (any, experimentalsys.Errno) {
		b := make([]byte, wasiio.Clamp(link.Arg[uint64](args, 1)))
		n, e := d.file.Pread(b, int64(link.Arg[uint64](args, 2)))
		return []any{b[:n], n == 0 && len(b) > 0}, e
	}),
	"[method]descriptor.write": onFile(func(d *descriptor, args []any) (any, experimentalsys.Errno) {
		n, e := d.file.Pwrite(link.Arg[[]byte](args, 1), int64(link.Arg[uint64](args, 2)))
		return uint64(n), e
	}),
	"[method]descriptor.read-directory": readDirectory,
	"[method]descriptor.stat": func(w *wasiio.Table, _ *link.Call, args []any) any {
		st, e := wasiio.Resource[*descriptor](w, args, 0).stat()
		return result(status(st), e)
	},
	"[method]descriptor.is-same-object": func(w *wasiio.Table, _ *link.Call, args []any) any {
		a, e := wasiio.Resource[*descriptor](w, args, 0).stat()
		b, f := wasiio.Resource[*descriptor](w, args, 1).stat()
		return e == 0 && f == 0 && a.Dev == b.Dev && a.Ino == b.Ino
	},
	"[method]descriptor.metadata-hash": func(w *wasiio.Table, _ *link.Call, args []any) any {
		st, e := wasiio.Resource[*descriptor](w, args, 0).stat()
		return result(hash(st), e)
	},

	"[method]descriptor.open-at": openAt,
	"[method]descriptor.stat-at": at(2, func(d *descriptor, name string, args []any) (any, experimentalsys.Errno) {
		st, e := d.statAt(link.Arg[canon.Flags](args, 1), name)
		return status(st), e
	}),
	"[method]descriptor.metadata-hash-at": at(2, func(d *descriptor, name string, args []any) (any, experimentalsys.Errno) {
		st, e := d.statAt(link.Arg[canon.Flags](args, 1), name)
		return hash(st), e
	}),
	"[method]descriptor.set-times-at": at(2, func(d *descriptor, name string, args []any) (any, experimentalsys.Errno) {
		return nil, d.fs.Utimens(name, when(args, 3), when(args, 4))
	}),
	"[method]descriptor.create-directory-at": at(1, func(d *descriptor, name string, _ []any) (any, experimentalsys.Errno) {
		return nil, d.fs.Mkdir(name, 0o777)
	}),
	"[method]descriptor.remove-directory-at": at(1, func(d *descriptor, name string, _ []any) (any, experimentalsys.Errno) {
		return nil, d.fs.Rmdir(name)
	}),
	"[method]descriptor.unlink-file-at": at(1, func(d *descriptor, name string, _ []any) (any, experimentalsys.Errno) {
		return nil, d.fs.Unlink(name)
	}),
	"[method]descriptor.readlink-at": at(1, func(d *descriptor, name string, _ []any) (any, experimentalsys.Errno) {
		return d.fs.Readlink(name)
	}),
	"[method]descriptor.symlink-at": at(2, func(d *descriptor, name string, args []any) (any, experimentalsys.Errno) {
		return nil, d.fs.Symlink(link.Arg[string](args, 1), name)
	}),
	"[method]descriptor.rename-at": twoPaths(1, func(fs experimentalsys.FS, from, to string) experimentalsys.Errno {
		return fs.Rename(from,
			to)
	}),
	"[method]descriptor.link-at": twoPaths(2, func(fs experimentalsys.FS, from, to string) experimentalsys.Errno {
		return fs.Link(from,
			to)
	}),

	"[method]directory-entry-stream.read-directory-entry": func(w *wasiio.Table, _ *link.Call, args []any) any {
		return wasiio.Resource[*entries](w, args, 0).next()
	},
	"filesystem-error-code": func(w *wasiio.Table, _ *link.Call, args []any) any {
		var e experimentalsys.Errno
		is := errors.As(wasiio.Resource[error](w, args, 0), &e)
		return wasiio.Some(code(e), is)
	},
})

// codes are the cases of error-code.
var codes = map[experimentalsys.Errno]uint32{
	experimentalsys.EACCES: 0, experimentalsys.EAGAIN: 1, experimentalsys.EBADF: 3, experimentalsys.EEXIST: 7,
	experimentalsys.EINTR: 11, experimentalsys.EINVAL: 12, experimentalsys.EIO: 13, experimentalsys.EISDIR: 14,
	experimentalsys.ELOOP: 15, experimentalsys.ENAMETOOLONG: 18, experimentalsys.ENOENT: 20, experimentalsys.ENOTDIR: 24,
	experimentalsys.ENOTEMPTY: 25, experimentalsys.ENOTSUP: 27, experimentalsys.ENOSYS: 27, experimentalsys.EPERM: 31,
	experimentalsys.EROFS: 33,
}

func code(e experimentalsys.Errno) canon.Variant {
	if n, known := codes[e]; known {
		return wasiio.Enum(n)
	}
	return wasiio.Enum(13) // io
}

func result(v any, e experimentalsys.Errno) any {
	if e != 0 {
		return canon.Error(code(e))
	}
	return canon.OK(v)
}

// onFile is a function of a descriptor that has to be a file's.
func onFile(f func(d *descriptor, args []any) (any, experimentalsys.Errno)) wasiio.Function {
	return func(w *wasiio.Table, _ *link.Call, args []any) any {
		d := wasiio.Resource[*descriptor](w, args, 0)
		if d.file == nil {
			return result(nil, experimentalsys.EISDIR)
		}
		return result(f(d, args))
	}
}

// below is the path of something below a directory, as the tree takes it. It doesn't lead above the directory.
func (d *descriptor) below(name string) (string, experimentalsys.Errno) {
	switch {
	case d.file != nil:
		return "", experimentalsys.ENOTDIR
	case name == "":
		return "", experimentalsys.ENOENT
	}
	rel := path.Clean(name)
	if path.IsAbs(rel) || rel == ".." || strings.HasPrefix(rel, "../") || strings.Contains(name, "\x00") {
		return "", experimentalsys.EPERM
	}
	p := path.Join(d.path, rel)
	if strings.HasSuffix(name, "/") && p != "." {
		p += "/"
	}
	return p, 0
}

// at is a function of a directory and of what lies at a path below it, which is its nth argument.
func at(n int, f func(d *descriptor, name string, args []any) (any, experimentalsys.Errno)) wasiio.Function {
	return func(w *wasiio.Table, _ *link.Call, args []any) any {
		d := wasiio.Resource[*descriptor](w, args, 0)
		name, e := d.below(link.Arg[string](args, n))
		if e != 0 {
			return result(nil, e)
		}
		return result(f(d, name, args))
	}
}

// twoPaths is a function from a path, the nth argument, to one below another directory. Both are in one tree.
func twoPaths(n int, f func(fs experimentalsys.FS, from, to string) experimentalsys.Errno) wasiio.Function {
	return func(w *wasiio.Table, _ *link.Call, args []any) any {
		from, to := wasiio.Resource[*descriptor](w, args, 0), wasiio.Resource[*descriptor](w, args, n+1)
		source, e := from.below(link.Arg[string](args, n))
		if e != 0 {
			return result(nil, e)
		}
		target, e := to.below(link.Arg[string](args, n+2))
		switch {
		case e != 0:
			return result(nil, e)
		case from.fs != to.fs:
			return canon.Error(wasiio.Enum(36)) // cross-device
		}
		return result(nil, f(from.fs, source, target))
	}
}

func (d *descriptor) stat() (sys.Stat_t, experimentalsys.Errno) {
	if d.file != nil {
		return d.file.Stat()
	}
	return d.fs.Stat(d.path)
}

func (d *descriptor) statAt(flags canon.Flags, name string) (sys.Stat_t, experimentalsys.Errno) {
	if flags&followLinks != 0 {
		return d.fs.Stat(name)
	}
	return d.fs.Lstat(name)
}

// openAt opens a file or directory, which may be made by that.
func openAt(w *wasiio.Table, c *link.Call, args []any) any {
	d := wasiio.Resource[*descriptor](w, args, 0)
	name, e := d.below(link.Arg[string](args, 2))
	if e != 0 {
		return result(nil, e)
	}
	open, flags := link.Arg[canon.Flags](args, 3), link.Arg[canon.Flags](args, 4)
	mode := experimentalsys.O_RDONLY
	switch {
	case flags&flagRead != 0 && flags&flagWrite != 0:
		mode = experimentalsys.O_RDWR
	case flags&flagWrite != 0:
		mode = experimentalsys.O_WRONLY
	}
	for flag, theirs := range map[canon.Flags]experimentalsys.Oflag{
		openCreate: experimentalsys.O_CREAT, openDirectory: experimentalsys.O_DIRECTORY,
		openExclusive: experimentalsys.O_EXCL, openTruncate: experimentalsys.O_TRUNC,
	} {
		if open&flag != 0 {
			mode |= theirs
		}
	}
	if link.Arg[canon.Flags](args, 1)&followLinks == 0 {
		mode |= experimentalsys.O_NOFOLLOW
	}
	f, e := d.fs.OpenFile(name, mode, 0o666)
	if e != 0 {
		return result(nil, e)
	}
	opened := &descriptor{fs: d.fs, path: strings.TrimSuffix(name, "/"), file: f, flags: flags}
	if is, e := f.IsDir(); e != 0 || is {
		if closed := f.Close(); e == 0 {
			e = closed
		}
		if opened.file = nil; e != 0 {
			return result(nil, e)
		}
	}
	return canon.OK(w.Give(c, files, "descriptor", opened))
}

// kind is the case of descriptor-type.
func kind(m fs.FileMode) canon.Variant {
	switch m.Type() {
	case fs.ModeDir:
		return wasiio.Enum(3)
	case fs.ModeNamedPipe:
		return wasiio.Enum(4)
	case fs.ModeSymlink:
		return wasiio.Enum(5)
	case 0:
		return wasiio.Enum(6)
	case fs.ModeSocket:
		return wasiio.Enum(7)
	case fs.ModeDevice:
		return wasiio.Enum(1)
	case fs.ModeDevice | fs.ModeCharDevice:
		return wasiio.Enum(2)
	default:
		return wasiio.Enum(0)
	}
}

// status is the record descriptor-stat.
func status(st sys.Stat_t) any {
	since := func(ns sys.EpochNanos) any { return canon.Some(wasiio.Datetime(time.Unix(0, ns))) }
	return []any{kind(st.Mode), st.Nlink, uint64(st.Size), since(st.Atim), since(st.Mtim), since(st.Ctim)}
}

// hash tells files apart, and versions of a file.
func hash(st sys.Stat_t) any {
	var out []any
	for _, seed := range []uint64{0, 1} {
		h := fnv.New64a()
		for _, v := range []uint64{seed, st.Dev, st.Ino, uint64(st.Size), uint64(st.Mtim)} {
			for i := range 8 {
				_, _ = h.Write([]byte{byte(v >> (8 * i))}) // never fails
			}
		}
		out = append(out, h.Sum64())
	}
	return out
}

// when is a new-timestamp.
func when(args []any, i int) int64 {
	switch v := link.Arg[canon.Variant](args, i); v.Case {
	case 1:
		return time.Now().UnixNano()
	case 2:
		if t, is := v.Value.([]any); is && len(t) == 2 {
			return int64(link.Arg[uint64](t, 0))*int64(time.Second) + int64(link.Arg[uint32](t, 1))
		}
	}
	return experimentalsys.UTIME_OMIT
}

// stream is a function that gives a stream of a file, from a place on.
func stream(name string, of func(d *descriptor, at uint64) any) wasiio.Function {
	return func(w *wasiio.Table, c *link.Call, args []any) any {
		d := wasiio.Resource[*descriptor](w, args, 0)
		if d.file == nil {
			return result(nil, experimentalsys.EISDIR)
		}
		var from uint64
		if len(args) > 1 {
			from = link.Arg[uint64](args, 1)
		}
		return canon.OK(w.Give(c, wasiio.Streams, name, of(d, from)))
	}
}

// fileSource reads a file from a place on. The file is the descriptor's: a component drops the stream first.
type fileSource struct {
	wasiio.Always
	d  *descriptor
	at int64
}

func (s *fileSource) Pull(_ context.Context, n int, _ bool) ([]byte, error) {
	b := make([]byte, n)
	got, e := s.d.file.Pread(b, s.at)
	s.at += int64(got)
	switch {
	case e != 0:
		return nil, e
	case got == 0 && n > 0:
		return nil, io.EOF
	}
	return b[:got], nil
}

// fileSink writes a file from a place on, or at its end.
type fileSink struct {
	wasiio.Always
	d      *descriptor
	at     int64
	append bool
}

func (s *fileSink) Room() (int, error)          { return wasiio.Most, nil }
func (s *fileSink) Flush(context.Context) error { return nil }

func (s *fileSink) Push(_ context.Context, b []byte) error {
	put := func(b []byte) (int, experimentalsys.Errno) { return s.d.file.Pwrite(b, s.at) }
	if s.append {
		if e := s.d.file.SetAppend(true); e != 0 {
			return e
		}
		defer s.d.file.SetAppend(false) // what is written to a place by another stream goes there
		put = s.d.file.Write
	}
	for len(b) > 0 {
		n, e := put(b)
		if e != 0 {
			return e
		}
		s.at += int64(n)
		b = b[n:]
	}
	return nil
}

// entries are what is left of a directory's entries.
type entries struct {
	file experimentalsys.File
	read []experimentalsys.Dirent
}

func (s *entries) End() { _ = s.file.Close() }

// manyEntries are read at a time.
const manyEntries = 128

func (s *entries) next() any {
	if len(s.read) == 0 {
		read, e := s.file.Readdir(manyEntries)
		if e != 0 {
			return result(nil, e)
		}
		if s.read = read; len(read) == 0 {
			return canon.OK(canon.None())
		}
	}
	d := s.read[0]
	s.read = s.read[1:]
	return canon.OK(canon.Some([]any{kind(d.Type), d.Name}))
}

func readDirectory(w *wasiio.Table, c *link.Call, args []any) any {
	d := wasiio.Resource[*descriptor](w, args, 0)
	if d.file != nil {
		return result(nil, experimentalsys.ENOTDIR)
	}
	f, e := d.fs.OpenFile(d.path, experimentalsys.O_RDONLY|experimentalsys.O_DIRECTORY, 0)
	if e != 0 {
		return result(nil, e)
	}
	return canon.OK(w.Give(c, files, entryStream, &entries{file: f}))
}
