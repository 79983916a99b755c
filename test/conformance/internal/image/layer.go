// SPDX-License-Identifier: Apache-2.0

// Package image makes the images that the conformance suite asks for, under the
// names that it asks for, out of Debian packages and of programs that are built
// from published modules: they behave like the originals, and know nothing of
// being tested.
package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// File is one entry of a layer: a directory where Mode says so, a symbolic link
// where Link is set, else a file with Content or the content of From.
type File struct {
	Path    string // absolute
	Mode    os.FileMode
	Link    string
	Content []byte
	From    string // a file on this machine
	UID     int
}

// layer collects entries for one tar; what is there first, stays.
type layer struct {
	out  *tar.Writer
	seen map[string]bool
}

func newLayer(w io.Writer) *layer { return &layer{out: tar.NewWriter(w), seen: map[string]bool{}} }

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// add writes a file, after the directories that it lies in.
func (l *layer) add(f File) error {
	name := clean(f.Path)
	if name == "" || l.seen[name] {
		return nil
	}
	if err := l.parents(name); err != nil {
		return err
	}
	l.seen[name] = true
	h := &tar.Header{Name: name, Mode: int64(f.Mode.Perm()), Uid: f.UID, Gid: f.UID, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if f.Mode&os.ModeSetuid != 0 {
		h.Mode |= 0o4000
	}
	if f.Mode&os.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch {
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return l.out.WriteHeader(h)
	case f.Link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
		return l.out.WriteHeader(h)
	case f.From != "":
		return l.copyFile(h, f.From)
	}
	h.Size = int64(len(f.Content))
	if err := l.out.WriteHeader(h); err != nil {
		return err
	}
	_, err := l.out.Write(f.Content)
	return err
}

func (l *layer) copyFile(h *tar.Header, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	h.Size = info.Size()
	if err := l.out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(l.out, in)
	return err
}

func (l *layer) parents(name string) error {
	for i, c := range name {
		if c == '/' && !l.seen[name[:i]] {
			if err := l.add(File{Path: name[:i], Mode: os.ModeDir | 0o755}); err != nil {
				return err
			}
		}
	}
	return nil
}

// merge takes over the entries of another tar, such as a package's.
func (l *layer) merge(in io.Reader) error {
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a package: %w", err)
		}
		name := clean(h.Name)
		if name == "" || l.seen[name] || documentation(name) {
			continue
		}
		l.seen[name] = true
		h.Name = name
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname = clean(h.Linkname)
		}
		h.Format = tar.FormatPAX
		if err := l.out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(l.out, r); err != nil {
			return err
		}
	}
}

// documentation is what no container reads.
func documentation(name string) bool {
	for _, p := range []string{"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/lintian/"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func (l *layer) close() error { return l.out.Close() }
