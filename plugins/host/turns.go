// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// turns share the processors among guests that run for long: all but one of them.
//
// A guest gives way at its safe points, but what it gives way to are goroutines that
// are ready. One that waits for the network, or for a timer, becomes ready when a processor
// without work asks the kernel; where every processor has a guest to go on with, nobody does
// but Go's monitor thread, every ten milliseconds, and each read of each connection takes that
// long. With one processor left over, a request beside guests that burn all they have takes what it takes alone.
//
// Calls shorter than turnFrom, which are nearly all, never come here. Length is told by
// fuel: on a machine that others use, time says how busy they are.
type turns struct {
	slots   chan struct{}
	alone   bool // there is one processor only: whoever runs on it rests between turns
	waiting atomic.Int32
}

const (
	turnFrom   = 1 << 20                // fuel that a call uses before it needs a turn: about a millisecond
	turnLength = 1 << 21                // fuel of a turn while others wait
	turnRest   = 100 * time.Microsecond // what is left between turns on a single processor
)

func newTurns() *turns {
	n := runtime.GOMAXPROCS(0)
	return &turns{slots: make(chan struct{}, max(1, n-1)), alone: n == 1}
}

// turn is an instance's part in it.
type turn struct {
	held bool
	from int64 // fuel that the call had used when its turn began
}

// takeTurn lets a guest that has run for long go on when it is its turn.
func (in *Instance) takeTurn() {
	t, used := in.module.host.turns, in.used()
	switch {
	case in.turn.held && used-in.turn.from < turnLength:
		return
	case in.turn.held && t.alone:
		in.giveTurn()
		in.await(nil, turnRest)
	case in.turn.held && t.waiting.Load() == 0:
		return
	case in.turn.held:
		in.giveTurn()
	case used < turnFrom:
		return
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	select {
	case t.slots <- struct{}{}:
	default:
		if !in.await(t.slots, time.Until(in.meter.deadline)) {
			in.checkTime(time.Now())
			panic(&stop{kind: Deadline, detail: fmt.Sprintf("it waited for its turn beside other plugins until %s were over (%s)", in.allowed.time,
				in.allowed.named("deadline"))})
		}
	}
	in.turn = turn{held: true, from: used}
}

// await waits for a slot, at most so long or until the request ends, and says
// whether it has it; of nil slots there is none to be had.
func (in *Instance) await(slots chan<- struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return true
	case <-timer.C:
	case <-in.ctx.request.Done():
	}
	return false
}

// giveTurn ends a turn. It is called before a guest waits for anything else, so that
// nobody waits for a turn of one that waits for him.
func (in *Instance) giveTurn() {
	if in.turn.held {
		in.turn.held = false
		<-in.module.host.turns.slots
	}
}
