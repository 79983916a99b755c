// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if !Sleep(t.Context(), time.Hour) || time.Since(begin) != time.Hour {
			t.Errorf("an undisturbed sleep took %v", time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin = time.Now()
		if Sleep(ctx, time.Hour) || time.Since(begin) != time.Minute {
			t.Errorf("a sleep whose context ended after a minute took %v", time.Since(begin))
		}
		if Sleep(ctx, 0) {
			t.Error("a sleep of an ended context reports true")
		}
	})
}

func TestSleepOrSettlesWhenItIsToReturnSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, sooner := time.Now(), make(chan struct{})
		if !SleepOr(t.Context(), time.Minute, sooner, time.Second) || time.Since(begin) != time.Minute {
			t.Errorf("nothing asked for less: it took %s", time.Since(begin))
		}
		time.AfterFunc(10*time.Second, func() { close(sooner) })
		begin = time.Now()
		if !SleepOr(t.Context(), time.Minute, sooner, time.Second) || time.Since(begin) != 11*time.Second {
			t.Errorf("it took %s, want 10 s and one to settle", time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begin = time.Now()
		if SleepOr(ctx, time.Minute, sooner, time.Second) || time.Since(begin) != time.Millisecond {
			t.Errorf("its context ended while it settled: it took %s", time.Since(begin))
		}
	})
}

func TestAwaitWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := make(chan struct{}), make(chan struct{})
		close(two)
		time.AfterFunc(time.Second, func() { close(one) })
		begin := time.Now()
		if !Await(t.Context(), two, nil, one) || time.Since(begin) != time.Second {
			t.Errorf("awaited %v, want a second", time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if Await(ctx, one, make(chan struct{})) {
			t.Error("what never becomes ready is reported as ready")
		}
		if Await(ctx, one) {
			t.Error("an ended context is reported as ready")
		}
	})
}

func TestBackoffDoublesUpToTheLongestAndBeginsAgain(t *testing.T) {
	b := Backoff{First: 5 * time.Millisecond, Longest: 30 * time.Millisecond, Jitter: -1}
	want := []time.Duration{5, 10, 20, 30, 30}
	for range 2 {
		for i, w := range want {
			if d := b.Next(); d != w*time.Millisecond {
				t.Errorf("delay %d is %v, want %v", i, d, w*time.Millisecond)
			}
		}
		b.Reset()
	}
	long := Backoff{First: 1, Longest: math.MaxInt64, Jitter: -1}
	for i := range 200 {
		if d := long.Next(); d <= 0 {
			t.Fatalf("delay %d is %v", i, d)
		}
	}
	only := Backoff{First: time.Second}
	for range 2 {
		if d := only.Next(); d > 1100*time.Millisecond {
			t.Errorf("without a longest delay, the first one grows to %v", d)
		}
	}
}

func TestBackoffAddsUpToATenth(t *testing.T) {
	b := Backoff{First: time.Second, Longest: time.Second}
	seen := map[time.Duration]bool{}
	for range 100 {
		d := b.Next()
		if d < time.Second || d > 1100*time.Millisecond {
			t.Fatalf("delay %v, want 1s to 1.1s", d)
		}
		seen[d] = true
	}
	if len(seen) < 2 {
		t.Error("a hundred delays are the same: those who failed together come back together")
	}
}

func TestBackoffWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{First: time.Second, Longest: time.Hour, Jitter: -1}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		waits := 0
		for b.Wait(ctx) {
			waits++
		}
		if waits != 3 { // 1 + 2 + 4 seconds; the fourth would take 8
			t.Errorf("%d whole waits in 10s, want 3", waits)
		}
	})
}

func TestTogetherEndsWithTheFirstAndWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("bad")
		begin := time.Now()
		slow := false
		err := Together(t.Context(),
			func(ctx context.Context) error { Sleep(ctx, time.Second); return bad },
			func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Minute) // takes its time to stop
				slow = true
				return nil
			})
		if !errors.Is(err, bad) || !slow || time.Since(begin) != time.Second+time.Minute {
			t.Errorf("error %v after %v, waited for the slow one: %v", err, time.Since(begin), slow)
		}
	})
}

func TestGoHasANameAndAResult(t *testing.T) {
	bad := errors.New("bad")
	began, release := make(chan struct{}), make(chan struct{})
	done := Go("test owner: one job", func() error { close(began); <-release; return bad })
	<-began
	var dump bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&dump, 1); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(dump.String(), `"task":"test owner: one job"`) {
		t.Errorf("no goroutine has the label:\n%s", &dump)
	}
	close(release)
	if err := <-done; !errors.Is(err, bad) {
		t.Errorf("result %v", err)
	}
	if _, open := <-done; open {
		t.Error("the channel is not closed after the result")
	}
}

func TestTasksWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tasks Tasks
		ended := make(chan int, 3)
		for i := range 3 {
			tasks.Go("test", func() { time.Sleep(time.Duration(i) * time.Second); ended <- i })
		}
		tasks.Wait()
		if len(ended) != 3 {
			t.Errorf("%d of 3 ended", len(ended))
		}
	})
}
