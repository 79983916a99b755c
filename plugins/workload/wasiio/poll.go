// SPDX-License-Identifier: Apache-2.0

package wasiio

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/link"
)

// Names of wasi:io/poll.
const (
	Polls        = "wasi:io/poll"
	PollableName = "pollable"
)

// Pollable is what can be waited for. The channel is closed when it may have become ready.
type Pollable interface {
	Ready() (bool, <-chan struct{})
}

// Always is ready.
type Always struct{}

// Ready implements Pollable.
func (Always) Ready() (bool, <-chan struct{}) { return true, nil }

// subscription is a pollable of something that is another resource: it ends for itself.
type subscription struct{ Pollable }

// Subscribe is a function that gives a pollable of its first argument.
func Subscribe(w *Table, c *link.Call, args []any) any {
	return w.Give(c, Polls, PollableName, subscription{Resource[Pollable](w, args, 0)})
}

var pollFunctions = In(Polls, map[string]Function{
	"[method]pollable.ready": func(w *Table, _ *link.Call, args []any) any {
		is, _ := Resource[Pollable](w, args, 0).Ready()
		return is
	},
	"[method]pollable.block": func(w *Table, c *link.Call, args []any) any {
		wait(c.Context, Resource[Pollable](w, args, 0))
		return nil
	},
	"poll": func(w *Table, c *link.Call, args []any) any {
		list := link.Arg[[]any](args, 0)
		all := make([]Pollable, len(list))
		for i := range list {
			all[i] = Resource[Pollable](w, list, i)
		}
		if len(all) == 0 {
			canon.Fail("it polls nothing")
		}
		out := []any{}
		for _, i := range wait(c.Context, all...) {
			out = append(out, uint32(i))
		}
		return out
	},
})

// wait waits until one of these is ready, and answers which are.
func wait(ctx context.Context, all ...Pollable) []int {
	for {
		var is []int
		cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
		for i, p := range all {
			ready, changed := p.Ready()
			if ready {
				is = append(is, i)
				continue
			}
			cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(changed)})
		}
		if len(is) > 0 {
			return is
		}
		if chosen, _, _ := reflect.Select(cases); chosen == 0 {
			Interrupted(ctx)
		}
	}
}

// Signal wakes those who wait for a change. The zero value is ready for use.
type Signal struct {
	sync.Mutex
	changed chan struct{}
}

// Watch is closed at the next change. The lock is held.
func (s *Signal) Watch() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// Change changes something under the lock.
func (s *Signal) Change(what func()) {
	s.Lock()
	defer s.Unlock()
	what()
	s.wake()
}

// wake wakes those who watch. The lock is held.
func (s *Signal) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// alarm is ready from a time on.
type alarm struct {
	at    time.Time
	timer *time.Timer
	due   chan struct{}
}

// Timer is a pollable that is ready from a time on.
func Timer(at time.Time) Pollable { return &alarm{at: at} }

func (a *alarm) Ready() (bool, <-chan struct{}) {
	left := time.Until(a.at)
	if left <= 0 {
		return true, nil
	}
	if a.timer == nil {
		due := make(chan struct{})
		a.due, a.timer = due, time.AfterFunc(left, func() { close(due) })
	}
	return false, a.due
}

func (a *alarm) End() {
	if a.timer != nil {
		a.timer.Stop()
	}
}
