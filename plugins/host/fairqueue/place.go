// SPDX-License-Identifier: Apache-2.0

package fairqueue

import (
	"context"
	"slices"
)

// Place is a place that somebody holds.
type Place struct {
	queue   *Queue
	tenant  string
	left    bool // guarded by Queue.mu
	running bool // it is held, and was not passed on for good; guarded by Queue.mu
}

// Leave gives the place up. Leaving twice does nothing.
func (p *Place) Leave() {
	q := p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.left {
		return
	}
	p.left = true
	if q.held[p.tenant]--; q.held[p.tenant] == 0 {
		delete(q.held, p.tenant)
	}
	if p.tenant != "" && p.running {
		q.tenants--
	}
	q.dispatch()
}

// Wanted says whether the holder should pass the place on: it is a tenant's, another tenant waits for
// it, and not too many have passed theirs on already.
func (p *Place) Wanted() bool {
	q := p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	return p.wanted()
}

func (p *Place) wanted() bool {
	q := p.queue
	return p.tenant != "" && len(q.paused) < q.cfg.Paused && (len(q.paused) > 0 || q.next() >= 0)
}

// Pass lets another tenant have the place, and returns when its holder has one again. The
// holder's work must rest meanwhile; it still counts as one of its tenant's. Where nobody wants the
// place, Pass returns at once. After an error the place is not held, and has to be left all the same.
func (p *Place) Pass(ctx context.Context) error {
	q := p.queue
	q.mu.Lock()
	if !p.wanted() {
		q.mu.Unlock()
		return nil
	}
	w := &waiter{granted: make(chan struct{})}
	q.tenants--
	if len(q.paused) == 0 { // otherwise its holder would go on at once
		q.resumed = true
	}
	q.paused = append(q.paused, w)
	q.dispatch()
	q.mu.Unlock()
	err := q.await(ctx, w)
	if err == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !w.given {
		p.running = false
		q.paused = slices.DeleteFunc(q.paused, func(x *waiter) bool { return x == w })
	}
	return err
}
