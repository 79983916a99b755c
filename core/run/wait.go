// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Sleep waits for d. It reports false when ctx ended, before or meanwhile.
func Sleep(ctx context.Context, d time.Duration) bool { return SleepOr(ctx, d, nil, 0) }

// SleepOr waits for d. If sooner is closed or sends before that, it waits for settle from then on
// instead: what asks to return sooner often comes in groups. It reports false when ctx ended,
// before or meanwhile.
func SleepOr(ctx context.Context, d time.Duration, sooner <-chan struct{}, settle time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	case <-sooner:
		return Sleep(ctx, settle)
	}
}

// Await waits until every channel of ready is closed (or sends). It reports false
// when ctx ended first. A nil channel counts as ready.
func Await(ctx context.Context, ready ...<-chan struct{}) bool {
	for _, c := range ready {
		if c == nil {
			continue
		}
		select {
		case <-c:
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// Backoff spaces attempts: the first delay is First, each further one is twice as
// long up to Longest, and each has up to Jitter of itself added, so that many who
// failed at one time don't come back at one time. One goroutine uses it.
type Backoff struct {
	// First is the delay after the first failure, Longest the largest without jitter.
	First, Longest time.Duration
	// Jitter is the largest part of a delay that chance adds to it; 0 = a tenth,
	// negative = none.
	Jitter float64

	last time.Duration // 0 = First comes next
}

// Next is the delay before the next attempt.
func (b *Backoff) Next() time.Duration {
	longest := max(b.First, b.Longest)
	switch {
	case b.last == 0:
		b.last = b.First
	case b.last > longest/2:
		b.last = longest
	default:
		b.last *= 2
	}
	jitter := b.Jitter
	if jitter == 0 {
		jitter = 0.1
	}
	if jitter < 0 {
		return b.last
	}
	return b.last + time.Duration(jitter*rand.Float64()*float64(b.last))
}

// Reset makes First the next delay again: the attempt succeeded.
func (b *Backoff) Reset() { b.last = 0 }

// Wait sleeps for the next delay. It reports false when ctx ended.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Together runs functions side by side and waits for all of them. The context
// that they get ends with ctx, and as soon as one of them returns: parts that work
// for as long as their owner does not go on without each other. It returns what
// they returned, joined.
func Together(ctx context.Context, fns ...func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(fns))
	for i, fn := range fns {
		wg.Go(func() {
			defer cancel()
			errs[i] = fn(ctx)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Parallel is Together as a Run function.
func Parallel(fns ...func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error { return Together(ctx, fns...) }
}
