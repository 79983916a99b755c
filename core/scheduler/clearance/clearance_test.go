// SPDX-License-Identifier: Apache-2.0

package clearance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
)

// begin runs removals until the test ends.
func begin(t *testing.T) *Removals {
	t.Helper()
	r := New()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		if len(r.victims) != 0 {
			t.Errorf("victims that nobody waits for any more: %v", r.victims)
		}
	})
	return r
}

// one is a removal that counts how often it ended.
func one(do func(context.Context) error, victims ...types.UID) (*Removal, *[]error) {
	var ended []error
	var failure error
	return &Removal{
		Victims: victims, Do: do, Failed: func(_ context.Context, err error) { failure = err },
		Ended: func(bool) { ended = append(ended, failure) },
	}, &ended
}

// A removal has ended when it was carried out and all its victims are seen to go, in either order.
func TestItEndsWhenAllVictimsAreSeenToGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begin(t)
		answer := make(chan struct{})
		a, ended := one(func(context.Context) error { <-answer; return nil }, "x", "y")
		b, both := one(func(context.Context) error { return nil }, "y")
		r.Submit(a) // does not wait for the answer
		r.Submit(b)
		r.Seen("x")
		r.Seen("nobody's")
		synctest.Wait()
		if len(*ended)+len(*both) != 0 {
			t.Error("ended while a victim is there")
		}
		r.Seen("y")
		synctest.Wait()
		if len(*both) != 1 || len(*ended) != 0 {
			t.Errorf("the one whose victims go ended %d times, the one that has no answer yet %d times", len(*both), len(*ended))
		}
		close(answer)
		synctest.Wait()
		r.Seen("y") // now it has gone
		if len(*ended) != 1 || (*ended)[0] != nil || len(*both) != 1 {
			t.Errorf("ended: %v, %v", *ended, *both)
		}
	})
}

// Where one cannot be removed, nobody waits for the others.
func TestItEndsWithItsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begin(t)
		refused := errors.New("refused")
		a, ended := one(func(context.Context) error { return refused }, "x")
		r.Submit(a)
		synctest.Wait()
		r.Seen("x")
		if len(*ended) != 1 || !errors.Is((*ended)[0], refused) {
			t.Errorf("ended: %v", *ended)
		}
	})
}

// A removal that cannot proceed holds up no other.
func TestOneThatHangsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begin(t)
		hangs, _ := one(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		r.Submit(hangs)
		other, ended := one(func(context.Context) error { return nil })
		r.Submit(other)
		synctest.Wait()
		if len(*ended) != 1 {
			t.Errorf("the other ended %d times", len(*ended))
		}
	})
}
