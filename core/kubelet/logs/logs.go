// SPDX-License-Identifier: Apache-2.0

// Package logs reads and rotates what containers write: files in the CRI's
// format, a line each of time, stream, tag and text.
//
// Readers hold no more than a line in memory, whatever a container wrote, and a
// follower is woken by the file system and by the container's end, not by a clock.
package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/wasmplane/wasmplane/core/run"
)

// maxLine bounds a line of a log file; the runtime splits longer ones at 16 KiB.
const maxLine = 256 << 10

// Options of a reader.
type Options struct {
	// Tail is how many lines of the end to begin with; nil is all.
	Tail *int64
	// Since leaves out what was written before.
	Since time.Time
	// Limit of bytes written; nil is none.
	Limit *int64
	// Timestamps before each line.
	Timestamps bool
	// Stdout and Stderr say which streams to read.
	Stdout, Stderr bool
	// Follow goes on with what is written, until Done is closed.
	Follow bool
	// Done is closed when the container has exited.
	Done <-chan struct{}
}

// Line of a log file.
type Line struct {
	Time    time.Time
	Stderr  bool
	Partial bool
	// Text without its newline; it shares memory with what was parsed.
	Text []byte
}

// Parse a line of a log file, without its newline.
func Parse(b []byte) (Line, error) {
	var l Line
	stamp, rest, ok := bytes.Cut(b, []byte{' '})
	if !ok {
		return l, fmt.Errorf("log line %q has no timestamp", clip(b))
	}
	var err error
	if l.Time, err = time.Parse(time.RFC3339Nano, string(stamp)); err != nil {
		return l, fmt.Errorf("log line %q: %w", clip(b), err)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	switch string(stream) {
	case "stdout":
	case "stderr":
		l.Stderr = true
	default:
		return l, fmt.Errorf("log line %q: unexpected stream type %q", clip(b), clip(stream))
	}
	if !ok {
		return l, fmt.Errorf("log line %q has no tag", clip(b))
	}
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(tag) {
	case "F":
	case "P":
		l.Partial = true
	default:
		return l, fmt.Errorf("log line %q: unexpected tag %q", clip(b), clip(tag))
	}
	l.Text = text
	return l, nil
}

func clip(b []byte) []byte { return b[:min(len(b), 64)] }

// writer writes lines in the form asked for, up to the limit.
type writer struct {
	out, errOut io.Writer
	o           Options
	left        int64
	middle      [2]bool // of a line, by stream
}

var errLimit = errors.New("limit reached")

func newWriter(out, errOut io.Writer, o Options) *writer {
	w := &writer{out: out, errOut: errOut, o: o, left: -1}
	if o.Limit != nil {
		w.left = *o.Limit
	}
	return w
}

// entry writes one line of a log file; what cannot be parsed is left out.
func (w *writer) entry(raw []byte) error {
	l, err := Parse(raw)
	if err != nil {
		return nil //nolint:nilerr // a line cut by a crash must not end the reading
	}
	if l.Time.Before(w.o.Since) {
		return nil
	}
	dst, i := w.out, 0
	if l.Stderr {
		dst, i = w.errOut, 1
		if !w.o.Stderr {
			return nil
		}
	} else if !w.o.Stdout {
		return nil
	}
	if w.o.Timestamps && !w.middle[i] {
		if err := w.write(dst, []byte(l.Time.Format(rfc3339Fixed)+" ")); err != nil {
			return err
		}
	}
	w.middle[i] = l.Partial
	if err := w.write(dst, l.Text); err != nil || l.Partial {
		return err
	}
	return w.write(dst, []byte{'\n'})
}

// rfc3339Fixed always has nine digits, so that sorting is by time.
const rfc3339Fixed = "2006-01-02T15:04:05.000000000Z07:00"

func (w *writer) write(dst io.Writer, b []byte) error {
	if w.left >= 0 && int64(len(b)) >= w.left {
		if _, err := dst.Write(b[:w.left]); err != nil {
			return err
		}
		w.left = 0
		return errLimit
	}
	if w.left >= 0 {
		w.left -= int64(len(b))
	}
	_, err := dst.Write(b)
	return err
}

// CopyFrom reads a log from r, for engines that keep logs themselves.
func CopyFrom(ctx context.Context, r io.Reader, o Options, out, errOut io.Writer) error {
	w := newWriter(out, errOut, o)
	var lines [][]byte
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	for s.Scan() {
		lines = append(lines, bytes.Clone(s.Bytes()))
		if o.Tail != nil && int64(len(lines)) > *o.Tail {
			lines = lines[1:]
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	for _, l := range lines {
		if err := w.entry(l); err != nil {
			return ended(err)
		}
	}
	if o.Follow {
		w.flush()
		select {
		case <-ctx.Done():
		case <-o.Done:
		}
	}
	return nil
}

// flush passes on what a buffered destination has gathered.
func (w *writer) flush() {
	for _, dst := range []io.Writer{w.out, w.errOut} {
		if f, ok := dst.(interface{ Flush() }); ok {
			f.Flush()
		}
	}
}

func ended(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// Copy reads the log file at path.
func Copy(ctx context.Context, path string, o Options, out, errOut io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("failed to try resolving symlinks in path %q: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	if err := seekTail(f, o.Tail); err != nil {
		return fmt.Errorf("find the end of log %s: %w", path, err)
	}
	c := &copier{w: newWriter(out, errOut, o), path: path, o: o}
	if o.Limit != nil && *o.Limit == 0 {
		return nil
	}
	c.open(f)
	err = c.run(ctx)
	f = c.f
	return ended(err)
}

type copier struct {
	w    *writer
	path string
	o    Options
	f    *os.File
	r    *bufio.Reader
	part []byte
}

func (c *copier) open(f *os.File) {
	c.f, c.part = f, c.part[:0]
	c.r = bufio.NewReaderSize(f, 64<<10)
}

func (c *copier) run(ctx context.Context) error {
	if !c.o.Follow {
		return c.drain(ctx)
	}
	wake, stop := c.wake()
	defer stop()
	for {
		over := closed(c.o.Done)
		if err := c.drain(ctx); err != nil {
			return err
		}
		c.w.flush()
		if c.rotated() {
			if err := c.reopen(ctx); err != nil {
				return err
			}
			continue
		}
		if over {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.o.Done:
		case <-wake:
		}
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// wake is told whenever something happens in the log's directory. Where the
// system has no watches left, it looks twice a second.
func (c *copier) wake() (<-chan struct{}, func()) {
	out := make(chan struct{}, 1)
	fw, err := fsnotify.NewWatcher()
	if err == nil {
		if err = fw.Add(filepath.Dir(c.path)); err != nil {
			_ = fw.Close()
		}
	}
	quit := make(chan struct{})
	if err != nil {
		run.Go("logs: look at a log", func() error {
			t := time.NewTicker(500 * time.Millisecond)
			defer t.Stop()
			for {
				select {
				case <-quit:
					return nil
				case <-t.C:
					nudge(out)
				}
			}
		})
		return out, func() { close(quit) }
	}
	run.Go("logs: changes of a log", func() error { // both end with fw
		for range fw.Events {
			nudge(out)
		}
		return nil
	})
	run.Go("logs: lost changes of a log", func() error {
		for range fw.Errors {
			nudge(out)
		}
		return nil
	})
	return out, func() { _ = fw.Close() }
}

func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// drain copies what is there.
func (c *copier) drain(ctx context.Context) error {
	for ctx.Err() == nil {
		b, err := c.r.ReadSlice('\n')
		if len(c.part)+len(b) <= maxLine {
			c.part = append(c.part, b...)
		}
		switch {
		case err == nil:
			if err := c.w.entry(bytes.TrimSuffix(c.part, []byte{'\n'})); err != nil {
				return err
			}
			c.part = c.part[:0]
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("read log %s: %w", c.path, err)
		}
	}
	return nil
}

// rotated tells whether another file has the log's name now.
func (c *copier) rotated() bool {
	mine, err1 := c.f.Stat()
	now, err2 := os.Stat(c.path)
	return err1 == nil && err2 == nil && !os.SameFile(mine, now)
}

func (c *copier) reopen(ctx context.Context) error {
	if err := c.drain(ctx); err != nil { // what was written to the old one last
		return err
	}
	f, err := os.Open(c.path)
	if err != nil {
		return fmt.Errorf("open log after its rotation: %w", err)
	}
	_ = c.f.Close()
	c.open(f)
	return nil
}

// seekTail goes to where the last n lines begin.
func seekTail(f *os.File, n *int64) error {
	if n == nil {
		return nil
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || *n <= 0 || size == 0 {
		return err
	}
	const block = 16 << 10
	buf := make([]byte, block)
	left := *n
	for end := size; end > 0; {
		start := max(end-block, 0)
		b := buf[:end-start]
		if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != '\n' || start+int64(i) == size-1 {
				continue
			}
			if left--; left == 0 {
				_, err := f.Seek(start+int64(i)+1, io.SeekStart)
				return err
			}
		}
		end = start
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// Tail is the text of a log's last lines, at most so many bytes; empty if it cannot be read.
func Tail(ctx context.Context, path string, lines, size int64) string {
	var b strings.Builder
	if err := Copy(ctx, path, Options{Tail: &lines, Stdout: true, Stderr: true}, &b, &b); err != nil {
		return ""
	}
	s := strings.ToValidUTF8(b.String(), "\uFFFD")
	if over := int64(len(s)) - size; over > 0 {
		s = strings.ToValidUTF8(s[over:], "")
	}
	return s
}
