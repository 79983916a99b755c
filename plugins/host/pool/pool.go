// SPDX-License-Identifier: Apache-2.0

// Package pool lends out the instances of a plugin: as many at once as its limits say, those that
// are warm first, and none kept that nobody asks for.
package pool

import (
	"context"
	"errors"
	"sync"
	"time"
)

var (
	// ErrClosed is what Take returns after Close.
	ErrClosed = errors.New("the plugin has been unloaded")
	// ErrBusy is what Take returns where all instances were in use for as long as a call may wait.
	ErrBusy = errors.New("all instances are busy")
	// ErrEnded is what Take returns where its context ended while it waited for an instance.
	ErrEnded = errors.New("the call ended while it waited for an instance")
)

// soonStarted is how long the last instance may have taken to start so that none has to wait for the
// next call: most of a thousand policies are not asked for hours.
const soonStarted = 5 * time.Millisecond

// Config says what a pool lends.
type Config[T any] struct {
	Size     int           // how many are lent at once
	Patience time.Duration // how long Take waits for one to come back
	Start    func(ctx context.Context) (T, error)
	Stop     func(T)
	LastUsed func(T) time.Time
	// Failed is told why an instance could not be started in the background.
	Failed func(error)
}

// Pool lends instances. Make one with New.
type Pool[T any] struct {
	cfg   Config[T]
	slots chan struct{} // one for each that is lent
	extra chan struct{} // one for each that is lent beside them

	mu     sync.Mutex
	idle   []T // last in, first out: the warm ones are used again
	closed bool
	alive  int            // those that exist
	work   sync.WaitGroup // those that are lent, and those that are started in the background

	startTook time.Duration // of the one that was started last
}

// New makes a pool that has no instance yet.
func New[T any](cfg Config[T]) *Pool[T] {
	return &Pool[T]{cfg: cfg, slots: make(chan struct{}, cfg.Size), extra: make(chan struct{}, MostExtra)}
}

// MostExtra is how many are lent beside those of the limits.
const MostExtra = 3

// TakeExtra lends a new instance beside those that the limits allow, for a long loan for which nobody waits: it takes
// no place of calls. It goes back by DropExtra.
func (p *Pool[T]) TakeExtra(ctx context.Context) (T, error) {
	if err := p.lend(ctx, p.extra); err != nil {
		var none T
		return none, err
	}
	one, err := p.cfg.Start(ctx)
	if err != nil {
		<-p.extra
		p.work.Done()
	}
	return one, err
}

// DropExtra stops an instance of TakeExtra.
func (p *Pool[T]) DropExtra(one T) {
	p.cfg.Stop(one)
	<-p.extra
	p.work.Done()
}

// Take lends an instance, an idle one or a new one. It goes back by Give, Replace or Drop.
// Errors are ErrClosed, ErrBusy, ErrEnded, and those of Start.
func (p *Pool[T]) Take(ctx context.Context) (T, error) {
	var none T
	if err := p.lend(ctx, p.slots); err != nil {
		return none, err
	}
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		warm := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return warm, nil
	}
	p.alive++
	p.mu.Unlock()
	fresh, err := p.start(ctx)
	if err != nil {
		p.returned(func() { p.alive-- })
		return none, err
	}
	return fresh, nil
}

// lend counts a loan, as soon as one of some places is free.
func (p *Pool[T]) lend(ctx context.Context, places chan struct{}) (err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	p.work.Add(1)
	p.mu.Unlock()
	defer func() {
		if err != nil {
			p.work.Done()
		}
	}()
	select {
	case places <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(p.cfg.Patience)
	defer timer.Stop()
	select {
	case places <- struct{}{}:
		return nil
	case <-timer.C:
		return ErrBusy
	case <-ctx.Done():
		return ErrEnded
	}
}

func (p *Pool[T]) start(ctx context.Context) (T, error) {
	start := time.Now()
	one, err := p.cfg.Start(ctx)
	if err == nil {
		p.Started(time.Since(start))
	}
	return one, err
}

// Started remembers how long an instance took to start. The pool measures it by itself.
func (p *Pool[T]) Started(took time.Duration) {
	p.mu.Lock()
	p.startTook = took
	p.mu.Unlock()
}

// returned ends the loan of an instance with a change under the lock.
func (p *Pool[T]) returned(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	<-p.slots
	p.work.Done()
}

// Give takes back an instance that may be lent again.
func (p *Pool[T]) Give(one T) {
	p.returned(func() { p.idle = append(p.idle, one) }) // a Close that waits for it stops it
}

// Drop stops an instance that was lent.
func (p *Pool[T]) Drop(one T) {
	p.cfg.Stop(one)
	p.returned(func() { p.alive-- })
}

// Replace stops an instance that was lent, and starts another in the background where none is idle.
func (p *Pool[T]) Replace(ctx context.Context, one T) {
	p.cfg.Stop(one)
	p.returned(func() {
		p.alive--
		p.refill(ctx)
	})
}

// refill starts an idle instance in the background where there is none. The lock is held.
func (p *Pool[T]) refill(ctx context.Context) {
	if p.closed || len(p.idle) > 0 || p.alive >= cap(p.slots) {
		return
	}
	p.alive++
	p.work.Go(func() {
		one, err := p.start(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.alive--
			p.cfg.Failed(err)
			return
		}
		p.idle = append(p.idle, one) // a Close that waits for it stops it
	})
}

// Alive says how many instances exist.
func (p *Pool[T]) Alive() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive
}

// StopIdle stops the instances that nobody has used since then, but for one where the next call
// would have to wait for another.
func (p *Pool[T]) StopIdle(since time.Time) {
	for _, one := range p.takeIdle(since) {
		p.cfg.Stop(one)
		p.mu.Lock()
		p.alive--
		p.mu.Unlock()
		p.work.Done()
	}
}

// takeIdle takes those out. They count as work, so that Close waits for them.
func (p *Pool[T]) takeIdle(since time.Time) []T {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	kept := 1
	if p.startTook < soonStarted {
		kept = 0
	}
	n := 0 // the one that was used last is the last one
	for n < len(p.idle)-kept && p.cfg.LastUsed(p.idle[n]).Before(since) {
		n++
	}
	if n == 0 {
		return nil
	}
	out := p.idle[:n:n]
	p.idle = append([]T(nil), p.idle[n:]...)
	p.work.Add(n)
	return out
}

// Close refuses new loans, waits for those that are out, and stops everything. It returns false
// where the pool has been closed before.
func (p *Pool[T]) Close() bool {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return false
	}
	p.closed = true
	p.mu.Unlock()
	p.work.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.idle {
		p.cfg.Stop(one)
		p.alive--
	}
	p.idle = nil
	return true
}
