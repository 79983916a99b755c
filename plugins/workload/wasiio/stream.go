// SPDX-License-Identifier: Apache-2.0

package wasiio

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/link"
)

// Names of wasi:io/streams.
const (
	Streams      = "wasi:io/streams"
	InputStream  = "input-stream"
	OutputStream = "output-stream"
)

// Source is an input stream. Pull answers at most n bytes, none if there are none yet and it is not to block, and io.EOF
// at the end.
type Source interface {
	Pollable
	Pull(ctx context.Context, n int, block bool) ([]byte, error)
}

// Sink is an output stream. Room says how much may be written without waiting.
type Sink interface {
	Pollable
	Room() (int, error)
	Push(ctx context.Context, b []byte) error
	Flush(ctx context.Context) error
}

var streamFunctions = Join(In(Streams, map[string]Function{
	"[method]input-stream.read":          read(false),
	"[method]input-stream.blocking-read": read(true),
	"[method]input-stream.skip":          skip(false),
	"[method]input-stream.blocking-skip": skip(true),
	"[method]input-stream.subscribe":     Subscribe,

	"[method]output-stream.check-write": func(w *Table, c *link.Call, args []any) any {
		n, err := Resource[Sink](w, args, 0).Room()
		return w.moved(c, uint64(n), err)
	},
	"[method]output-stream.write":                    write(false),
	"[method]output-stream.blocking-write-and-flush": write(true),
	"[method]output-stream.flush": func(w *Table, c *link.Call, args []any) any {
		_, err := Resource[Sink](w, args, 0).Room() // a flush begins; that it is done is seen by check-write
		return w.moved(c, nil, err)
	},
	"[method]output-stream.blocking-flush": func(w *Table, c *link.Call, args []any) any {
		return w.moved(c, nil, Resource[Sink](w, args, 0).Flush(c.Context))
	},
	"[method]output-stream.subscribe":                       Subscribe,
	"[method]output-stream.write-zeroes":                    zeroes(false),
	"[method]output-stream.blocking-write-zeroes-and-flush": zeroes(true),
	"[method]output-stream.splice":                          splice(false),
	"[method]output-stream.blocking-splice":                 splice(true),
}), In("wasi:io/error", map[string]Function{
	"[method]error.to-debug-string": func(w *Table, _ *link.Call, args []any) any { return Resource[error](w, args, 0).Error() },
}))

// moved is the result of a stream's function: at the end of the stream it is closed, and other errors are
// resources.
func (w *Table) moved(c *link.Call, v any, err error) any {
	switch {
	case err == nil:
		return canon.OK(v)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe):
		return canon.Error(Enum(1))
	}
	return canon.Error(canon.Variant{Value: w.Give(c, "wasi:io/error", "error", err)})
}

func read(block bool) Function {
	return func(w *Table, c *link.Call, args []any) any {
		b, err := Resource[Source](w, args, 0).Pull(c.Context, Clamp(link.Arg[uint64](args, 1)), block)
		if b == nil {
			b = []byte{}
		}
		return w.moved(c, b, err)
	}
}

func skip(block bool) Function {
	return func(w *Table, c *link.Call, args []any) any {
		b, err := Resource[Source](w, args, 0).Pull(c.Context, Clamp(link.Arg[uint64](args, 1)), block)
		return w.moved(c, uint64(len(b)), err)
	}
}

// Clamp bounds a number of bytes.
func Clamp(n uint64) int { return int(min(n, Most)) }

func write(flush bool) Function {
	return func(w *Table, c *link.Call, args []any) any {
		return w.moved(c, nil, put(c.Context, Resource[Sink](w, args, 0), link.Arg[[]byte](args, 1), flush))
	}
}

func zeroes(flush bool) Function {
	return func(w *Table, c *link.Call, args []any) any {
		b := make([]byte, Clamp(link.Arg[uint64](args, 1)))
		return w.moved(c, nil, put(c.Context, Resource[Sink](w, args, 0), b, flush))
	}
}

func put(ctx context.Context, s Sink, b []byte, flush bool) error {
	if err := s.Push(ctx, b); err != nil || !flush {
		return err
	}
	return s.Flush(ctx)
}

func splice(block bool) Function {
	return func(w *Table, c *link.Call, args []any) any {
		to, from := Resource[Sink](w, args, 0), Resource[Source](w, args, 1)
		n, err := to.Room()
		if block && n == 0 && err == nil {
			wait(c.Context, to)
			n, err = to.Room()
		}
		if err != nil {
			return w.moved(c, nil, err)
		}
		b, err := from.Pull(c.Context, min(n, Clamp(link.Arg[uint64](args, 2))), block)
		if err == nil {
			err = to.Push(c.Context, b)
		}
		return w.moved(c, uint64(len(b)), err)
	}
}

// Direct is a sink that takes everything at once, or waits.
type Direct struct{ W io.Writer }

// Ready implements Sink: it is.
func (Direct) Ready() (bool, <-chan struct{}) { return true, nil }

// Room implements Sink: there is always as much as a write may have.
func (Direct) Room() (int, error) { return Most, nil }

// Flush implements Sink: what was written is out.
func (Direct) Flush(context.Context) error { return nil }

// Push implements Sink.
func (d Direct) Push(_ context.Context, b []byte) error {
	_, err := d.W.Write(b)
	return err
}

// Pipe moves bytes between a component and somebody who works beside it, with a bound on what is on its way.
type Pipe struct {
	Signal
	data  []byte
	ended error // what follows the data, io.EOF in the end; nil = more may come
	gone  error // why nobody reads any more
}

// Finish is called by who writes, once; nil is a good end.
func (p *Pipe) Finish(err error) {
	if err == nil {
		err = io.EOF
	}
	p.Change(func() {
		if p.ended == nil {
			p.ended = err
		}
	})
}

// Finished says that no more comes from who writes.
func (p *Pipe) Finished() bool {
	p.Lock()
	defer p.Unlock()
	return p.ended != nil
}

// Abandon is called by who reads.
func (p *Pipe) Abandon(err error) {
	p.Change(func() {
		if p.gone == nil {
			p.gone, p.data = err, nil
		}
	})
}

// take moves what there is to b.
func (p *Pipe) take(b []byte) (n int, changed <-chan struct{}, err error) {
	p.Lock()
	defer p.Unlock()
	n = copy(b, p.data)
	p.data = p.data[n:]
	if n > 0 {
		p.wake()
	}
	if n == 0 && len(b) > 0 {
		err = cmp.Or(p.ended, p.gone) // who reads may close it elsewhere
	}
	return n, p.Watch(), err
}

// put adds what there is room for.
func (p *Pipe) put(b []byte) (n int, changed <-chan struct{}, err error) {
	p.Lock()
	defer p.Unlock()
	switch {
	case p.gone != nil:
		return 0, nil, p.gone
	case p.ended != nil:
		return 0, nil, io.ErrClosedPipe
	}
	n = min(Most-len(p.data), len(b))
	p.data = append(p.data, b[:n]...)
	if n > 0 {
		p.wake()
	}
	return n, p.Watch(), nil
}

// Read implements io.Reader, for who works beside the component.
func (p *Pipe) Read(b []byte) (int, error) {
	for {
		n, changed, err := p.take(b)
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		<-changed
	}
}

// Close implements io.Closer, for who reads beside the component.
func (p *Pipe) Close() error {
	p.Abandon(io.ErrClosedPipe)
	return nil
}

// Write implements io.Writer, for who works beside the component.
func (p *Pipe) Write(b []byte) (int, error) {
	var sum int
	for {
		n, changed, err := p.put(b[sum:])
		sum += n
		if err != nil || sum == len(b) {
			return sum, err
		}
		<-changed
	}
}

// PipeSource is the end of a pipe that a component reads. Filling it begins when it is first asked: what a
// component doesn't read is left to who follows it.
type PipeSource struct {
	*Pipe
	begin func()
}

// Pump fills a pipe by reading r. The reading goes on after the component has dropped its end until r says something.
func Pump(name string, r io.Reader) *PipeSource {
	p := &Pipe{}
	return &PipeSource{Pipe: p, begin: sync.OnceFunc(func() {
		run.Go(name, func() error {
			_, err := io.Copy(p, r)
			p.Finish(err)
			return nil
		})
	})}
}

// Ready implements Source.
func (s *PipeSource) Ready() (bool, <-chan struct{}) {
	s.begin()
	s.Lock()
	defer s.Unlock()
	return len(s.data) > 0 || s.ended != nil || s.gone != nil, s.Watch()
}

// Pull implements Source.
func (s *PipeSource) Pull(ctx context.Context, n int, block bool) ([]byte, error) {
	s.begin()
	b := make([]byte, n)
	for {
		got, changed, err := s.take(b)
		if got > 0 || err != nil || !block || n == 0 {
			return b[:got], err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			Interrupted(ctx)
		}
	}
}

// End implements Source: nobody reads any more.
func (s *PipeSource) End() { s.Abandon(io.ErrClosedPipe) }

// PipeSink is the end of a pipe that a component writes.
type PipeSink struct{ *Pipe }

// Ready implements Sink.
func (s PipeSink) Ready() (bool, <-chan struct{}) {
	s.Lock()
	defer s.Unlock()
	return len(s.data) < Most || s.gone != nil || s.ended != nil, s.Watch()
}

// Room implements Sink.
func (s PipeSink) Room() (int, error) {
	s.Lock()
	defer s.Unlock()
	switch {
	case s.gone != nil:
		return 0, s.gone
	case s.ended != nil:
		return 0, io.EOF
	}
	return Most - len(s.data), nil
}

// Push implements Sink.
func (s PipeSink) Push(ctx context.Context, b []byte) error {
	for {
		n, changed, err := s.put(b)
		if b = b[n:]; err != nil || len(b) == 0 {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			Interrupted(ctx)
		}
	}
}

// Flush implements Sink. It has nothing to do: what is in the pipe is on its way.
func (s PipeSink) Flush(context.Context) error {
	_, err := s.Room()
	return err
}
