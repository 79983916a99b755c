// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Pace has the garbage collector run the earlier the more is live, until ctx ends.
// Its default lets as much garbage gather as is live, which doubles the memory of a
// large cluster. GOGC in the environment is the operator's choice, and stays.
func Pace(ctx context.Context) error {
	if os.Getenv("GOGC") != "" {
		<-ctx.Done() // a unit that returns would end those that run beside it
		return nil
	}
	before := followHeap(ctx, liveHeap, debug.SetGCPercent)
	debug.SetGCPercent(before)
	return nil
}

// Of the live heap, littleHeap may be doubled by garbage, and what is above it
// grow by a share of moreGarbage percent. Most of a large heap are packed objects,
// which the collector does not look into, so that collecting it more often
// costs little: at 10,000 pods, some 2 % of the processor time of writes.
const (
	littleHeap  = 64 << 20
	moreGarbage = 40
)

// gcPercent is what GOGC is to be where so many bytes are live.
func gcPercent(live uint64) int {
	if live <= littleHeap {
		return 100
	}
	return int((100*littleHeap + moreGarbage*(live-littleHeap)) / live)
}

// heapEvery is how often the live heap is looked at. It changes with the
// collections, and few of those have passed in this time.
const heapEvery = time.Second

// followHeap sets the percentage to what the live heap asks for until ctx ends,
// and answers what it was before. Small changes are left out: each stops the world.
func followHeap(ctx context.Context, live func() uint64, set func(percent int) int) (before int) {
	now := gcPercent(live())
	before = set(now)
	tick := time.NewTicker(heapEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return before
		case <-tick.C:
		}
		if want := gcPercent(live()); want < now-4 || want > now+4 {
			now = want
			set(now)
		}
	}
}

// liveHeap is what the last collection found to be live.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
