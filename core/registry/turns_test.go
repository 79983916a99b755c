// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurnsAreTakenOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		first := turns.of("a")
		if first.take(t.Context()) {
			t.Error("the first one waited")
		}
		next := make(chan bool)
		go func() {
			second := turns.of("a")
			waited := second.take(t.Context())
			second.end()
			next <- waited
		}()
		synctest.Wait()
		first.end()
		if waited := <-next; !waited {
			t.Error("the second one did not wait")
		}

		// A write that never gives its turn back holds up nobody for long.
		turns.of("a").take(t.Context())
		began := time.Now()
		third := turns.of("a")
		if !third.take(t.Context()) || time.Since(began) != courtesyWait {
			t.Errorf("waited for %s", time.Since(began))
		}
		if third.take(t.Context()) {
			t.Error("waited for a second turn of the same write")
		}
		third.end() // of a turn that was not had: nothing is given back
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		if turns.of("a").take(ctx); time.Since(began) != 0 {
			t.Error("a request that has ended waited")
		}
	})
}
