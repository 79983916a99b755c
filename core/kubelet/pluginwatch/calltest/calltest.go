// SPDX-License-Identifier: Apache-2.0

// Package calltest has the time of a plugin's call run out when a test says so, however busy
// the machine is.
package calltest

import (
	"context"
	"sync"
	"time"
)

// Clock of calls. Its zero value lets no call's time run out.
type Clock struct {
	mu   sync.Mutex
	over chan struct{}
}

// HangOn has the calls that begin from now on end with expire.
func (c *Clock) HangOn() (expire func()) {
	over := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = over
	return func() { close(over) }
}

// GoOn lets the time of the calls that begin from now on never run out.
func (c *Clock) GoOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = nil
}

// WithTimeout stands for context.WithTimeout.
func (c *Clock) WithTimeout(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over == nil {
		return context.WithCancel(ctx)
	}
	return expiring{ctx, c.over}, func() {}
}

// expiring is a context whose time is over when a channel is closed.
type expiring struct {
	context.Context
	over chan struct{}
}

// Done implements context.Context.
func (e expiring) Done() <-chan struct{} { return e.over }

// Err implements context.Context.
func (e expiring) Err() error {
	select {
	case <-e.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
