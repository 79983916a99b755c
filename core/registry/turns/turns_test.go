// SPDX-License-Identifier: Apache-2.0

package turns

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurnsAreTakenOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New()
		first := all.Of("a")
		if first.Take(t.Context()) {
			t.Error("the first one waited")
		}
		next := make(chan bool)
		go func() {
			second := all.Of("a")
			waited := second.Take(t.Context())
			second.End()
			next <- waited
		}()
		synctest.Wait()
		first.End()
		if waited := <-next; !waited {
			t.Error("the second one did not wait")
		}

		// A write that never gives its turn back holds up nobody for long.
		all.Of("a").Take(t.Context())
		began := time.Now()
		third := all.Of("a")
		if !third.Take(t.Context()) || time.Since(began) != courtesyWait {
			t.Errorf("waited for %s", time.Since(began))
		}
		if third.Take(t.Context()) {
			t.Error("waited for a second turn of the same write")
		}
		third.End() // of a turn that was not had: nothing is given back
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		if all.Of("a").Take(ctx); time.Since(began) != 0 {
			t.Error("a request that has ended waited")
		}
	})
}
