// SPDX-License-Identifier: Apache-2.0

// Package rounds does what a kubelet does now and then: it looks at the node, keeps house, probes, writes. Each such
// thing is a Step that says when it is due next, and all of them have one timer and a bounded number of goroutines,
// whether they are those of one kubelet or of ten thousand simulated ones. A step that waits for nothing costs nothing
// but its place in a heap.
package rounds

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

// Step does what is due, and says how long until it is due again; Never: when somebody asks for it. A step is never done
// twice at a time. Its context ends with the rounds.
type Step func(ctx context.Context) (again time.Duration)

// Never is the answer of a step that waits for Soon.
const Never time.Duration = -1

// Rounds are steps that are done when they are due. They are safe for concurrent use.
type Rounds struct {
	parallel int
	wake     chan struct{}
	tasks    run.Tasks

	mu      sync.Mutex
	due     turns
	working int
}

// New makes rounds that do so many steps at a time at the most; Run runs them.
func New(parallel int) *Rounds { return &Rounds{parallel: parallel, wake: make(chan struct{}, 1)} }

// Turn is one step's.
type Turn struct {
	rounds *Rounds
	name   string
	step   Step

	at      time.Time
	place   int // in the heap; -1 = it is not there
	working bool
	again   bool // it is asked for while it works
	gone    bool
}

// Add adds a step that is due after a while. The name is for profiles.
func (r *Rounds) Add(name string, first time.Duration, step Step) *Turn {
	t := &Turn{rounds: r, name: name, step: step, place: -1}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedule(t, first)
	return t
}

// Soon has the step done now, or once more after the step that is being done. It never blocks.
func (t *Turn) Soon() {
	r := t.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.working {
		t.again = true
		return
	}
	r.schedule(t, 0)
}

// Stop ends a turn. A step that is being done goes on to its end.
func (t *Turn) Stop() {
	r := t.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	t.gone = true
	if t.place >= 0 {
		heap.Remove(&r.due, t.place)
	}
}

// Go runs f in a goroutine whose end Run waits for.
func (r *Rounds) Go(name string, f func()) { r.tasks.Go(name, f) }

// schedule puts a turn into the heap, or moves it there. Lock held.
func (r *Rounds) schedule(t *Turn, in time.Duration) {
	if t.gone || in < 0 {
		return
	}
	t.at = time.Now().Add(in)
	if t.place >= 0 {
		heap.Fix(&r.due, t.place)
	} else {
		heap.Push(&r.due, t)
	}
	if t.place == 0 {
		r.nudge()
	}
}

func (r *Rounds) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run does steps until ctx ends, and waits for those that are being done then.
func (r *Rounds) Run(ctx context.Context) error {
	defer r.tasks.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		wait := r.begin(ctx)
		var fires <-chan time.Time
		if wait >= 0 {
			timer.Reset(wait)
			fires = timer.C
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-fires:
		}
	}
	return nil
}

// begin has goroutines work for the steps that are due, and says how long until the next is; Never: nobody knows.
func (r *Rounds) begin(ctx context.Context) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.working < r.parallel {
		t := r.next()
		if t == nil {
			break
		}
		r.working++
		r.tasks.Go(t.name, func() { r.work(ctx, t) })
	}
	switch {
	case len(r.due) == 0 || r.working >= r.parallel:
		return Never // who works goes on with the next
	default:
		return max(time.Until(r.due[0].at), 0)
	}
}

// next takes a turn that is due out of the heap; nil: none is. Lock held.
func (r *Rounds) next() *Turn {
	if len(r.due) == 0 || r.due[0].at.After(time.Now()) {
		return nil
	}
	t, _ := heap.Pop(&r.due).(*Turn)
	t.working = true
	return t
}

// work does a step, and then others that are due until none is.
func (r *Rounds) work(ctx context.Context, t *Turn) {
	for t != nil {
		again := t.step(ctx)
		r.mu.Lock()
		t.working = false
		if t.again {
			t.again, again = false, 0
		}
		r.schedule(t, again)
		if t = r.next(); t == nil || ctx.Err() != nil {
			t = nil
			r.working--
			r.nudge() // the timer is set anew
		}
		r.mu.Unlock()
	}
}

// turns are a heap: the one that is due first is in front.
type turns []*Turn

func (h turns) Len() int           { return len(h) }
func (h turns) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h turns) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i, j }

// Push implements heap.Interface.
func (h *turns) Push(x any) {
	t, _ := x.(*Turn)
	t.place = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *turns) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.place = -1
	return t
}
