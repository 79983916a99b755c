// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"time"
)

const (
	// paceBurst is how often a key is worked on at once before it is delayed: far more
	// than a rollout of thousands of pods needs in one go.
	paceBurst = 200
	// paceEvery is how often it is worked on from then on, 10 times a second. A key that
	// rests earns one of its burst back in each such time, and has all of it after 20 s.
	paceEvery = 100 * time.Millisecond
	// paceLong is after how long a key that is delayed all the time is worth a warning:
	// two writers that undo each other's work look like this.
	paceLong = 5 * time.Minute
	// paceKept is how many keys are remembered, at the least, before those that rest are
	// forgotten.
	paceKept = 64
)

// pace bounds how often a loop works on one key, also where each time succeeds. Backoff
// bounds keys that fail; but a controller whose cache stands still, while another one undoes
// what it does, succeeds for ever and at full speed. Each key has a bucket of paceBurst
// tokens. It remembers only keys whose bucket is not full, give or take paceKept of them.
type pace[K comparable] struct {
	mu      sync.Mutex
	by      map[K]*paced
	sweepAt int
}

type paced struct {
	full  time.Time // when the bucket is full again
	since time.Time // since when the key is delayed again and again; a warning moves it
}

// take takes a token. wait is above 0 where there is none yet, and long says that it has been
// like this for paceLong.
func (p *pace[K]) take(key K, now time.Time) (wait time.Duration, long bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.by[key]
	if k == nil {
		p.sweep(now)
		k = &paced{}
		p.by[key] = k
	}
	if k.full.Before(now) {
		*k = paced{full: now}
	}
	if wait = k.full.Add(paceEvery).Sub(now) - paceBurst*paceEvery; wait <= 0 {
		k.full = k.full.Add(paceEvery)
		return 0, false
	}
	if k.since.IsZero() {
		k.since = now
	}
	if long = now.Sub(k.since) >= paceLong; long {
		k.since = now
	}
	return wait, long
}

// sweep forgets keys that rest, whenever there are twice as many as were left the last time.
func (p *pace[K]) sweep(now time.Time) {
	if p.by == nil {
		p.by, p.sweepAt = map[K]*paced{}, paceKept
	}
	if len(p.by) < p.sweepAt {
		return
	}
	for key, k := range p.by {
		if !k.full.After(now) {
			delete(p.by, key)
		}
	}
	p.sweepAt = max(paceKept, 2*len(p.by))
}
