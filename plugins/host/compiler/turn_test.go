// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// stopped waits until all children of this process have stopped.
func stopped(ctx context.Context) error {
	for ctx.Err() == nil {
		lists, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			return err
		}
		var children, resting int
		for _, list := range lists {
			text, err := os.ReadFile(list)
			if err != nil {
				continue // the thread has ended
			}
			for _, pid := range strings.Fields(string(text)) {
				children++
				if stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat")); err == nil && strings.Contains(string(stat), ") T ") {
					resting++
				}
			}
		}
		if children > 0 && children == resting {
			return nil
		}
	}
	return fmt.Errorf("no child has stopped: %w", ctx.Err())
}

// TestAChildRests: while others have its turn it works no more, and then it goes on. Its rest is no part of its
// time by the clock.
func TestAChildRests(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := newChild(t, Limits{CPU: 3 * time.Second, Deadline: 40 * time.Second}, "spin")
	turn := &wanted{back: func(ctx context.Context) error {
		if err := stopped(ctx); err != nil {
			t.Error(err)
		}
		return nil
	}}
	_, err := c.InTurn(turn).Compile(ctx, []byte("x"), Spec{})
	var too *Exceeded
	if !errors.As(err, &too) || too.What != "processor time" || turn.passed < 2 {
		t.Errorf("passed its turn %d times: %v", turn.passed, err)
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
	if _, err = c.InTurn(turn).Compile(ctx, []byte("x"), Spec{}); !errors.As(err, &too) || too.What != "time" || turn.passed < 1 {
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
