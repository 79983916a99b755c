// SPDX-License-Identifier: Apache-2.0

// Package breaker leaves alone for a while what fails again and again.
package breaker

import (
	"sync"
	"sync/atomic"
	"time"
)

// Breaker keeps what fails again and again from costing its budget each
// time. After Threshold failures in a row it opens; while it is open, calls fail at
// once; then one call at a time is let through, and a success closes it. The zero value is
// closed. Its methods are safe for concurrent use.
type Breaker struct {
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

// Threshold is how many failures in a row open it.
const Threshold = 8

const (
	first   = time.Second
	longest = time.Minute
)

// Allow says whether a call may run, and else when to come back.
func (b *Breaker) Allow() (ok bool, wait time.Duration) {
	if !b.failed.Load() {
		return true, 0
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < Threshold {
		return true, 0
	}
	if now.Before(b.until) || b.probing {
		return false, max(b.until.Sub(now), 0)
	}
	b.probing = true
	return true, 0
}

// Failing says whether the last call failed.
func (b *Breaker) Failing() bool { return b.failed.Load() }

// Forget ends a call whose outcome says nothing.
func (b *Breaker) Forget() {
	b.mu.Lock()
	b.probing = false
	b.mu.Unlock()
}

// Done reports how a call ended.
func (b *Breaker) Done(failed bool) {
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
	if b.failures < Threshold {
		return
	}
	b.openFor = min(max(2*b.openFor, first), longest)
	b.until = now.Add(b.openFor)
	b.opened++
}

// State says whether it is open, and how often it has opened.
func (b *Breaker) State(now time.Time) (open bool, opened int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures >= Threshold && now.Before(b.until), b.opened
}
