// SPDX-License-Identifier: Apache-2.0

package host

import (
	"sync"
	"sync/atomic"
	"time"
)

// breaker keeps a plugin that fails again and again from costing its budget each
// time. After threshold faults in a row it opens; while it is open, calls fail at
// once; then one call at a time is let through, and a success closes it.
type breaker struct {
	// failed says that the call before failed. Where it did not, nothing else is
	// looked at: neither lock nor clock, which take as long as a small policy.
	failed   atomic.Bool
	mu       sync.Mutex
	failures int
	openFor  time.Duration
	until    time.Time
	probing  bool
	opened   int64 // how often, for the status
}

const (
	breakerThreshold = 8
	breakerFirst     = time.Second
	breakerLongest   = time.Minute
)

// allow says whether a call may run, and else when to come back.
func (b *breaker) allow() (ok bool, wait time.Duration) {
	if !b.failed.Load() {
		return true, 0
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < breakerThreshold {
		return true, 0
	}
	if now.Before(b.until) || b.probing {
		return false, max(b.until.Sub(now), 0)
	}
	b.probing = true
	return true, 0
}

// done reports how a call ended.
func (b *breaker) done(failed bool) {
	if !failed && !b.failed.Load() {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	b.failed.Store(failed)
	if !failed {
		b.failures, b.openFor = 0, 0
		return
	}
	b.failures++
	if b.failures < breakerThreshold {
		return
	}
	b.openFor = min(max(2*b.openFor, breakerFirst), breakerLongest)
	b.until = now.Add(b.openFor)
	b.opened++
}

func (b *breaker) state(now time.Time) (open bool, opened int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures >= breakerThreshold && now.Before(b.until), b.opened
}
