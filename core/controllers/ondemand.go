// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/wasmplane/wasmplane/core/run"
)

// dozeAfter is how long a loop without keys keeps its queue: the queue reports the work under way
// twice a second, and has to say once that there is none.
const dozeAfter = time.Second

// OnDemand is a Loop for hundreds: its workers live as long as there are keys, and its queue a
// second longer. While nothing happens it is a few hundred bytes, without goroutine or timer.
// Whoever has informers tells it of keys; it watches nothing itself.
type OnDemand[K comparable] struct {
	attempts[K]
	workers int
	backoff workqueue.TypedRateLimiter[K]
	running run.Tasks

	mu      sync.Mutex
	wake    func() // starts a worker; nil while the loop is stopped
	queue   workqueue.TypedInterface[K]
	busy    int // workers
	doze    *time.Timer
	delayed map[K]*delay
}

// delay is a key that comes later. A key has one, the earliest that was asked for.
type delay struct {
	at    time.Time
	timer *time.Timer
}

// NewOnDemand makes a loop that is stopped. workers below 1 counts as 1.
func NewOnDemand[K comparable](env Env, name string, workers int, reconcile func(context.Context, K) error) *OnDemand[K] {
	l := &OnDemand[K]{workers: max(workers, 1), backoff: backoff[K](), delayed: map[K]*delay{}}
	l.attempts = newAttempts(env, name, reconcile, l)
	return l
}

// Start lets keys be worked on until ctx ends, which its caller follows by Stop. Keys of before
// are ignored.
func (l *OnDemand[K]) Start(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake = func() { l.running.Go("controller "+l.name, func() { l.work(ctx) }) }
}

// Stop forgets all keys and waits for those that are worked on. A reconcile must not call it.
func (l *OnDemand[K]) Stop() {
	l.mu.Lock()
	l.wake = nil
	for key, d := range l.delayed {
		d.timer.Stop()
		delete(l.delayed, key)
	}
	l.mu.Unlock()
	l.running.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue != nil {
		l.asleep()
	}
}

// Add queues a key.
func (l *OnDemand[K]) Add(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake == nil {
		return
	}
	if l.queue == nil {
		// The name is what its workqueue_* metrics have.
		l.queue = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Name: l.name, Queue: newFairQueue[K]()})
	}
	l.queue.Add(key)
	if l.busy < l.workers && l.queue.Len() > 0 {
		l.busy++
		l.wake()
	}
}

// AddAfter queues a key after a delay, unless it comes earlier already.
func (l *OnDemand[K]) AddAfter(key K, after time.Duration) {
	if after <= 0 {
		l.Add(key)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake == nil {
		return
	}
	d := &delay{at: time.Now().Add(after)}
	if earlier := l.delayed[key]; earlier != nil {
		if !d.at.Before(earlier.at) {
			return
		}
		earlier.timer.Stop()
	}
	d.timer = time.AfterFunc(after, func() { l.ripe(key, d) })
	l.delayed[key] = d
}

// ripe queues a key whose delay is over, unless it was put off or forgotten meanwhile.
func (l *OnDemand[K]) ripe(key K, d *delay) {
	l.mu.Lock()
	same := l.delayed[key] == d
	if same {
		delete(l.delayed, key)
	}
	l.mu.Unlock()
	if same {
		l.Add(key)
	}
}

// AddRateLimited queues a key that failed after its backoff.
func (l *OnDemand[K]) AddRateLimited(key K) { l.AddAfter(key, l.backoff.When(key)) }

// Forget ends a key's backoff.
func (l *OnDemand[K]) Forget(key K) { l.backoff.Forget(key) }

// NumRequeues is how often a key failed in a row.
func (l *OnDemand[K]) NumRequeues(key K) int { return l.backoff.NumRequeues(key) }

// work is one worker.
func (l *OnDemand[K]) work(ctx context.Context) {
	for {
		key, ok := l.take(ctx)
		if !ok {
			return
		}
		l.once(ctx, key)
		l.done(key)
	}
}

// take takes the next key. Without one the worker ends.
func (l *OnDemand[K]) take(ctx context.Context) (key K, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake != nil && ctx.Err() == nil && l.queue.Len() > 0 {
		key, _ = l.queue.Get() // it doesn't wait: there is a key, and nobody else takes one now
		return key, true
	}
	if l.busy--; l.busy > 0 {
		return key, false
	}
	if l.doze != nil {
		l.doze.Stop()
	}
	l.doze = time.AfterFunc(dozeAfter, l.dozeOff)
	return key, false
}

func (l *OnDemand[K]) done(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.Done(key)
}

func (l *OnDemand[K]) dozeOff() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue != nil && l.busy == 0 {
		l.asleep()
	}
}

// asleep gives the queue up. Nobody works on a key of it.
func (l *OnDemand[K]) asleep() {
	l.doze.Stop()
	l.queue.ShutDown()
	l.queue, l.doze = nil, nil
}
