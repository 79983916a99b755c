// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

// A tenant with very many keys, all of which fail, keeps nobody else's waiting.
func TestATenantsKeysKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 100_000
		var worked atomic.Int64
		before := make(chan int64, 1)
		loop := NewLoop(Env{}, "", 2, func(_ context.Context, k Key) error {
			time.Sleep(time.Millisecond) // of the bubble: what a write takes
			if k.Namespace == "others" {
				before <- worked.Load()
				return nil
			}
			worked.Add(1)
			return errors.New("it fails")
		})
		for i := range many {
			loop.Add(Key{Namespace: "evil", Name: fmt.Sprint(i)})
		}
		loop.Add(Key{Namespace: "others", Name: "web"})
		ctx, stop := context.WithCancel(t.Context())
		ended := run.Go("loop", func() error { return loop.Run(ctx) })
		if n := <-before; n > 10 {
			t.Errorf("another's key waited for %d of a tenant's", n)
		}
		// Nor when they come back one by one.
		time.Sleep(time.Second)
		n := worked.Load()
		loop.Add(Key{Namespace: "others", Name: "web"})
		if n = <-before - n; n > 10 {
			t.Errorf("later another's key waited for %d of a tenant's", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// embedding is a key with more to it.
type embedding struct {
	_ bool
	Key
}

func TestFairQueue(t *testing.T) {
	q := newFairQueue[embedding]()
	push := func(names ...string) {
		for _, n := range names {
			q.Push(embedding{Key: Key{Namespace: n[:1], Name: n[1:]}})
		}
	}
	push("a1", "a2", "a3", "b1", "c1", "b2")
	q.Touch(embedding{})
	var got []string
	for i := 0; q.Len() > 0; i++ {
		k := q.Pop()
		got = append(got, k.Namespace+k.Name)
		if i == 2 {
			push("d1", "a4")
		}
	}
	if want := []string{"a1", "b1", "c1", "a2", "b2", "d1", "a3", "a4"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(q.by) != 0 || len(q.next) != 0 {
		t.Errorf("left over: %v %v", q.by, q.next)
	}
	flat := newFairQueue[string]() // keys that say nothing of namespaces
	flat.Push("x")
	flat.Push("y")
	if flat.Pop() != "x" || flat.Pop() != "y" {
		t.Error("first come, first served")
	}
}
