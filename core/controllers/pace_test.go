// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A key that is queued again by what it does, and succeeds each time, goes on at 10 times a
// second after its burst, is told of after five minutes, and delays no other key.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		hot, other := 0, []time.Time{}
		var loop *Loop[string]
		loop = NewLoop(Env{Log: slog.New(slog.NewTextHandler(&said, nil))}, "test", 1, func(_ context.Context, key string) error {
			if key == "hot" {
				hot++
				loop.Add("hot") // as the event of its own write does
				return nil
			}
			other = append(other, time.Now())
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- loop.Run(ctx) }()
		loop.Add("hot")
		time.Sleep(time.Minute)
		synctest.Wait()
		if hot < paceBurst+500 || hot > paceBurst+601 {
			t.Errorf("%d reconciles in the first minute, want %d at once and 10 a second", hot, paceBurst)
		}
		began := time.Now()
		loop.Add("other")
		synctest.Wait()
		if len(other) != 1 || !other[0].Equal(began) {
			t.Errorf("another key was worked on at %v, and queued at %v", other, began)
		}
		if said.Len() > 0 {
			t.Errorf("said in the first minute: %s", said.String())
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := strings.Count(said.String(), "worked on without end"); n != 1 {
			t.Errorf("told %d times in six minutes, want once:\n%s", n, said.String())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Keys that rest are forgotten, and have their burst back when they come again.
func TestPaceForgetsWhatRests(t *testing.T) {
	var p pace[int]
	now := time.Now()
	for i := range 100000 {
		now = now.Add(time.Millisecond)
		if wait, _ := p.take(i, now); wait > 0 {
			t.Fatalf("a new key waits %v", wait)
		}
	}
	if len(p.by) > 2*paceKept+200 { // 100 keys a moment ago have not rested yet
		t.Errorf("%d keys are remembered", len(p.by))
	}
	taken := func() (n int) {
		for n = 0; ; n++ {
			if wait, _ := p.take(-1, now); wait > 0 {
				return n
			}
		}
	}
	if n := taken(); n != paceBurst {
		t.Errorf("a key is worked on %d times at once, want %d", n, paceBurst)
	}
	now = now.Add(time.Second)
	if n := taken(); n != 10 {
		t.Errorf("%d times a second later, want 10", n)
	}
	now = now.Add(time.Minute)
	if n := taken(); n != paceBurst {
		t.Errorf("%d times after a minute, want %d", n, paceBurst)
	}
}
