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
		release, waited := turns.take(t.Context(), "a")
		if waited {
			t.Error("the first one waited")
		}
		next := make(chan bool)
		go func() {
			release, waited := turns.take(t.Context(), "a")
			release()
			next <- waited
		}()
		synctest.Wait()
		release()
		if waited := <-next; !waited {
			t.Error("the second one did not wait")
		}

		// Whoever never gives the turn back holds up nobody for long.
		_, _ = turns.take(t.Context(), "a")
		began := time.Now()
		release, _ = turns.take(t.Context(), "a")
		if took := time.Since(began); took != courtesyWait {
			t.Errorf("waited for %s", took)
		}
		release() // of a turn that was not had: nothing is given back
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		if _, _ = turns.take(ctx, "a"); time.Since(began) != 0 {
			t.Error("a request that has ended waited")
		}
	})
}
