// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

func TestServersShareCompaction(t *testing.T) {
	srv, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(t.TempDir(), "etcd"), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = srv.Close() }()
	s := srv.Store()
	server := func() *store.Compactor {
		c, err := store.NewCompactor(store.CompactorConfig{Store: s})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := server(), server()
	round := func(c *store.Compactor) {
		t.Helper()
		if err := c.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	write := func() int64 {
		n++
		rev, err := s.Put(t.Context(), fmt.Sprintf("/registry/x%d", n), nil, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	readable := func(rev int64) bool {
		_, err := s.List(t.Context(), "/registry/", store.ListOptions{Revision: rev})
		if err != nil && !errors.Is(err, store.ErrCompacted) {
			t.Fatal(err)
		}
		return err == nil
	}

	first := write()
	round(a) // learns where the store is
	round(b)
	if !readable(first) {
		t.Fatal("the first round compacted; nobody knows yet how old that history is")
	}
	var written []int64
	for i := range 6 { // one interval each; a's round comes before b's
		written = append(written, write())
		round(a)
		round(b)
		if !readable(written[i]) {
			t.Fatalf("interval %d: history that is younger than the interval was compacted", i)
		}
		if i > 0 && readable(written[i-1]) {
			t.Fatalf("interval %d: history older than an interval is still there", i)
		}
	}
}

// failing is a store that refuses and counts.
type failing struct {
	store.Store
	rounds int
}

func (f *failing) Put(context.Context, string, []byte, int64, time.Duration) (int64, error) {
	f.rounds++
	return 0, store.ErrUnavailable
}

func TestCompactorGoesOnAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{}
		c, err := store.NewCompactor(store.CompactorConfig{Store: f, Interval: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
		defer cancel()
		if err := c.Run(ctx); err != nil || f.rounds != 10 {
			t.Fatalf("%d rounds, %v; want 10", f.rounds, err)
		}
	})
}
