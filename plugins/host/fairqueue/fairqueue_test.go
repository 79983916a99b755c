// SPDX-License-Identifier: Apache-2.0

package fairqueue_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host/fairqueue"
)

func newQueue() *fairqueue.Queue {
	return fairqueue.New(fairqueue.Config{Operators: 1, Tenants: 1, PerTenant: 1, Waiting: 8, Patience: time.Minute})
}

// TestTenantsTakeTurns: a tenant that has asked eight times delays another by one turn.
func TestTenantsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		hold, err := q.Enter(t.Context(), "loud")
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		served := make(chan string)
		ask := func(tenant string) {
			go func() {
				leave, err := q.Enter(t.Context(), tenant)
				if err != nil {
					t.Error(err)
				}
				served <- tenant
				leave()
			}()
			synctest.Wait()
		}
		for range 4 {
			ask("loud")
		}
		ask("quiet")
		ask("silent")
		hold()
		for range 6 {
			synctest.Wait()
			order = append(order, <-served)
		}
		if want := []string{"loud", "quiet", "silent", "loud", "loud", "loud"}; !slices.Equal(order, want) {
			t.Errorf("served %v, want %v", order, want)
		}
	})
}

func TestAnOperatorNeverWaitsForTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		hold, err := q.Enter(t.Context(), "team")
		if err != nil {
			t.Fatal(err)
		}
		defer hold()
		start := time.Now()
		leave, err := q.Enter(t.Context(), "")
		if err != nil || time.Since(start) != 0 {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		leave()
		leave() // twice is once
		if leave, err = q.Enter(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		defer leave()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := q.Enter(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second operator's: %v", err)
		}
	})
}

// TestAWaitEnds: with an error that says how long it was, and leaves nothing behind.
func TestAWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		hold, err := q.Enter(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := q.Enter(t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "within 1m0s") || time.Since(start) != time.Minute {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		hold()
		leave, err := q.Enter(t.Context(), "c")
		if err != nil || time.Since(start) != time.Minute {
			t.Fatalf("the place was lost with who gave up: %v", err)
		}
		leave()
	})
}

func TestOneTenantMayNotFillTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		ctx, cancel := context.WithCancel(t.Context())
		for range 9 { // one has the place, eight wait
			go func() { _, _ = q.Enter(ctx, "loud") }()
			synctest.Wait()
		}
		if _, err := q.Enter(ctx, "loud"); err == nil || !strings.Contains(err.Error(), "at most 8") {
			t.Error(err)
		}
		cancel()
		synctest.Wait()
	})
}
