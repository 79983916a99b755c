// SPDX-License-Identifier: Apache-2.0

package airgap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// Source is an archive somewhere.
type Source struct {
	// Name of it, for messages.
	Name string
	// Size in bytes; -1 = nobody knows yet.
	Size int64
	// From reads it from an offset on.
	From func(ctx context.Context, offset int64) (io.ReadCloser, error)
}

// FileSource is a file.
func FileSource(path string) (Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Source{}, err
	}
	if !info.Mode().IsRegular() {
		return Source{}, fmt.Errorf("%s is no regular file: name an archive of `wasmplane airgap create`", path)
	}
	return Source{Name: path, Size: info.Size(), From: func(_ context.Context, offset int64) (io.ReadCloser, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}}, nil
}

// Check decides about an archive by its list, the list's bytes and their signature (empty = none), before more of it is read.
type Check func(l *List, text, signature []byte) error

// RefusedError is a Check's answer, or what is wrong with the archive itself: to ask for it again changes nothing.
type RefusedError struct{ Err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap implements errors.Unwrap.
func (e *RefusedError) Unwrap() error { return e.Err }

// keptForm is how a kept archive is called: by the digest of its list and signature.
var keptForm = regexp.MustCompile(`^[0-9a-f]{64}\.tar$`)

// Keep copies an archive into a folder, and compares all of it meanwhile: what it returns has everything that its list
// names, and nothing else. It goes on where an earlier call broke off; what is there already is only compared. The archive
// that was kept last counts as the newest.
func Keep(ctx context.Context, dir string, from Source, check Check, progress Progress) (*Archive, error) {
	a, err := keep(ctx, dir, from, check, progress)
	if err != nil {
		return nil, fmt.Errorf("take over %s: %w", from.Name, err)
	}
	return a, nil
}

func keep(ctx context.Context, dir string, from Source, check Check, progress Progress) (*Archive, error) {
	p, err := headOf(ctx, from)
	if err != nil {
		return nil, err
	}
	if err := check(p.list, p.text, p.signature); err != nil {
		return nil, &RefusedError{err}
	}
	if from.Size >= 0 && from.Size != p.total {
		return nil, fmt.Errorf("it has %d bytes, and its list is of %d: copy it again", from.Size, p.total)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := sweep(dir); err != nil {
		return nil, err
	}
	for _, f := range p.list.Files {
		if f.Kind() == OfImages {
			p.besides += f.Size // the node has them once more
		}
	}
	name := p.kept()
	file, part := filepath.Join(dir, name), filepath.Join(dir, "."+name+".part")
	if _, err := os.Stat(file); err == nil { // it is compared like what was begun
		if err := os.Rename(file, part); err != nil {
			return nil, err
		}
	}
	src := &sequence{from: from, plan: p}
	defer src.close()
	if err := p.fill(ctx, part, src.open, progress); err != nil {
		return nil, err
	}
	a, err := openFile(part)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(a.checkImages(), a.Close()); err != nil {
		return nil, errors.Join(&RefusedError{err}, os.Remove(part))
	}
	if err := os.Remove(imported(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	now := time.Now()
	if err := errors.Join(os.Chtimes(part, now, now), place(part, file)); err != nil {
		return nil, err
	}
	return openFile(file)
}

// abandoned is how long ago a copy was written to last that nobody goes on with.
const abandoned = 7 * 24 * time.Hour

// sweep removes copies that were begun and given up.
func sweep(dir string) error {
	parts, err := filepath.Glob(filepath.Join(dir, ".*.part"))
	if err != nil {
		return err
	}
	for _, part := range parts {
		if info, err := os.Lstat(part); err == nil && time.Since(info.ModTime()) > abandoned {
			if err := os.Remove(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// headOf reads the list of an archive.
func headOf(ctx context.Context, from Source) (*plan, error) {
	r, err := from.From(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readHead(r)
}

// Peek reads what an archive's list says, and the list's signature; empty = there is none. The rest was not looked at.
func Peek(ctx context.Context, from Source) (l *List, text, signature []byte, err error) {
	p, err := headOf(ctx, from)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read %s: %w", from.Name, err)
	}
	return p.list, p.text, p.signature, nil
}

// sequence reads an archive's files in order, from the first one that is asked for.
type sequence struct {
	from Source
	plan *plan
	r    io.ReadCloser
}

func (s *sequence) open(ctx context.Context, i int) (io.ReadCloser, error) {
	if s.r == nil {
		r, err := s.from.From(ctx, s.plan.at[i])
		if err != nil {
			return nil, err
		}
		s.r = r
	}
	file := s.plan.list.Files[i]
	want, err := header(file.Path, file.Size)
	if err != nil {
		return nil, err
	}
	got := make([]byte, block)
	if _, err := io.ReadFull(s.r, got); err != nil || string(got) != string(want) {
		return nil, errors.New("it is not where the list has it: the archive is damaged, or was changed")
	}
	return &one{Reader: io.LimitReader(s.r, file.Size), of: s.r, rest: padding(file.Size)}, nil
}

func (s *sequence) close() {
	if s.r != nil {
		_ = s.r.Close()
	}
}

// one is one file of a sequence.
type one struct {
	io.Reader
	of   io.Reader
	rest int64
}

// Close leaves the sequence at the next file. What is there instead of zeros is nothing that anybody uses.
func (o *one) Close() error {
	_, err := io.CopyN(io.Discard, o.of, o.rest)
	return err
}

// IsKept says whether a file is called like an archive that Keep has put there.
func IsKept(name string) bool { return keptForm.MatchString(name) }

// Kept are the archives of a folder, the newest first. A folder that is not there has none.
func Kept(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the folder of archives: %w", err)
	}
	type kept struct {
		file string
		at   time.Time
	}
	var all []kept
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && IsKept(e.Name()) {
			all = append(all, kept{filepath.Join(dir, e.Name()), info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b kept) int { return b.at.Compare(a.at) })
	var out []string
	for _, k := range all {
		out = append(out, k.file)
	}
	return out, nil
}

// kept is how the archive is called in a folder of archives. The signature counts: the same list with another one is another archive.
func (p *plan) kept() string {
	return strings.TrimPrefix(Digest(p.head), "sha256:") + ".tar"
}

// imported is the file that remembers that an archive's images were imported.
func imported(file string) string {
	return filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".imported")
}

// Imported says whether the archive's images were imported since it was kept last: what has come under their names since then
// is newer.
func (a *Archive) Imported() bool {
	_, err := os.Stat(imported(a.File))
	return err == nil
}

// SetImported remembers that the images were imported.
func (a *Archive) SetImported() error {
	if a.Imported() {
		return nil
	}
	return atomicfile.Write(imported(a.File), nil, 0o600)
}

// Has says whether a folder has an archive already, as far as that can be seen without reading it: Keep has read it once.
// check decides about it again.
func Has(ctx context.Context, dir string, from Source, check Check) (bool, error) {
	p, err := headOf(ctx, from)
	if err == nil {
		err = check(p.list, p.text, p.signature)
	}
	if err != nil {
		return false, fmt.Errorf("take over %s: %w", from.Name, err)
	}
	info, err := os.Stat(filepath.Join(dir, p.kept()))
	return err == nil && info.Size() == p.total, nil
}
