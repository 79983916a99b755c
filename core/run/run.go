// SPDX-License-Identifier: Apache-2.0

// Package run is the kit for lifetimes. A Group starts the parts of a process in
// order, waits for each to be ready, and stops them in reverse order when the
// process ends or a part fails. Within a part, Together runs loops side by side, Go
// and Tasks start goroutines that have a name and an owner, and Sleep, Await and
// Backoff wait in ways that end with their context.
//
// Every package may use it, so it stays light: what needs a client of the API
// (leader election, work queues) is in folders below.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Unit is one part of a process.
type Unit struct {
	// Name is shown in progress, logs and errors.
	Name string
	// Run works until ctx ends. A return before that, even of nil, stops the group.
	Run func(ctx context.Context) error
	// Ready is closed when the units behind this one may start; nil = at once.
	Ready <-chan struct{}
}

// Progress is told when a unit starts and, with how long it took, when it is ready.
type Progress func(name string, ready bool, took time.Duration)

// Group is an ordered list of units.
type Group struct {
	Logger *slog.Logger
	// Progress may be nil.
	Progress Progress
	// StopTimeout bounds how long one unit may take to stop; 0 = 10 s.
	StopTimeout time.Duration

	units []Unit

	mu       sync.Mutex
	statuses []Status // of units, by place
}

// Add appends a unit. All are added before Run.
func (g *Group) Add(u Unit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	status := Status{Name: u.Name, State: Waiting}
	if n := len(g.units); n > 0 {
		status.After = g.units[n-1].Name
	}
	g.units, g.statuses = append(g.units, u), append(g.statuses, status)
}

type running struct {
	Unit
	at     int // its place in the group
	cancel context.CancelFunc
	done   chan struct{}
	err    error // readable once done is closed
}

// Run starts every unit, calls ready once all are, and waits for ctx's end or the
// first failure, which it returns. When it returns every unit has stopped, or has
// been given up on after StopTimeout, which is an error too.
func (g *Group) Run(ctx context.Context, ready func()) error {
	// Units stop one after the other, so none of them sees ctx end by itself.
	base := context.WithoutCancel(ctx)
	failed := make(chan *running, len(g.units))
	var started []*running
	var first error
	for at, u := range g.units {
		r := g.start(base, at, u, failed)
		started = append(started, r)
		if first = g.await(ctx, r, failed); first != nil || ctx.Err() != nil {
			break
		}
	}
	if first == nil && ctx.Err() == nil {
		if ready != nil {
			ready()
		}
		select {
		case <-ctx.Done():
		case r := <-failed:
			first = r.failure()
		}
	}
	return errors.Join(first, g.stop(started))
}

func (g *Group) start(ctx context.Context, at int, u Unit, failed chan<- *running) *running {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{Unit: u, at: at, cancel: cancel, done: make(chan struct{})}
	g.enter(at, Starting, nil)
	go labelled(u.Name, func() {
		r.err = u.Run(ctx)
		state := Stopped
		if ctx.Err() == nil {
			state = Failed
		}
		g.enter(at, state, r.err)
		close(r.done)
		if state == Failed {
			failed <- r
		}
	})
	return r
}

func (g *Group) await(ctx context.Context, r *running, failed <-chan *running) error {
	begin := time.Now()
	if g.Progress != nil {
		g.Progress(r.Name, false, 0)
	}
	if r.Ready != nil {
		select {
		case <-r.Ready:
		case <-ctx.Done():
			return nil
		case f := <-failed:
			return f.failure()
		}
	}
	g.enter(r.at, Ready, nil)
	if g.Progress != nil {
		g.Progress(r.Name, true, time.Since(begin))
	}
	return nil
}

func (r *running) failure() error {
	if r.err == nil {
		return fmt.Errorf("%s ended unexpectedly", r.Name)
	}
	return fmt.Errorf("%s: %w", r.Name, r.err)
}

func (g *Group) stop(started []*running) error {
	limit := g.StopTimeout
	if limit == 0 {
		limit = 10 * time.Second
	}
	var errs []error
	for i := len(started) - 1; i >= 0; i-- {
		r := started[i]
		g.enter(r.at, Stopping, nil)
		r.cancel()
		timer := time.NewTimer(limit)
		select {
		case <-r.done:
			if r.err != nil && !errors.Is(r.err, context.Canceled) && g.Logger != nil {
				g.Logger.Debug("a part ended with an error while stopping", "part", r.Name, "error", r.err)
			}
		case <-timer.C:
			errs = append(errs, fmt.Errorf("%s did not stop within %s", r.Name, limit))
		}
		timer.Stop()
	}
	return errors.Join(errs...)
}
