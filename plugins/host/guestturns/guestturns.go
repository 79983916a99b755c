// SPDX-License-Identifier: Apache-2.0

// Package guestturns shares the processors among guests that run for long: all processors but one.
//
// A guest gives way at its safe points, but what it gives way to are goroutines that
// are ready. One that waits for the network, or for a timer, becomes ready when a processor
// without work asks the kernel; where every processor has a guest to go on with, nobody does
// but Go's monitor thread, every ten milliseconds, and each read of each connection takes that
// long. With one processor left over, a request beside guests that burn all they have takes what it takes alone.
//
// Calls shorter than From, which are nearly all, never wait here. Length is told by
// fuel: on a machine that others use, time says how busy they are.
package guestturns

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// From is how much fuel a call uses before it needs a turn: about a millisecond.
	From = 1 << 20
	// Length is the fuel of a turn while others wait.
	Length = 1 << 21

	rest = 100 * time.Microsecond // what is left between turns on a single processor
)

// Turns are what the guests of one engine share.
type Turns struct {
	slots   chan struct{}
	alone   bool // there is one processor only: whoever runs on it rests between turns
	waiting atomic.Int32
}

// New makes turns for the processors that Go may use.
func New() *Turns { return of(runtime.GOMAXPROCS(0)) }

func of(processors int) *Turns {
	return &Turns{slots: make(chan struct{}, max(1, processors-1)), alone: processors == 1}
}

// Hold takes a turn for work of the host that a guest has caused, and returns what ends it.
func (t *Turns) Hold() (end func()) {
	t.slots <- struct{}{}
	return func() { <-t.slots }
}

// Turn is one guest's part. Its owner uses it alone; the zero value holds no turn.
type Turn struct {
	held bool
	from int64 // fuel that the call had used when its turn began
}

// Begin is the begin of a call, whose use of fuel counts from 0.
func (p *Turn) Begin() { p.from = 0 }

// Take lets a guest go on that has used so much fuel: at once where its turn lasts or it needs none, else
// when it has one. It returns false where the deadline passed or done was closed before.
func (t *Turns) Take(p *Turn, used int64, deadline time.Time, done <-chan struct{}) bool {
	switch {
	case p.held && used-p.from < Length:
		return true
	case p.held && t.alone:
		t.Give(p)
		await(nil, rest, done)
	case p.held && t.waiting.Load() == 0:
		return true
	case p.held:
		t.Give(p)
	case used < From:
		return true
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	select {
	case t.slots <- struct{}{}:
	default:
		if !await(t.slots, time.Until(deadline), done) {
			return false
		}
	}
	*p = Turn{held: true, from: used}
	return true
}

// await waits for a slot, at most so long or until done is closed, and says
// whether it has it; of nil slots there is none to be had.
func await(slots chan<- struct{}, most time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return true
	case <-timer.C:
	case <-done:
	}
	return false
}

// Give ends a turn. It is called before a guest waits for anything else, so that
// nobody waits for a turn of one that waits for him.
func (t *Turns) Give(p *Turn) {
	if p.held {
		p.held = false
		<-t.slots
	}
}
