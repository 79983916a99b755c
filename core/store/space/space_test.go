// SPDX-License-Identifier: Apache-2.0

package space_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/memstore"
	"github.com/wasmplane/wasmplane/core/store/space"
)

// A controller makes hundreds of pods at once, while the cache is behind: a namespace took three times its share so.
func TestWritesOfOneMomentCountForTheShare(t *testing.T) {
	const quota, bytes = 1000, 100
	var shown, seen atomic.Int64
	k, err := space.New(space.Config{
		Store: memstore.New(), NamespaceQuota: quota, Seen: seen.Load,
		Namespace: func(name string) int64 { return map[bool]int64{true: shown.Load()}[name == "a"] },
	})
	if err != nil {
		t.Fatal(err)
	}
	admit := func(namespace string) (func(int64), bool) {
		done, err := k.Admit(store.Write{Namespace: namespace, Bytes: bytes})
		var full *store.FullError
		if err != nil && (!errors.As(err, &full) || full.Limit != store.NamespaceQuota || full.Bytes > quota) {
			t.Error(err)
		}
		return done, err == nil
	}
	var mu sync.Mutex
	var under []func(int64)
	var all sync.WaitGroup
	for range 500 {
		all.Go(func() {
			if done, ok := admit("a"); ok {
				mu.Lock()
				under = append(under, done)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(under) != quota/bytes {
		t.Fatalf("%d writes of %d bytes are under way, of %d", len(under), bytes, quota)
	}
	if _, ok := admit("b"); !ok {
		t.Error("another namespace's was refused")
	}
	// Those that are done and not seen yet count as well, those that failed do not.
	for i, done := range under {
		done(map[bool]int64{true: int64(i + 1)}[i < 8])
	}
	var more []func(int64)
	for i := range 3 {
		done, ok := admit("a")
		if ok != (i < 2) {
			t.Errorf("write %d after two had failed: admitted %t", i, ok)
		}
		if ok {
			more = append(more, done)
		}
	}
	for _, done := range more {
		done(0)
	}
	// What is seen counts once.
	shown.Store(8 * bytes)
	seen.Store(8)
	for i := range 3 {
		if _, ok := admit("a"); ok != (i < 2) {
			t.Errorf("write %d when all was seen: admitted %t", i, ok)
		}
	}
	if _, err := k.Admit(store.Write{Namespace: "a", Bytes: 5000, Before: 5000}); err != nil {
		t.Errorf("what does not grow: %v", err)
	}
	if _, err := k.Admit(store.Write{Namespace: "a", Bytes: 5000, Reserved: true}); err != nil {
		t.Errorf("an administrator's: %v", err)
	}
}
