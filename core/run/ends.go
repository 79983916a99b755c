// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"sync"
)

// Ends are calls that would not end by themselves when what they depend on ends:
// watches when the server stops, requests for a resource that is removed. The zero
// value is ready. It is safe for concurrent use.
type Ends struct {
	mu      sync.Mutex
	ended   bool
	next    uint64
	cancels map[uint64]context.CancelFunc
}

// Add has cancel called by End, at once where End has been called already, unless
// forget is called before.
func (e *Ends) Add(cancel context.CancelFunc) (forget func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		cancel()
		return func() {}
	}
	if e.cancels == nil {
		e.cancels = map[uint64]context.CancelFunc{}
	}
	id := e.next
	e.next++
	e.cancels[id] = cancel
	return func() {
		e.mu.Lock()
		delete(e.cancels, id)
		e.mu.Unlock()
	}
}

// End cancels all calls, and those that are added later.
func (e *Ends) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	for _, cancel := range e.cancels {
		cancel()
	}
	e.cancels = nil
}
