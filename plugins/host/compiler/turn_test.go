// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wanted is a turn that others always want, and have until back has returned.
type wanted struct {
	passed int
	back   func(ctx context.Context) error
}

func (*wanted) Wanted() bool { return true }

func (w *wanted) Pass(ctx context.Context) error {
	w.passed++
	return w.back(ctx)
}

// stopped waits until a child of this process has stopped. Of one that has ended the error is unix.ECHILD.
func stopped(pid int) error {
	var info unix.Siginfo
	for {
		// It goes on to be waited for by whoever started it.
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the child to stop: %w", err)
		default:
			return nil
		}
	}
}

// TestAChildRests: while others have its turn it works no more, and then it goes on. Its rest is no part of its
// time by the clock.
func TestAChildRests(t *testing.T) {
	// On a busy machine two seconds of a processor take minutes.
	c := newChild(t, Limits{CPU: 2 * time.Second, Deadline: time.Hour}, "spin")
	var own, rests int // children of other tests may not have ended yet
	c.started = func(pid int) { own = pid }
	turn := &wanted{back: func(context.Context) error {
		switch err := stopped(own); {
		case err == nil:
			rests++
		case !errors.Is(err, unix.ECHILD): // its time is up
			t.Error(err)
		}
		return nil
	}}
	_, err := c.InTurn(turn).Compile(t.Context(), []byte("x"), Spec{})
	var too *Exceeded
	if !errors.As(err, &too) || too.What != "processor time" || rests < 2 {
		t.Errorf("rested %d times: %v", rests, err)
	}

	c = newChild(t, Limits{Deadline: time.Second}, "sleep")
	turn = &wanted{back: func(ctx context.Context) error {
		select {
		case <-time.After(2 * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	if _, err = c.InTurn(turn).Compile(t.Context(), []byte("x"), Spec{}); !errors.As(err, &too) || too.What != "time" || turn.passed < 1 {
		t.Errorf("passed its turn %d times: %v", turn.passed, err)
	}
}

// TestAChildThatHasNoTurnAgainIsEnded, and one whose caller has gone while it rests.
func TestAChildThatHasNoTurnAgainIsEnded(t *testing.T) {
	c := newChild(t, Limits{}, "spin")
	late := errors.New("its turn did not come")
	turn := &wanted{back: func(context.Context) error { return late }}
	if _, err := c.InTurn(turn).Compile(t.Context(), []byte("x"), Spec{}); !errors.Is(err, late) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	turn.back = func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	if _, err := c.InTurn(turn).Compile(ctx, []byte("x"), Spec{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
