// SPDX-License-Identifier: Apache-2.0

package etcdclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

// changes are elections that a test holds.
type changes struct{ next chan struct{} }

func (c *changes) changed() <-chan struct{} { return c.next }

func (c *changes) elect() {
	over := c.next
	c.next = make(chan struct{})
	close(over)
	synctest.Wait()
}

// Calls that were lost with the old leader end as soon as all is answered that has reached the new one, and not before.
func TestLostCallsEndOnceTheOthersAreAnswered(t *testing.T) {
	for _, c := range []struct {
		name string
		// passes is how long the transaction takes that follows them; failures, how often it fails at once before.
		passes   time.Duration
		failures int
		ends     time.Duration // after the election, at the latest; a tenth earlier at the soonest
	}{
		{"the new leader answers at once", 0, 0, awakes},
		{"it needs a while", 200 * time.Millisecond, 0, 200*time.Millisecond + awakes},
		{"it was not known yet", 10 * time.Millisecond, 3, 110 * time.Millisecond},
		{"it does not answer", time.Minute, 0, afterElection},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				e, leaders := newElections(ctx), &changes{next: make(chan struct{})}
				failures := c.failures
				ended := run.Go("elections", func() error {
					return e.run(ctx, leaders.changed, func(ctx context.Context) error {
						if failures > 0 {
							failures--
							return errors.New("nobody leads")
						}
						run.Sleep(ctx, c.passes)
						return ctx.Err()
					})
				})
				synctest.Wait()
				before, done := e.bound(ctx)
				defer done()
				leaders.elect()
				began := time.Now()
				after, done := e.bound(ctx)
				defer done()
				<-before.Done()
				if took := time.Since(began); took > c.ends || took < c.ends*9/10 {
					t.Errorf("it ended %s after the election, not %s", took, c.ends)
				}
				if !errors.Is(context.Cause(before), errLeaderLost) || after.Err() != nil {
					t.Errorf("ended by %v; one that began later by %v", context.Cause(before), context.Cause(after))
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// An election that follows another at once ends the calls of both terms, and leaves none behind.
func TestElectionsFollowOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		e, leaders := newElections(ctx), &changes{next: make(chan struct{})}
		ended := run.Go("elections", func() error {
			return e.run(ctx, leaders.changed, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		})
		synctest.Wait()
		var calls []context.Context
		for range 3 {
			call, done := e.bound(ctx)
			defer done()
			calls = append(calls, call)
			leaders.elect()
		}
		for _, call := range calls {
			<-call.Done()
			if !errors.Is(context.Cause(call), errLeaderLost) {
				t.Errorf("ended by %v", context.Cause(call))
			}
		}
		leaders.elect()
		cancel() // while answers are awaited
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
