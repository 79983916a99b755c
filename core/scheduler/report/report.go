// SPDX-License-Identifier: Apache-2.0

// Package report writes to pods why they wait, beside the loop that decides: ten thousand
// pods that fit nowhere must not hold up the one that does. What is to be written of one pod
// replaces what was to be written of it before.
package report

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/wasmplane/wasmplane/core/run"
)

// Bounds: writes at the same time, and objects of which something is to be written. Beyond
// them who reports writes itself.
const (
	writers = 16
	most    = 1 << 16
)

// Write says why an object waits. again: something else was written in the meantime than the
// caller could know of.
type Write func(ctx context.Context, again bool)

// Reports are what is to be written. It is safe for concurrent use; nil is one that writes
// at once.
type Reports struct {
	queue workqueue.TypedInterface[types.UID]

	mu      sync.Mutex
	waiting map[types.UID]pending
	writing map[types.UID]chan struct{}
	again   map[types.UID]bool
}

// pending is what waits to be written about one object: the first, then the second. Either may be nil.
type pending struct{ first, also Write }

// New makes one; nothing is written before Run.
func New() *Reports {
	return &Reports{
		queue:   workqueue.NewTyped[types.UID](),
		waiting: map[types.UID]pending{}, writing: map[types.UID]chan struct{}{}, again: map[types.UID]bool{},
	}
}

// Submit has something written about an object, instead of what waits to be.
func (r *Reports) Submit(ctx context.Context, about types.UID, w Write) {
	r.SubmitAfter(ctx, about, 0, w)
}

// SubmitAfter is Submit of what is not worth a write if it holds for less than a delay: what is
// submitted until then takes its place, and Cancel takes it away.
func (r *Reports) SubmitAfter(ctx context.Context, about types.UID, delay time.Duration, w Write) {
	if r == nil || !r.take(about, delay, func(p *pending) { p.first = w }) {
		w(ctx, false)
	}
}

// Also has something written about an object after what waits to be, and after what is submitted until
// then. There is one such thing of an object: it takes the place of the one before.
func (r *Reports) Also(ctx context.Context, about types.UID, w Write) {
	if r == nil || !r.take(about, 0, func(p *pending) { p.also = w }) {
		w(ctx, false)
	}
}

func (r *Reports) take(about types.UID, delay time.Duration, put func(*pending)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, known := r.waiting[about]
	if !known && len(r.waiting) >= most || r.queue.ShuttingDown() {
		return false
	}
	put(&p)
	r.waiting[about] = p
	if r.writing[about] != nil {
		r.again[about] = true
	}
	if delay > 0 {
		// Not a queue with delays of its own, which has a goroutine from the moment that it is made.
		time.AfterFunc(delay, func() { r.queue.Add(about) })
		return true
	}
	r.queue.Add(about)
	return true
}

// Cancel forgets what is to be written about an object, and waits for what is being written: it
// will not overwrite what the caller writes next.
func (r *Reports) Cancel(ctx context.Context, about types.UID) {
	if r == nil {
		return
	}
	r.mu.Lock()
	delete(r.waiting, about)
	delete(r.again, about)
	busy := r.writing[about]
	r.mu.Unlock()
	if busy != nil {
		select {
		case <-busy:
		case <-ctx.Done():
		}
	}
}

// Run writes until ctx ends. What is left then is not written: who decides next decides anew.
func (r *Reports) Run(ctx context.Context) {
	run.Work(ctx, "writing statuses", writers, r.queue, r.write)
}

func (r *Reports) write(ctx context.Context, about types.UID) {
	r.mu.Lock()
	p, known := r.waiting[about]
	again, done := r.again[about], make(chan struct{})
	delete(r.waiting, about)
	delete(r.again, about)
	if known {
		r.writing[about] = done
	}
	r.mu.Unlock()
	if !known {
		return
	}
	for _, w := range []Write{p.first, p.also} {
		if w != nil {
			w(ctx, again)
		}
	}
	r.mu.Lock()
	delete(r.writing, about)
	r.mu.Unlock()
	close(done)
}
