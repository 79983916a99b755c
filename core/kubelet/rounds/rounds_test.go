// SPDX-License-Identifier: Apache-2.0

package rounds_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
)

func runs(t *testing.T, r *rounds.Rounds) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestStepsAreDoneWhenTheyAreDue, thousands of them by few goroutines, and not while they wait to be asked for.
func TestStepsAreDoneWhenTheyAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rounds.New(4)
		var done, most, now atomic.Int64
		for range 5000 {
			r.Add("a", time.Second, func(context.Context) time.Duration {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Millisecond)
				now.Add(-1)
				done.Add(1)
				return 10 * time.Second
			})
		}
		var asked atomic.Int64
		turn := r.Add("b", rounds.Never, func(context.Context) time.Duration { asked.Add(1); return rounds.Never })
		defer runs(t, r)()
		time.Sleep(time.Second - time.Millisecond)
		synctest.Wait()
		if done.Load() != 0 {
			t.Errorf("%d were done too early", done.Load())
		}
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if done.Load() != 15000 || most.Load() != 4 {
			t.Errorf("%d were done, %d at a time", done.Load(), most.Load())
		}
		if asked.Load() != 0 {
			t.Error("what nobody asked for was done")
		}
		turn.Soon()
		synctest.Wait()
		if asked.Load() != 1 {
			t.Errorf("done %d times", asked.Load())
		}
		turn.Stop()
		turn.Soon()
		synctest.Wait()
		if asked.Load() != 1 {
			t.Error("it was stopped")
		}
	})
}

// TestAStepIsDoneOnceAtATime: asked for while it works, it is done once more, and once only.
func TestAStepIsDoneOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rounds.New(4)
		var done, now atomic.Int64
		turn := r.Add("a", 0, func(context.Context) time.Duration {
			if now.Add(1) > 1 {
				t.Error("two at a time")
			}
			time.Sleep(time.Second)
			now.Add(-1)
			done.Add(1)
			return rounds.Never
		})
		defer runs(t, r)()
		synctest.Wait()
		for range 3 {
			turn.Soon()
		}
		time.Sleep(time.Minute)
		if done.Load() != 2 {
			t.Errorf("done %d times", done.Load())
		}
	})
}

// TestTheEndIsWaitedFor: no step is being done when Run returns, nor what a step has begun.
func TestTheEndIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rounds.New(1)
		var ended atomic.Int64
		r.Add("a", 0, func(ctx context.Context) time.Duration {
			r.Go("b", func() { <-ctx.Done(); ended.Add(1) })
			<-ctx.Done()
			ended.Add(1)
			return 0
		})
		stop := runs(t, r)
		synctest.Wait()
		stop()
		if ended.Load() != 2 {
			t.Errorf("%d have ended", ended.Load())
		}
	})
}
