// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// expectationTimeout is how long a controller waits for its own writes to come
// back through the watch before it trusts its cache again. It is a net for an
// event that never arrives (a pod that was created and force-deleted between two
// relists); upstream uses the same five minutes.
const expectationTimeout = 5 * time.Minute

// Expectations remember creations and deletions in flight: writes that a
// controller made and that its cache may not show yet. Until all of them were
// observed, counting what the cache holds would create or delete twice.
//
// They live in memory only. After a restart the caches are filled by a fresh
// list, which is at least as new as the last write of the process before.
type Expectations struct {
	mu sync.Mutex
	by map[Key]*inFlight
}

type inFlight struct {
	creations int
	deletions map[types.UID]struct{}
	since     time.Time
}

// NewExpectations returns empty ones.
func NewExpectations() *Expectations { return &Expectations{by: map[Key]*inFlight{}} }

// Expect notes, before the writes are made, n creations and the deletion of
// these objects. What was expected before is replaced: it was Satisfied, or the
// caller would not be here.
func (e *Expectations) Expect(key Key, creations int, deletions ...types.UID) {
	gone := make(map[types.UID]struct{}, len(deletions))
	for _, uid := range deletions {
		gone[uid] = struct{}{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.by[key] = &inFlight{creations: creations, deletions: gone, since: time.Now()}
}

// Created notes that n creations were observed, or were never made. An object that is
// first seen when it is being deleted already was created, too.
func (e *Expectations) Created(key Key, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.by[key]; f != nil {
		f.creations -= n
	}
}

// Deleted notes that the deletion of an object was observed, or failed.
// Observing it twice (a deletion timestamp, then the removal) counts once.
func (e *Expectations) Deleted(key Key, uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.by[key]; f != nil {
		delete(f.deletions, uid)
	}
}

// Satisfied reports whether the cache shows everything that the controller did,
// or has had long enough to.
func (e *Expectations) Satisfied(key Key) bool { return e.Left(key) == 0 }

// Left is how long the controller goes on waiting for the cache; 0 = it does not. Whoever
// waits comes back then: the event that would wake it may never arrive.
func (e *Expectations) Left(key Key) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.by[key]
	if f == nil || (f.creations <= 0 && len(f.deletions) == 0) {
		return 0
	}
	return max(0, expectationTimeout-time.Since(f.since))
}

// Forget drops the expectations of an object that is gone, so that one made anew
// under its name starts clean.
func (e *Expectations) Forget(key Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.by, key)
}
