// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestGarbageThatMayGather(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ live, garbage uint64 }{
		{0, 0}, {10 * mib, 10 * mib}, {64 * mib, 64 * mib}, {164 * mib, 104 * mib}, {264 * mib, 144 * mib}, {1064 * mib, 464 * mib}, {8256 * mib, 3341 * mib},
	} {
		got := c.live / 100 * uint64(gcPercent(c.live))
		if low := c.garbage - c.live/100; got > c.garbage || c.garbage > 0 && got+c.live/100 < low {
			t.Errorf("%d MiB live: %d MiB of garbage, want %d", c.live/mib, got/mib, c.garbage/mib)
		}
	}
	for live, last := uint64(0), 100; live < 1<<40; live += 1 + live/2 {
		if p := gcPercent(live); p > last || p < moreGarbage {
			t.Fatalf("%d bytes live: %d percent behind %d", live, p, last)
		} else {
			last = p
		}
	}
}

// The percentage follows a heap that grows and shrinks, and is not set for little.
func TestTheCollectorFollowsTheHeap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := uint64(0)
		var set []int
		ctx, cancel := context.WithCancel(t.Context())
		before := make(chan int)
		go func() {
			before <- followHeap(ctx, func() uint64 { return live }, func(p int) int { set = append(set, p); return 77 })
		}()
		for _, size := range []uint64{50, 64, 264, 266, 270, 100, 10} {
			synctest.Wait()
			live = size << 20
			time.Sleep(heapEvery)
		}
		cancel()
		if got := <-before; got != 77 {
			t.Errorf("it was %d before, want 77", got)
		}
		if want := []int{100, 54, 78, 100}; !slices.Equal(set, want) {
			t.Errorf("it was set to %d, want %d", set, want)
		}
	})
}

func TestLiveHeapIsWhatACollectionFound(t *testing.T) {
	ballast := make([]byte, 32<<20)
	runtime.GC()
	if live := liveHeap(); live < uint64(len(ballast)) {
		t.Errorf("%d bytes are live, want at least the %d that are held", live, len(ballast))
	}
	runtime.KeepAlive(ballast)
}
