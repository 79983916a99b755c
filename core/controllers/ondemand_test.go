// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A loop without keys has neither goroutine nor queue, and one with keys works on each of them,
// no key twice at a time.
func TestOnDemandSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var worked, at atomic.Int64
		l := NewOnDemand(Env{}, "sleeper", 2, func(context.Context, Key) error {
			if at.Add(1) > 2 {
				t.Error("more than two workers")
			}
			time.Sleep(time.Millisecond) // of the bubble
			at.Add(-1)
			worked.Add(1)
			return nil
		})
		l.Add(Key{Name: "before"}) // ignored: it does not run
		ctx, cancel := context.WithCancel(t.Context())
		l.Start(ctx)
		for i := range 10 {
			l.Add(Key{Name: fmt.Sprint(i)})
			l.Add(Key{Name: fmt.Sprint(i)})
		}
		time.Sleep(100 * time.Millisecond)
		if n := worked.Load(); n < 10 || n > 12 { // a key added while it was worked on comes again
			t.Errorf("%d reconciles of 10 keys", n)
		}
		l.AddAfter(Key{Name: "late"}, time.Hour)
		l.AddAfter(Key{Name: "late"}, time.Minute)
		l.AddAfter(Key{Name: "late"}, 2*time.Hour)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !asleep(l) {
			t.Error("without keys it is awake")
		}
		before := worked.Load()
		time.Sleep(50*time.Second + 2*time.Millisecond)
		if n := worked.Load() - before; n != 1 {
			t.Errorf("%d reconciles a minute after the earliest time that was asked for", n)
		}
		time.Sleep(3 * time.Hour)
		if n := worked.Load() - before; n != 1 {
			t.Errorf("one key was asked for at three times, and came %d times", n)
		}
		l.AddAfter(Key{Name: "never"}, time.Minute)
		cancel()
		l.Stop()
		l.Add(Key{Name: "after"})
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := worked.Load() - before; n != 1 || !asleep(l) {
			t.Errorf("%d reconciles after the end", n-1)
		}
	})
}

// What fails comes back with a growing delay, and a panic is a failure. Stop waits for what is
// worked on, and a loop can be started again.
func TestOnDemandRetriesAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries, ended atomic.Int64
		l := NewOnDemand(Env{}, "failing", 1, func(ctx context.Context, k Key) error {
			switch k.Name {
			case "fails":
				if tries.Add(1)%2 == 0 {
					panic("it panics")
				}
				return errors.New("it fails")
			case "hangs":
				<-ctx.Done()
				time.Sleep(time.Second)
				ended.Add(1)
			}
			return nil
		})
		for round := int64(1); round <= 2; round++ {
			ctx, cancel := context.WithCancel(t.Context())
			l.Start(ctx)
			if round == 1 {
				l.Add(Key{Name: "fails"})
				time.Sleep(time.Minute)
				if n := tries.Load(); n < 10 || n > 15 {
					t.Errorf("%d tries in a minute; from 5 ms on, doubled each time, they are 14", n)
				}
			}
			l.Add(Key{Name: "hangs"})
			synctest.Wait()
			cancel()
			l.Stop()
			if ended.Load() != round {
				t.Error("Stop did not wait for the key that was worked on")
			}
		}
		before := tries.Load()
		time.Sleep(time.Hour)
		if tries.Load() != before {
			t.Error("tried again after the end")
		}
	})
}

func asleep(l *OnDemand[Key]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue == nil && l.busy == 0
}
