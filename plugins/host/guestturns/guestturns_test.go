// SPDX-License-Identifier: Apache-2.0

package guestturns

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestShortCallsNeedNoTurn(t *testing.T) {
	turns := of(2)
	defer turns.Hold()() // the only one
	var p Turn
	if !turns.Take(&p, From-1, time.Now(), nil) {
		t.Error("a short call waited")
	}
	if p.held {
		t.Error("a short call holds a turn")
	}
}

// TestATurnLastsWhileNobodyWaits: and ends after its length when somebody does.
func TestATurnLastsWhileNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := of(2)
		deadline := time.Now().Add(time.Hour)
		var first Turn
		for used := int64(From); used < From+5*Length; used += Length / 2 {
			if !turns.Take(&first, used, deadline, nil) || !first.held {
				t.Fatal("a guest alone lost its turn")
			}
		}
		var order []string
		go func() {
			var second Turn
			turns.Take(&second, From, deadline, nil)
			order = append(order, "second")
			turns.Give(&second)
		}()
		synctest.Wait()
		if len(order) != 0 {
			t.Fatal("two guests hold the one turn")
		}
		if !turns.Take(&first, From+20*Length, deadline, nil) {
			t.Fatal("the first guest never had its next turn")
		}
		order = append(order, "first")
		if order[0] != "second" {
			t.Errorf("the turns came in the order %q", order)
		}
	})
}

func TestWaitingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := of(3)
		defer turns.Hold()()
		defer turns.Hold()()
		var p Turn
		begin := time.Now()
		if turns.Take(&p, From, begin.Add(time.Second), nil) {
			t.Error("a third guest had a turn of two")
		}
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("it waited for %s", waited)
		}
		done := make(chan struct{})
		close(done)
		if turns.Take(&p, From, begin.Add(time.Hour), done) {
			t.Error("a guest whose request is over had a turn")
		}
		turns.Give(&p) // it holds none: nothing is given
	})
}

// TestOneProcessorRests: who runs alone on the only processor leaves it at the end of each turn.
func TestOneProcessorRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := of(1)
		var p Turn
		deadline := time.Now().Add(time.Hour)
		turns.Take(&p, From, deadline, nil)
		begin := time.Now()
		if !turns.Take(&p, From+Length, deadline, nil) {
			t.Fatal("the next turn never came")
		}
		if time.Since(begin) != rest {
			t.Errorf("it rested for %s", time.Since(begin))
		}
	})
}
