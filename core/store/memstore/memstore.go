// SPDX-License-Identifier: Apache-2.0

// Package memstore is a store in memory, for tests that need a store which waits for
// nothing: it does no input or output, so that a whole control plane can run on virtual
// time over it. It passes the suite of core/store. What it holds is gone with the process.
package memstore

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
)

// Store is a store.Store.
type Store struct {
	mu        sync.Mutex
	revision  int64
	compacted int64 // revisions below it are gone
	leases    int64
	keys      map[string][]version // oldest first
	events    []store.Event        // of all revisions after compacted, in order
	changed   chan struct{}        // closed at the next change
}

// version is a key from a revision on. A key that was deleted has no KV.Key.
type version struct {
	at int64
	kv store.KV
}

// New makes an empty store. Its first write gets revision 2, as etcd's does.
func New() *Store {
	return &Store{revision: 1, keys: map[string][]version{}, changed: make(chan struct{})}
}

// current is the newest state of a key; its ModRevision is 0 where it does not exist.
func (s *Store) current(key string) store.KV {
	if all := s.keys[key]; len(all) > 0 {
		return all[len(all)-1].kv
	}
	return store.KV{}
}

// at is the state of a key at a revision.
func (s *Store) at(key string, revision int64) store.KV {
	all := s.keys[key]
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].at <= revision {
			return all[i].kv
		}
	}
	return store.KV{}
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KV, error) {
	if err := ctx.Err(); err != nil {
		return store.KV{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kv := s.current(key)
	if kv.ModRevision == 0 {
		return store.KV{}, store.ErrNotFound
	}
	return kv, nil
}

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, error) {
	return s.PutFenced(ctx, key, value, expect, ttl, store.Fences{})
}

// PutFenced implements store.Fenced.
func (s *Store) PutFenced(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration, f store.Fences) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.current(key)
	if old.ModRevision != expect {
		return 0, &store.ConflictError{Key: key, Expect: expect, Current: old}
	}
	if err := s.pass(key, f); err != nil {
		return 0, err
	}
	kv := store.KV{Key: key, Value: slices.Clone(value), ModRevision: s.revision + 1, CreateRev: old.CreateRev}
	if old.ModRevision == 0 {
		kv.CreateRev = kv.ModRevision
	}
	if ttl > 0 {
		s.leases++
		kv.LeaseID = s.leases
		time.AfterFunc(ttl, func() { s.expire(key, kv.LeaseID) })
	}
	s.write(store.Event{Type: store.Put, KV: kv, Prev: old})
	return kv.ModRevision, nil
}

// pass holds a write of key against the fences, and moves those that it moves.
func (s *Store) pass(key string, f store.Fences) error {
	for fence, seen := range f.Seen {
		if s.current(fence).ModRevision != seen {
			return &store.FenceError{Key: key}
		}
	}
	for _, fence := range f.Moves {
		was := s.current(fence)
		s.write(store.Event{
			Type: store.Put, Prev: was, KV: store.KV{Key: fence, ModRevision: s.revision + 1, CreateRev: cmp.Or(was.CreateRev, s.revision+1)},
		})
	}
	return nil
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	return s.DeleteFenced(ctx, key, expect, store.Fences{})
}

// DeleteFenced implements store.Fenced.
func (s *Store) DeleteFenced(ctx context.Context, key string, expect int64, f store.Fences) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.current(key)
	if old.ModRevision != expect || old.ModRevision == 0 {
		return 0, &store.ConflictError{Key: key, Expect: expect, Current: old}
	}
	if err := s.pass(key, f); err != nil {
		return 0, err
	}
	s.remove(old)
	return s.revision, nil
}

func (s *Store) remove(old store.KV) {
	s.write(store.Event{Type: store.Delete, KV: store.KV{Key: old.Key, ModRevision: s.revision + 1}, Prev: old})
}

// expire removes a key whose lease has ended.
func (s *Store) expire(key string, lease int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.current(key); old.ModRevision != 0 && old.LeaseID == lease {
		s.remove(old)
	}
}

// write makes an event the newest revision.
func (s *Store) write(e store.Event) {
	s.revision++
	now := e.KV
	if e.Type == store.Delete {
		now = store.KV{}
	}
	s.keys[e.KV.Key] = append(s.keys[e.KV.Key], version{s.revision, now})
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	if err := ctx.Err(); err != nil {
		return store.Page{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	revision := s.revision
	switch {
	case o.Revision > s.revision:
		return store.Page{}, store.ErrFuture
	case o.Revision != 0 && o.Revision < s.compacted:
		return store.Page{}, store.ErrCompacted
	case o.Revision != 0:
		revision = o.Revision
	}
	var items []store.KV
	for key := range s.keys {
		if strings.HasPrefix(key, prefix) && key >= o.From {
			if kv := s.at(key, revision); kv.ModRevision != 0 {
				items = append(items, kv)
			}
		}
	}
	slices.SortFunc(items, func(a, b store.KV) int { return strings.Compare(a.Key, b.Key) })
	page := store.Page{Items: items, Revision: revision}
	if o.Limit > 0 && int64(len(items)) > o.Limit {
		page.Items, page.More, page.Remaining = items[:o.Limit], true, int64(len(items))-o.Limit
	}
	return page, nil
}

// Revision implements store.Store.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision, nil
}

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case revision > s.revision:
		return store.ErrFuture
	case revision <= s.compacted:
		return nil
	}
	s.compacted = revision
	s.events = slices.DeleteFunc(s.events, func(e store.Event) bool { return e.KV.ModRevision <= revision })
	for key, all := range s.keys {
		first := 0 // the state that the key had at the revision
		for i, v := range all {
			if v.at <= revision {
				first = i
			}
		}
		if s.keys[key] = slices.Clone(all[first:]); len(s.keys[key]) == 1 && s.keys[key][0].kv.ModRevision == 0 {
			delete(s.keys, key)
		}
	}
	return nil
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &watcher{s: s, prefix: prefix, last: from, batches: make(chan store.Batch), asked: make(chan struct{}, 1)}
	// it ends with ctx, or when what it should begin with is gone
	run.Go("watch of the store in memory", func() error { w.deliver(ctx); return nil })
	return w, nil
}

// since are the events of a prefix after a revision, and the channel that is closed when there are more.
func (s *Store) since(prefix string, after int64) (store.Batch, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after < s.compacted {
		return store.Batch{}, nil, store.ErrCompacted
	}
	first, _ := slices.BinarySearchFunc(s.events, after+1, func(e store.Event, r int64) int { return int(e.KV.ModRevision - r) })
	b := store.Batch{Revision: s.revision}
	for _, e := range s.events[first:] {
		if strings.HasPrefix(e.KV.Key, prefix) {
			b.Events = append(b.Events, e)
		}
	}
	return b, s.changed, nil
}

// watcher is a store.Watcher.
type watcher struct {
	s       *Store
	prefix  string
	last    int64 // delivered up to here
	batches chan store.Batch
	asked   chan struct{} // somebody asks for progress

	mu  sync.Mutex
	err error
}

// Batches implements store.Watcher.
func (w *watcher) Batches() <-chan store.Batch { return w.batches }

// Progress implements store.Watcher.
func (w *watcher) Progress(ctx context.Context) error {
	select {
	case w.asked <- struct{}{}:
	default: // somebody asked already
	}
	return ctx.Err()
}

// Err implements store.Watcher.
func (w *watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *watcher) deliver(ctx context.Context) {
	defer close(w.batches)
	for {
		b, changed, err := w.s.since(w.prefix, w.last)
		if err != nil {
			w.mu.Lock()
			w.err = err
			w.mu.Unlock()
			return
		}
		if len(b.Events) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				continue
			case <-w.asked:
			}
		}
		b.Revision = max(b.Revision, w.last) // a watch may begin in the future
		select {
		case <-ctx.Done():
			return
		case w.batches <- b:
			w.last = b.Revision
		}
	}
}
