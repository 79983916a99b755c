// SPDX-License-Identifier: Apache-2.0

package fairqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
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

// TestWorkThatIsInterruptedHoldsNobodyUp: a tenant whose work takes an hour lets others have the
// place a second at a time, goes on when it is its turn again, and still has one place only.
func TestWorkThatIsInterruptedHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := fairqueue.New(fairqueue.Config{Operators: 1, Tenants: 1, PerTenant: 1, Waiting: 8, Patience: 3 * time.Hour, Paused: 2})
		work := func(tenant string, needs time.Duration) (took time.Duration, err error) {
			began := time.Now()
			place, err := q.Take(t.Context(), tenant)
			if err != nil {
				return 0, err
			}
			defer place.Leave()
			for ; needs > 0; needs -= time.Second {
				time.Sleep(min(time.Second, needs))
				if needs <= time.Second || !place.Wanted() {
					continue
				}
				if err := place.Pass(t.Context()); err != nil {
					return 0, err
				}
			}
			return time.Since(began), nil
		}
		long := func(needs, least time.Duration) <-chan error {
			done := run.Go("work of the tenant long", func() error {
				took, err := work("long", needs)
				if err == nil && took < least {
					err = fmt.Errorf("took %s, expected at least %s", took, least)
				}
				return err
			})
			synctest.Wait()
			return done
		}
		first := long(time.Hour, time.Hour)
		second := long(time.Second, time.Hour) // of the same tenant: has to wait for it
		began := time.Now()
		for range 20 {
			if _, err := work("quick", 100*time.Millisecond); err != nil {
				t.Error(err)
			}
		}
		if waited := time.Since(began); waited > 20*(time.Second+100*time.Millisecond) {
			t.Errorf("twenty quick ones took %s beside a long one", waited)
		}
		if took, err := work("other", 10*time.Second); err != nil || took > 21*time.Second {
			t.Errorf("another that takes 10 s took %s, %v", took, err)
		}
		for _, done := range []<-chan error{first, second} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestOnlySoManyRest: work that rests keeps its memory.
func TestOnlySoManyRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := fairqueue.New(fairqueue.Config{Operators: 1, Tenants: 1, PerTenant: 1, Waiting: 8, Patience: time.Minute, Paused: 1})
		begin := func(tenant string) *fairqueue.Place {
			place, err := q.Take(t.Context(), tenant)
			if err != nil {
				t.Fatal(err)
			}
			return place
		}
		first := begin("a")
		if first.Wanted() || first.Pass(t.Context()) != nil {
			t.Error("a place was passed on that nobody wants")
		}
		places := make(chan *fairqueue.Place)
		for _, tenant := range []string{"b", "c"} {
			run.Go("place of "+tenant, func() error {
				places <- begin(tenant)
				return nil
			})
			synctest.Wait()
		}
		passed := run.Go("rest", func() error { return first.Pass(t.Context()) })
		second := <-places
		synctest.Wait()
		if second.Wanted() {
			t.Error("two may rest")
		}
		operator := begin("")
		if operator.Wanted() {
			t.Error("an operator's place was wanted")
		}
		operator.Leave()
		second.Leave()
		if err := <-passed; err != nil { // in turn, before who begins
			t.Fatal(err)
		}
		first.Leave()
		third := <-places
		third.Leave()
	})
}

// TestWorkThatRestsMayEnd: with its context or after its patience, and its place is free for others.
func TestWorkThatRestsMayEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := fairqueue.New(fairqueue.Config{Operators: 1, Tenants: 1, PerTenant: 1, Waiting: 8, Patience: time.Minute, Paused: 1})
		first, err := q.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var second *fairqueue.Place
		taken := run.Go("place of b", func() (err error) {
			second, err = q.Take(t.Context(), "b")
			return err
		})
		synctest.Wait()
		if err := first.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), "within 1m0s") {
			t.Errorf("beside one that never ends: %v", err)
		}
		if err := <-taken; err != nil {
			t.Fatal(err)
		}
		first.Leave()
		second.Leave()
		for _, tenant := range []string{"a", "b"} {
			leave, err := q.Enter(t.Context(), tenant)
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
	})
}
