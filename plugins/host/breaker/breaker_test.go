// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host/breaker"
)

func TestABreakerOpensLetsOneThroughAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker.Breaker
		for range breaker.Threshold - 1 {
			b.Done(true)
		}
		if ok, _ := b.Allow(); !ok {
			t.Fatal("it opened before its threshold")
		}
		b.Done(true)
		ok, wait := b.Allow()
		if ok || wait != time.Second {
			t.Fatalf("after the threshold: allowed %t, wait %s", ok, wait)
		}
		time.Sleep(wait)
		if ok, _ := b.Allow(); !ok {
			t.Fatal("nobody is let through after the wait")
		}
		if ok, _ := b.Allow(); ok {
			t.Error("a second one is let through beside the first")
		}
		b.Done(true)
		if _, wait := b.Allow(); wait != 2*time.Second {
			t.Errorf("after another failure: wait %s", wait)
		}
		if open, opened := b.State(time.Now()); !open || opened != 2 {
			t.Errorf("open %t, opened %d times", open, opened)
		}
		time.Sleep(2 * time.Second)
		b.Allow()
		b.Done(false)
		if open, _ := b.State(time.Now()); open {
			t.Error("a success did not close it")
		}
		if ok, _ := b.Allow(); !ok {
			t.Error("a closed one lets nobody through")
		}
	})
}

// TestWhatSaysNothingChangesNothing: neither a failure nor a success, but the next call may try.
func TestWhatSaysNothingChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker.Breaker
		for range breaker.Threshold - 1 {
			b.Done(true)
		}
		b.Forget()
		if ok, _ := b.Allow(); !ok || !b.Failing() {
			t.Errorf("seven failures and one that does not count: allowed %t, failing %t", ok, b.Failing())
		}
		b.Done(true)
		time.Sleep(time.Second)
		for range 2 {
			if ok, _ := b.Allow(); !ok {
				t.Error("after a try that says nothing nobody may try again")
			}
			b.Forget()
		}
		if !b.Failing() {
			t.Error("a try that says nothing closed it")
		}
	})
}
