// SPDX-License-Identifier: Apache-2.0

// Package fairqueue hands out a few places among those who need one: operators
// before tenants, tenants in turn whatever their number of requests, and each of them for a
// bounded time. It guarantees that
//   - an operator never waits for a tenant: tenants never hold the last places;
//   - one tenant that asks a thousand times delays another tenant by one turn;
//   - a tenant whose work can be interrupted holds no other up for longer than that takes (Pass);
//   - a wait ends: with a place, with the context, or with an error that says how long it was.
package fairqueue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Config bounds a Queue. Every field but Paused has to be set.
type Config struct {
	// Operators and Tenants are the places that each of them may hold at once. They are
	// counted apart, so that neither has to wait for the other's to end.
	Operators, Tenants int
	// PerTenant is how many of the tenants' places one tenant may hold.
	PerTenant int
	// Waiting is how many requests one tenant may have waiting; more are refused at once.
	Waiting int
	// Patience is the longest wait.
	Patience time.Duration
	// Paused is how many tenants may have passed their places on, and wait for the next turn
	// with work that is begun; 0 = nobody does.
	Paused int
}

// Queue is the places and who waits for one.
type Queue struct {
	cfg Config

	mu      sync.Mutex
	held    map[string]int       // places, by tenant; "" = operators
	tenants int                  // places that all tenants hold
	waiting map[string][]*waiter // by tenant, first come first served
	order   []string             // tenants that wait, in the order of their next turn
	paused  []*waiter            // tenants' work that was passed over, first come first served
	resumed bool                 // the last place of tenants was for such work
}

type waiter struct {
	granted chan struct{} // closed with the place; guarded by Queue.mu until then
	given   bool
}

// New makes a queue.
func New(cfg Config) *Queue {
	return &Queue{cfg: cfg, held: map[string]int{}, waiting: map[string][]*waiter{}}
}

// Error says why somebody got no place.
type Error struct{ Reason string }

func (e *Error) Error() string { return e.Reason }

// Enter waits for a place for a tenant, or for an operator (""), and returns what gives it
// up again. Leaving twice does nothing.
func (q *Queue) Enter(ctx context.Context, tenant string) (leave func(), err error) {
	p, err := q.Take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	return p.Leave, nil
}

// Take is Enter for work that can be interrupted.
func (q *Queue) Take(ctx context.Context, tenant string) (*Place, error) {
	w := &waiter{granted: make(chan struct{})}
	q.mu.Lock()
	if tenant != "" && len(q.waiting[tenant]) >= q.cfg.Waiting {
		q.mu.Unlock()
		return nil, &Error{fmt.Sprintf("%d others of namespace %s wait for their turn already: at most %d may", q.cfg.Waiting, tenant,
			q.cfg.Waiting)}
	}
	if len(q.waiting[tenant]) == 0 && tenant != "" {
		q.order = append(q.order, tenant)
	}
	q.waiting[tenant] = append(q.waiting[tenant], w)
	q.dispatch()
	q.mu.Unlock()

	p := &Place{queue: q, tenant: tenant, running: true}
	if err := q.await(ctx, w); err != nil {
		q.giveUp(p, w)
		return nil, err
	}
	return p, nil
}

// await waits for a place.
func (q *Queue) await(ctx context.Context, w *waiter) error {
	patience := time.NewTimer(q.cfg.Patience)
	defer patience.Stop()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-patience.C:
		return &Error{fmt.Sprintf("its turn did not come within %s", q.cfg.Patience)}
	}
}

// giveUp takes a waiter out, or gives back the place that it got in the same moment.
func (q *Queue) giveUp(p *Place, w *waiter) {
	q.mu.Lock()
	given := w.given
	if !given {
		q.remove(p.tenant, w)
	}
	q.mu.Unlock()
	if given {
		p.Leave()
	}
}

func (q *Queue) remove(tenant string, w *waiter) {
	q.waiting[tenant] = slices.DeleteFunc(q.waiting[tenant], func(x *waiter) bool { return x == w })
	if len(q.waiting[tenant]) == 0 {
		delete(q.waiting, tenant)
		q.order = slices.DeleteFunc(q.order, func(t string) bool { return t == tenant })
	}
}

// dispatch gives the free places away: in turn to those who begin and to those who go on.
func (q *Queue) dispatch() {
	for q.held[""] < q.cfg.Operators && len(q.waiting[""]) > 0 {
		q.grant("")
	}
	for q.tenants < q.cfg.Tenants {
		next := q.next()
		if next < 0 && len(q.paused) == 0 {
			return
		}
		q.tenants++
		if q.resumed = len(q.paused) > 0 && (next < 0 || !q.resumed); q.resumed {
			q.paused[0].grant()
			q.paused = q.paused[1:]
			continue
		}
		tenant := q.order[next]
		q.order = append(slices.Delete(q.order, next, next+1), tenant) // its next turn comes last
		q.grant(tenant)
	}
}

// next is whose turn to begin it is, by the place in the order; -1 = nobody's.
func (q *Queue) next() int {
	return slices.IndexFunc(q.order, func(t string) bool { return q.held[t] < q.cfg.PerTenant })
}

func (q *Queue) grant(tenant string) {
	w := q.waiting[tenant][0]
	q.held[tenant]++
	w.grant()
	q.remove(tenant, w)
}

func (w *waiter) grant() {
	w.given = true
	close(w.granted)
}
