// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

// errWentBack: the store's newest revision is older than one that it delivered.
var errWentBack = errors.New("the store went back in time, as after a restore from a backup")

// waiting are those who wait for the cache to reach a revision.
type waiting struct {
	ask chan struct{} // wakes askProgress

	mu      sync.Mutex
	waiters []*waiter
	stopped bool
}

type waiter struct {
	rev  int64
	done chan struct{}
}

// WaitFor waits until the cache has seen revision rev.
func (c *Cache) WaitFor(ctx context.Context, rev int64) error {
	if c.Revision() >= rev {
		return nil
	}
	w, err := c.waiting.add(rev, c.Revision)
	if w == nil {
		return err
	}
	notify(c.waiting.ask)
	select {
	case <-w.done:
		if c.Revision() < rev {
			return ErrStopped
		}
		return nil
	case <-ctx.Done():
		c.waiting.remove(w)
		return fmt.Errorf("wait for revision %d, the cache is at %d: %w", rev, c.Revision(), context.Cause(ctx))
	}
}

// add returns nil where there is nothing to wait for (any more).
func (q *waiting) add(rev int64, now func() int64) (*waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return nil, ErrStopped
	}
	if now() >= rev {
		return nil, nil //nolint:nilnil // see above
	}
	w := &waiter{rev: rev, done: make(chan struct{})}
	q.waiters = append(q.waiters, w)
	return w, nil
}

func (q *waiting) remove(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, x := range q.waiters {
		if x == w {
			q.waiters = append(q.waiters[:i], q.waiters[i+1:]...)
			return
		}
	}
}

func (q *waiting) reached(rev int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.waiters[:0]
	for _, w := range q.waiters {
		if w.rev <= rev {
			close(w.done)
		} else {
			left = append(left, w)
		}
	}
	clear(q.waiters[len(left):])
	q.waiters = left
}

func (q *waiting) any() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiters) > 0
}

func (q *waiting) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	for _, w := range q.waiters {
		close(w.done)
	}
	q.waiters = nil
}

// askProgress asks the store how far the watch is, for as long as somebody
// waits: the revision waited for may belong to a key outside the watch, so that
// no event tells of it. However many wait, it asks once at a time.
func (c *Cache) askProgress(ctx context.Context) {
	const longest = 50 * time.Millisecond
	backoff := run.Backoff{First: time.Millisecond, Longest: longest, Jitter: -1}
	again := time.NewTimer(longest)
	defer again.Stop()
	for {
		var pause time.Duration
		select {
		case <-ctx.Done():
			return
		case <-c.waiting.ask:
			backoff.Reset()
			pause = backoff.Next()
		case <-again.C:
			pause = backoff.Next()
		}
		if !c.waiting.any() {
			continue
		}
		if w := c.watch.Load(); w != nil {
			if err := (*w).Progress(ctx); err != nil && ctx.Err() == nil {
				c.log.DebugContext(ctx, "the store was not asked for progress", "error", err)
			}
			c.metrics.progress.Inc()
		}
		again.Reset(pause)
	}
}

// freshQueue collects those who want to know the store's newest revision. One
// read of the store answers everybody who came before it began.
type freshQueue struct {
	ask  chan struct{}
	back chan struct{} // tells the session that the store went back in time

	mu      sync.Mutex
	callers []chan freshAnswer
	stopped bool
}

type freshAnswer struct {
	rev int64
	err error
}

// Fresh waits until the cache has seen everything that was acknowledged before
// the call, and returns a revision that proves it. Callers share the cost.
func (c *Cache) Fresh(ctx context.Context) (int64, error) {
	answer := make(chan freshAnswer, 1)
	if !c.fresh.add(answer) {
		return 0, ErrStopped
	}
	select {
	case a := <-answer:
		if a.err != nil {
			return 0, a.err
		}
		return a.rev, c.WaitFor(ctx, a.rev)
	case <-ctx.Done():
		return 0, fmt.Errorf("read the store's newest revision: %w", context.Cause(ctx))
	}
}

func (q *freshQueue) add(answer chan freshAnswer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return false
	}
	q.callers = append(q.callers, answer)
	notify(q.ask)
	return true
}

func (q *freshQueue) take() []chan freshAnswer {
	q.mu.Lock()
	defer q.mu.Unlock()
	callers := q.callers
	q.callers = nil
	return callers
}

func (q *freshQueue) stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	for _, a := range q.take() {
		a <- freshAnswer{err: ErrStopped}
	}
}

// answerFresh reads the newest revision for those who ask.
func (c *Cache) answerFresh(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.fresh.ask:
		}
		callers := c.fresh.take()
		if len(callers) == 0 {
			continue
		}
		seen := c.Revision()
		rev, err := c.cfg.Store.Revision(ctx)
		if err == nil && rev < seen {
			notify(c.fresh.back)
			err = errWentBack
		}
		for _, a := range callers {
			a <- freshAnswer{rev, err}
		}
	}
}
