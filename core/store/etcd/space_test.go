// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdtest"
	"github.com/wasmplane/wasmplane/core/store/space"
)

// kept is a small store with a keeper of its room.
func kept(t *testing.T, quota int64) (*etcd.Server, *space.Keeper) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	srv := etcdtest.Start(t, etcd.ServerConfig{NoFsync: true, Quota: quota, Logger: log})
	k, err := space.New(space.Config{Store: srv.Store(), Gauge: srv, Quota: quota, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return srv, k
}

// fill writes until somebody refuses, and answers what was written.
func fill(t *testing.T, s store.Store, admit func(store.Write) error) (map[string]int64, error) {
	t.Helper()
	revs := map[string]int64{}
	value := make([]byte, 90_000)
	for i := range 10_000 {
		key := fmt.Sprintf("/registry/x%d", i)
		if err := admit(store.Write{Bytes: len(value)}); err != nil {
			return revs, err
		}
		rev, err := s.Put(t.Context(), key, value, 0, 0)
		if err != nil {
			return revs, err
		}
		revs[key] = rev
	}
	t.Fatal("the store is never full")
	return nil, nil
}

// takes waits until an ordinary write passes.
func takes(t *testing.T, s store.Store, k *space.Keeper) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		_, err := k.Admit(store.Write{Bytes: 90_000})
		if err == nil {
			_, err = s.Put(ctx, fmt.Sprintf("/registry/again%d", i), make([]byte, 90_000), 0, 0)
		}
		if err == nil && k.Check(ctx) == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the store takes no writes again: %v", err)
		}
	}
}

func deleteAll(t *testing.T, s store.Store, revs map[string]int64) {
	t.Helper()
	for key, rev := range revs {
		if _, err := s.Delete(t.Context(), key, rev); err != nil {
			t.Fatalf("a full store cannot be deleted from: %v", err)
		}
	}
}

// Ordinary writes end before the store does; what is kept back is for others; and
// soon after everything was deleted there is room again, without a start.
func admitting(k *space.Keeper) func(store.Write) error {
	return func(w store.Write) error {
		_, err := k.Admit(w)
		return err
	}
}

func TestAFullStoreKeepsSomethingBackAndRecovers(t *testing.T) {
	srv, k := kept(t, 8<<20)
	s := srv.Store()
	revs, err := fill(t, s, admitting(k))
	var full *store.FullError
	if !errors.As(err, &full) || !errors.Is(err, store.ErrFull) || full.Limit != store.Quota {
		t.Fatalf("got %v, want a FullError of %s", err, store.Quota)
	}
	if err := k.Check(t.Context()); err == nil {
		t.Error("a full store is ready")
	}
	if _, err := k.Admit(store.Write{Bytes: 1000, Reserved: true}); err != nil {
		t.Errorf("a reserved write: %v", err)
	}
	if _, err := s.Put(t.Context(), "/registry/leases/a", make([]byte, 1000), 0, 0); err != nil {
		t.Errorf("nothing was kept back: %v", err)
	}
	deleteAll(t, s, revs)
	takes(t, s, k)
}

// Objects that change all the time leave their past in the database until it has grown
// to its bound; what is kept back is there all the same, and changes go on.
func TestHistoryTakesNothingThatIsKeptBack(t *testing.T) {
	srv, k := kept(t, 16<<20)
	s := srv.Store()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	revs := map[string]int64{}
	put := func(key string, size int) {
		rev, err := s.Put(ctx, key, make([]byte, size), revs[key], 0)
		if err != nil {
			t.Fatalf("%s of %d bytes: %v", key, size, err)
		}
		revs[key] = rev
	}
	for written := 0; written < 24<<20; {
		put("/registry/leases/a", 1000)
		size := 200_000 + written%100_000
		if _, err := k.Admit(store.Write{Bytes: size}); err != nil {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("after %d bytes there is no room any more: %v", written, err)
			}
			continue
		}
		put(fmt.Sprintf("/registry/x%d", written%7), size)
		written += size
	}
}

// etcd itself was full: it refuses all writes until somebody has told it that there
// is room, which nobody else can in a store that listens nowhere.
func TestAStoreThatRefusedEverythingRecovers(t *testing.T) {
	srv, k := kept(t, 4<<20)
	s := srv.Store()
	revs, err := fill(t, s, func(store.Write) error { return nil })
	if !errors.Is(err, store.ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	if _, err := k.Admit(store.Write{Bytes: 1}); !errors.Is(err, store.ErrFull) {
		t.Errorf("an ordinary write is admitted: %v", err)
	}
	deleteAll(t, s, revs)
	takes(t, s, k)
}
