// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Nobody waits for a write; of one object the latest counts, and after Cancel nothing more is written.
func TestTheLatestIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		r := New()
		var mu sync.Mutex
		var written []string
		hold := make(chan struct{})
		write := func(what string, wait bool) Write {
			return func(_ context.Context, again bool) {
				if wait {
					<-hold
				}
				mu.Lock()
				defer mu.Unlock()
				written = append(written, fmt.Sprint(what, " ", again))
			}
		}
		r.Submit(ctx, "a", write("a1", false))
		r.Submit(ctx, "a", write("a2", true))
		r.Submit(ctx, "b", write("b1", false))
		r.Cancel(ctx, "b")
		var done sync.WaitGroup
		done.Go(func() { r.Run(ctx) })
		synctest.Wait()
		r.Submit(ctx, "a", write("a3", false)) // while a2 is written
		synctest.Wait()
		if len(written) != 0 {
			t.Errorf("written beside a2: %v", written)
		}
		cancelled := false
		r.Submit(ctx, "c", write("c1", true))
		synctest.Wait()
		done.Go(func() { r.Cancel(ctx, "c"); cancelled = true })
		synctest.Wait()
		if cancelled {
			t.Error("Cancel does not wait for what is being written")
		}
		close(hold)
		synctest.Wait()
		stop()
		done.Wait()
		if got := fmt.Sprint(written); got != "[a2 false c1 false a3 true]" && got != "[c1 false a2 false a3 true]" &&
			got != "[a2 false a3 true c1 false]" {
			t.Errorf("written: %s", got)
		}
		r.Submit(t.Context(), "d", write("d1", false)) // nobody writes any more
		if got := written[len(written)-1]; got != "d1 false" {
			t.Errorf("the last is %s", got)
		}
	})
}

// What need not be written if it holds only for a moment waits; what is submitted later takes its place at once.
func TestWhatHoldsForAMomentIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		r, began := New(), time.Now()
		var mu sync.Mutex
		written := map[string]time.Duration{}
		write := func(what string) Write {
			return func(context.Context, bool) {
				mu.Lock()
				defer mu.Unlock()
				written[what] = time.Since(began)
			}
		}
		var done sync.WaitGroup
		done.Go(func() { r.Run(ctx) })
		for _, about := range []types.UID{"stays", "goes on", "is refused"} {
			r.SubmitAfter(ctx, about, time.Second, write(string(about)+": waits"))
		}
		time.Sleep(500 * time.Millisecond)
		r.Cancel(ctx, "goes on")
		r.Submit(ctx, "is refused", write("is refused: no room"))
		time.Sleep(time.Hour)
		stop()
		done.Wait()
		want := map[string]time.Duration{"stays: waits": time.Second, "is refused: no room": 500 * time.Millisecond}
		if !maps.Equal(written, want) {
			t.Errorf("written: %v, want %v", written, want)
		}
	})
}

// However many objects there are, what is to be written is written.
func TestMoreThanAreKeptAreWrittenAtOnce(t *testing.T) {
	r := New()
	now := 0
	for i := range most + 10 {
		r.Submit(t.Context(), types.UID(fmt.Sprint(i)), func(context.Context, bool) { now++ })
	}
	if now != 10 {
		t.Errorf("%d were written at once, want 10", now)
	}
}

// What is also to be written comes after what is submitted, before or after it, and is not replaced by that.
func TestWhatIsAlsoWrittenComesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		r := New()
		var written []string
		write := func(what string) Write {
			return func(context.Context, bool) { written = append(written, what) }
		}
		r.Submit(ctx, "a", write("a1"))
		r.Also(ctx, "a", write("also1"))
		r.Submit(ctx, "a", write("a2"))
		r.Also(ctx, "a", write("also2"))
		var done sync.WaitGroup
		done.Go(func() { r.Run(ctx) })
		synctest.Wait()
		if got := fmt.Sprint(written); got != "[a2 also2]" {
			t.Errorf("written: %s", got)
		}
		stop()
		done.Wait()
	})
}
