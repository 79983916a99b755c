// SPDX-License-Identifier: Apache-2.0

package airgap

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// spare is what has to be left on a disk besides the archive, in bytes.
const spare = 64 << 20

// Progress gets how many bytes of how many there are, and which file is next.
type Progress func(done, total int64, file string)

func (p Progress) report(done, total int64, file string) {
	if p != nil {
		p(done, total, file)
	}
}

// reportEvery is after how many bytes of a file their number is reported.
const reportEvery = 8 << 20

// counter reports how much of a file was written.
type counter struct {
	n, reported int64
	report      func(n int64)
}

func (c *counter) Write(b []byte) (int, error) {
	if c.n += int64(len(b)); c.n-c.reported >= reportEvery {
		c.reported = c.n
		c.report(c.n)
	}
	return len(b), nil
}

// Content is what opens the files of an archive that is made.
type Content func(ctx context.Context, f File) (io.ReadCloser, error)

// opener opens file i of a list.
type opener func(ctx context.Context, i int) (io.ReadCloser, error)

// Write makes an archive. sign signs the list; nil = it is not signed. What a call before it that
// broke off has written beside file, and what is still right, is not written again.
func Write(ctx context.Context, file string, l *List, sign func([]byte) ([]byte, error), content Content, progress Progress) error {
	l.Form = Version
	text, err := l.encode()
	if err != nil {
		return err
	}
	if err := l.check(); err != nil {
		return fmt.Errorf("make %s: %w", file, err)
	}
	var signature []byte
	if sign != nil {
		if signature, err = sign(text); err != nil {
			return fmt.Errorf("sign the list of %s: %w", file, err)
		}
	}
	p, err := newPlan(l, text, signature)
	if err != nil {
		return err
	}
	part := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".part")
	open := func(ctx context.Context, i int) (io.ReadCloser, error) { return content(ctx, l.Files[i]) }
	if err := p.fill(ctx, part, open, progress); err != nil {
		return fmt.Errorf("make %s: %w", file, err)
	}
	return place(part, file)
}

// place gives a whole file its name.
func place(part, file string) error {
	if err := os.Rename(part, file); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(file))
}

// fill writes an archive into a file, of which the beginning may be there already. open gives the
// contents of those files that are not, in order. Each is compared with what the list says of it.
func (p *plan) fill(ctx context.Context, path string, open opener, progress Progress) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process writes %s: wait until it is done (%w)", path, err)
	}
	from, err := p.whole(ctx, f)
	if err != nil {
		return err
	}
	if from < len(p.list.Files) {
		if err := room(path, p.total-p.offset(from)+p.besides); err != nil {
			return err
		}
	}
	if err := f.Truncate(p.offset(from)); err != nil {
		return err
	}
	if from == 0 {
		if _, err := f.WriteAt(p.head, 0); err != nil {
			return err
		}
	}
	for i := from; i < len(p.list.Files); i++ {
		if err := p.member(ctx, f, i, open, progress); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", p.list.Files[i].Path, err), f.Sync())
		}
	}
	if err := f.Truncate(p.total); err != nil { // the end is of zeros
		return err
	}
	progress.report(p.total, p.total, "")
	return f.Sync()
}

// offset is where file i begins, or the end of the last one.
func (p *plan) offset(i int) int64 {
	switch {
	case i < len(p.at):
		return p.at[i]
	default:
		return p.total - 2*block
	}
}

func (p *plan) member(ctx context.Context, out *os.File, i int, open opener, progress Progress) error {
	file := p.list.Files[i]
	progress.report(p.at[i], p.total, file.Path)
	h, err := header(file.Path, file.Size)
	if err != nil {
		return err
	}
	in, err := open(ctx, i)
	if err != nil {
		return err
	}
	defer in.Close()
	sum := sha256.New()
	w := io.NewOffsetWriter(out, p.content(i))
	written := &counter{report: func(n int64) { progress.report(p.content(i)+n, p.total, file.Path) }}
	n, err := io.Copy(io.MultiWriter(w, sum, written), io.LimitReader(&cancelled{ctx, in}, file.Size+1))
	if err != nil {
		return err
	}
	if n != file.Size || "sha256:"+hex.EncodeToString(sum.Sum(nil)) != file.Digest {
		return fmt.Errorf("%d bytes of the digest sha256:%x were read: expected %d of %s; it is damaged, or was changed meanwhile", n, sum.Sum(nil), file.Size, file.Digest)
	}
	if _, err := w.Write(make([]byte, padding(file.Size))); err != nil {
		return err
	}
	// Last: a file without its header was not written whole.
	_, err = out.WriteAt(h, p.at[i])
	return err
}

// whole is how many files are in an archive's beginning as the list says.
func (p *plan) whole(ctx context.Context, f *os.File) (int, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is no regular file: move it away", f.Name())
	}
	head := make([]byte, len(p.head))
	if _, err := f.ReadAt(head, 0); err != nil || !bytes.Equal(head, p.head) {
		return 0, nil //nolint:nilerr // nothing of it is there
	}
	for i := range p.list.Files {
		if p.at[i]+block > info.Size() {
			return i, nil
		}
		if err := p.compare(ctx, f, i); err != nil {
			return i, ctx.Err()
		}
	}
	return len(p.list.Files), nil
}

// compare reads file i of an archive and holds it against the list.
func (p *plan) compare(ctx context.Context, r io.ReaderAt, i int) error {
	file := p.list.Files[i]
	want, err := header(file.Path, file.Size)
	if err != nil {
		return err
	}
	got := make([]byte, block)
	if _, err := r.ReadAt(got, p.at[i]); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("%s is not where the list has it: it is damaged, or was changed", file.Path)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, &cancelled{ctx, io.NewSectionReader(r, p.content(i), file.Size)}); err != nil {
		return err
	}
	if "sha256:"+hex.EncodeToString(sum.Sum(nil)) != file.Digest {
		return fmt.Errorf("%s has not the digest %s: it is damaged, or was changed", file.Path, file.Digest)
	}
	rest := make([]byte, padding(file.Size))
	if _, err := r.ReadAt(rest, p.content(i)+file.Size); err != nil && len(rest) > 0 || !zero(rest) {
		return fmt.Errorf("there is something behind %s: it is damaged, or was changed", file.Path)
	}
	return nil
}

// room says whether a disk has as many bytes.
func room(path string, need int64) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &s); err != nil {
		return &fs.PathError{Op: "statfs", Path: filepath.Dir(path), Err: err}
	}
	if free := int64(s.Bavail) * int64(s.Bsize); free < need+spare {
		return fmt.Errorf("the disk of %s has %d MB free, and %d MB are needed: make room, and run it again", filepath.Dir(path), free>>20, (need+spare)>>20)
	}
	return nil
}

// cancelled ends reading when ctx does.
type cancelled struct {
	ctx context.Context //nolint:containedctx // it lives for one copy
	r   io.Reader
}

func (c *cancelled) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}
