// SPDX-License-Identifier: Apache-2.0

// Package storetest is the contract of core/store as a suite: whatever passes
// Run can carry a cluster. It is for tests only.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store"
)

// Run runs the suite. Each call of open gives an empty store of its own, closed by t's cleanup.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(t *testing.T, s store.Store)
	}{
		{"a key is created once", createOnce},
		{"a write needs the present revision", compareAndSwap},
		{"a deletion needs the present revision", deleteSwaps},
		{"a write is held against its fences", fences},
		{"of many concurrent writers one wins each round", oneWinner},
		{"a key with a ttl goes away, and the watch says so", expires},
		{"a list is consistent, ordered and paged", lists},
		{"a list at an old revision shows the old state", listsThePast},
		{"a large list comes whole", largeList},
		{"a watch resumes from every revision", watchResumes},
		{"a lean watch sees the same", leanWatch},
		{"a watch waits for a future revision", watchFromFuture},
		{"a watch sees only its prefix, and progress past the rest", progress},
		{"compaction ends the past", compaction},
		{"a watch ends with its context", watchEnds},
		{"the newest revision includes every acknowledged write", revision},
		{"values are bytes", binary},
		{"a context that ended is the reason given", cancelled},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// fences: of two writes that were judged by the same state one is done.
func fences(t *testing.T, s store.Store) {
	const fence = "/fences/a"
	write := func(key string, expect int64, f store.Fences) (int64, error) {
		return store.PutFenced(ctxOf(t), s, key, []byte("v"), expect, 0, f)
	}
	judged := store.Fences{Seen: map[string]int64{fence: 0, "/fences/other": 0}, Moves: []string{fence}}
	first, err := write("/k/one", 0, judged)
	if err != nil {
		t.Fatal(err)
	}
	var moved *store.FenceError
	if _, err := write("/k/two", 0, judged); !errors.As(err, &moved) {
		t.Fatalf("a fence has moved: %v", err)
	}
	if _, err := s.Get(ctxOf(t), "/k/two"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("written all the same: %v", err)
	}
	var conflict *store.ConflictError
	if _, err := write("/k/one", 0, judged); !errors.As(err, &conflict) || conflict.Current.ModRevision != first {
		t.Errorf("the key is at another revision too: %v", err)
	}
	now, err := s.Get(ctxOf(t), fence)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := write("/k/two", 0, store.Fences{Seen: map[string]int64{fence: now.ModRevision}, Moves: []string{"/fences/other"}}); err != nil {
		t.Errorf("judged by what is there now: %v", err)
	}
	if _, err := write("/k/three", 0, store.Fences{Seen: map[string]int64{"/fences/other": 0}}); !errors.As(err, &moved) {
		t.Errorf("another one's fence has moved: %v", err)
	}
	four := put(t, s, "/k/four", "v", 0) // was not judged

	// Deletions are held in the same way.
	if _, err := store.DeleteFenced(ctxOf(t), s, "/k/four", four, judged); !errors.As(err, &moved) {
		t.Errorf("a deletion whose fence has moved: %v", err)
	}
	if kv, err := s.Get(ctxOf(t), "/k/four"); err != nil || kv.ModRevision != four {
		t.Errorf("deleted all the same: %v", err)
	}
	if now, err = s.Get(ctxOf(t), fence); err != nil {
		t.Fatal(err)
	}
	seen := store.Fences{Seen: map[string]int64{fence: now.ModRevision}, Moves: []string{fence}}
	if _, err := store.DeleteFenced(ctxOf(t), s, "/k/four", four-1, seen); !errors.As(err, &conflict) {
		t.Errorf("a deletion of another revision: %v", err)
	}
	if _, err := store.DeleteFenced(ctxOf(t), s, "/k/four", four, seen); err != nil {
		t.Errorf("a deletion that was judged by what is there now: %v", err)
	}
	if _, err := write("/k/five", 0, seen); !errors.As(err, &moved) {
		t.Errorf("a deletion has moved the fence: %v", err)
	}
	remove(t, s, "/k/one", first) // was not judged
}

func ctxOf(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, s store.Store, key, value string, expect int64) int64 {
	t.Helper()
	rev, err := s.Put(ctxOf(t), key, []byte(value), expect, 0)
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return rev
}

func remove(t *testing.T, s store.Store, key string, expect int64) int64 {
	t.Helper()
	rev, err := s.Delete(ctxOf(t), key, expect)
	if err != nil {
		t.Fatalf("delete %s: %v", key, err)
	}
	return rev
}

func wantConflict(t *testing.T, err error, value string, rev int64) {
	t.Helper()
	var c *store.ConflictError
	if !errors.As(err, &c) {
		t.Fatalf("got error %v, want a conflict", err)
	}
	if string(c.Current.Value) != value || c.Current.ModRevision != rev {
		t.Fatalf("conflict shows %q at %d, want %q at %d", c.Current.Value, c.Current.ModRevision, value, rev)
	}
}

func createOnce(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	if _, err := s.Get(ctx, "/registry/a"); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("get of nothing: got %v, want ErrNotFound", err)
	}
	rev := put(t, s, "/registry/a", "one", 0)
	kv, err := s.Get(ctx, "/registry/a")
	if err != nil || string(kv.Value) != "one" || kv.ModRevision != rev || kv.CreateRev != rev || kv.Key != "/registry/a" {
		t.Fatalf("got %+v, %v; want what was put at %d", kv, err, rev)
	}
	_, err = s.Put(ctx, "/registry/a", []byte("two"), 0, 0)
	wantConflict(t, err, "one", rev)
}

func compareAndSwap(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	first := put(t, s, "/registry/a", "one", 0)
	second := put(t, s, "/registry/a", "two", first)
	if second <= first {
		t.Fatalf("revision went from %d to %d", first, second)
	}
	_, err := s.Put(ctx, "/registry/a", []byte("three"), first, 0)
	wantConflict(t, err, "two", second)
	_, err = s.Put(ctx, "/registry/never", []byte("x"), first, 0)
	wantConflict(t, err, "", 0)
	kv, err := s.Get(ctx, "/registry/a")
	if err != nil || kv.CreateRev != first || kv.ModRevision != second {
		t.Fatalf("got %+v, %v; want created at %d and written at %d", kv, err, first, second)
	}
}

func deleteSwaps(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	first := put(t, s, "/registry/a", "one", 0)
	second := put(t, s, "/registry/a", "two", first)
	_, err := s.Delete(ctx, "/registry/a", first)
	wantConflict(t, err, "two", second)
	gone := remove(t, s, "/registry/a", second)
	if gone <= second {
		t.Fatalf("deletion got revision %d after %d", gone, second)
	}
	_, err = s.Delete(ctx, "/registry/a", second)
	wantConflict(t, err, "", 0)
	if _, err := s.Get(ctx, "/registry/a"); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("get after deletion: got %v, want ErrNotFound", err)
	}
	put(t, s, "/registry/a", "again", 0)
}

func oneWinner(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	rev := put(t, s, "/registry/counter", "", 0)
	const writers, rounds = 8, 20
	for range rounds {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var wins []int64
		for w := range writers {
			wg.Go(func() {
				got, err := s.Put(ctx, "/registry/counter", fmt.Appendf(nil, "%d", w), rev, 0)
				mu.Lock()
				defer mu.Unlock()
				var c *store.ConflictError
				switch {
				case err == nil:
					wins = append(wins, got)
				case !errors.As(err, &c):
					t.Errorf("writer %d: %v", w, err)
				case c.Current.ModRevision <= rev:
					t.Errorf("writer %d lost against revision %d, which is not newer than %d", w, c.Current.ModRevision, rev)
				}
			})
		}
		wg.Wait()
		if len(wins) != 1 {
			t.Fatalf("%d writers won, want 1", len(wins))
		}
		rev = wins[0]
	}
}

func expires(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	start, err := s.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w := watch(t, s, "/registry/", start)
	rev, err := s.Put(ctx, "/registry/events/a", []byte("x"), 0, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := s.Get(ctx, "/registry/events/a")
	if err != nil || kv.LeaseID == 0 || kv.ModRevision != rev {
		t.Fatalf("got %+v, %v; want a key with a lease at %d", kv, err, rev)
	}
	events := w.events(t, 2)
	if e := events[1]; e.Type != store.Delete || e.KV.Key != "/registry/events/a" || string(e.Prev.Value) != "x" || e.Prev.ModRevision != rev {
		t.Fatalf("got %+v, want the deletion of the expired key with its last state", e)
	}
	// A write without ttl makes a key stay.
	rev, err = s.Put(ctx, "/registry/events/b", []byte("x"), 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "/registry/events/b", "y", rev)
	if kv, err = s.Get(ctx, "/registry/events/b"); err != nil || kv.LeaseID != 0 {
		t.Fatalf("got %+v, %v; want a key without a lease", kv, err)
	}
}

func lists(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	var want []string
	for i := range 23 {
		key := fmt.Sprintf("/registry/pods/ns/p%02d", i)
		put(t, s, key, key, 0)
		want = append(want, key)
	}
	put(t, s, "/registry/pods2/x", "", 0)
	last := put(t, s, "/registry/podr/x", "", 0)

	for _, limit := range []int64{0, 1, 5, 22, 23, 24} {
		var got []string
		o := store.ListOptions{Limit: limit}
		for {
			page, err := s.List(ctx, "/registry/pods/", o)
			if err != nil {
				t.Fatal(err)
			}
			if page.Revision != last {
				t.Fatalf("list is of revision %d, want %d", page.Revision, last)
			}
			for _, kv := range page.Items {
				if string(kv.Value) != kv.Key {
					t.Fatalf("%s has value %q", kv.Key, kv.Value)
				}
				got = append(got, kv.Key)
			}
			if !page.More {
				break
			}
			if rest := int64(len(want) - len(got)); page.Remaining != rest {
				t.Fatalf("limit %d: %d items remain, want %d", limit, page.Remaining, rest)
			}
			o.From, o.Revision = got[len(got)-1]+"\x00", page.Revision
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("limit %d: got %v, want %v", limit, got, want)
		}
	}
	for _, c := range []struct {
		prefix, from string
		items        int
	}{
		{"/registry/pods/ns/p1", "", 10},
		{"/registry/none/", "", 0},
		{"/registry/pods/", "/registry/pods/ns/p20", 3},
		{"/registry/pods/", "/zzz", 0},
		{"/registry/pods/", "/a", 23},
	} {
		page, err := s.List(ctx, c.prefix, store.ListOptions{From: c.from})
		if err != nil || len(page.Items) != c.items || page.Revision != last {
			t.Errorf("list %s from %q: got %d items at %d, %v; want %d at %d", c.prefix, c.from, len(page.Items), page.Revision, err, c.items, last)
		}
	}
}

func listsThePast(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	a := put(t, s, "/registry/a", "1", 0)
	b := put(t, s, "/registry/b", "1", 0)
	put(t, s, "/registry/a", "2", a)
	remove(t, s, "/registry/b", b)
	last := put(t, s, "/registry/c", "1", 0)
	page, err := s.List(ctx, "/registry/", store.ListOptions{Revision: b})
	if err != nil || page.Revision != b || len(page.Items) != 2 || string(page.Items[0].Value) != "1" {
		t.Fatalf("list at %d: got %+v, %v; want a and b as they were", b, page, err)
	}
	if _, err := s.List(ctx, "/registry/", store.ListOptions{Revision: last + 1000}); !errors.Is(err, store.ErrFuture) {
		t.Fatalf("list of the future: got %v, want ErrFuture", err)
	}
}

func largeList(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	const n = 1500
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			for i := w; i < n; i += 10 {
				if _, err := s.Put(ctx, fmt.Sprintf("/registry/big/%05d", i), make([]byte, 10_000), 0, 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	page, err := s.List(ctx, "/registry/big/", store.ListOptions{})
	if err != nil || len(page.Items) != n || page.More {
		t.Fatalf("got %d items, more %v, %v; want %d", len(page.Items), page.More, err, n)
	}
	for i, kv := range page.Items {
		if want := fmt.Sprintf("/registry/big/%05d", i); kv.Key != want {
			t.Fatalf("item %d is %s, want %s", i, kv.Key, want)
		}
	}
}

// history writes a story over three keys and returns its events by revision.
func history(t *testing.T, s store.Store) (start int64, events []store.Event) {
	t.Helper()
	start, err := s.Revision(ctxOf(t))
	if err != nil {
		t.Fatal(err)
	}
	state := map[string]store.KV{}
	for i := range 40 {
		key := fmt.Sprintf("/registry/k%d", i*7%3)
		old := state[key]
		if i%5 == 4 && old.ModRevision != 0 {
			rev := remove(t, s, key, old.ModRevision)
			events = append(events, store.Event{Type: store.Delete, KV: store.KV{Key: key, ModRevision: rev}, Prev: old})
			delete(state, key)
			continue
		}
		value := fmt.Sprintf("v%d", i)
		rev := put(t, s, key, value, old.ModRevision)
		kv := store.KV{Key: key, Value: []byte(value), ModRevision: rev, CreateRev: old.CreateRev}
		if kv.CreateRev == 0 {
			kv.CreateRev = rev
		}
		events = append(events, store.Event{Type: store.Put, KV: kv, Prev: old})
		state[key] = kv
	}
	return start, events
}

func watchResumes(t *testing.T, s store.Store) {
	start, want := history(t, s)
	for skip := range want {
		from := start
		if skip > 0 {
			from = want[skip-1].KV.ModRevision
		}
		got := watch(t, s, "/registry/", from).events(t, len(want)-skip)
		for i, e := range got {
			w := want[skip+i]
			if e.Type != w.Type || e.KV.Key != w.KV.Key || e.KV.ModRevision != w.KV.ModRevision || string(e.KV.Value) != string(w.KV.Value) ||
				string(e.Prev.Value) != string(w.Prev.Value) || e.Prev.ModRevision != w.Prev.ModRevision {
				t.Fatalf("watch from %d, event %d: got %+v, want %+v", from, i, e, w)
			}
		}
	}
}

func leanWatch(t *testing.T, s store.Store) {
	start, want := history(t, s)
	ctx, cancel := context.WithCancel(ctxOf(t))
	w, err := store.WatchLean(ctx, s, "/registry/", start)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	lean := watching{Watcher: w, last: start}
	for i, e := range lean.events(t, len(want)) {
		if x := want[i]; e.Type != x.Type || e.KV.Key != x.KV.Key || e.KV.ModRevision != x.KV.ModRevision ||
			string(e.KV.Value) != string(x.KV.Value) {
			t.Fatalf("event %d: got %+v, want %+v", i, e, x)
		}
	}
	cancel()
	for range w.Batches() { // wait for its end
	}
}

func watchFromFuture(t *testing.T, s store.Store) {
	now := put(t, s, "/registry/a", "1", 0)
	w := watch(t, s, "/registry/", now+2)
	next := put(t, s, "/registry/a", "2", now)
	next = put(t, s, "/registry/a", "3", next)
	put(t, s, "/registry/a", "4", next)
	if e := w.events(t, 1)[0]; string(e.KV.Value) != "4" {
		t.Fatalf("first event is %q, want the one after revision %d", e.KV.Value, now+2)
	}
}

func progress(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	start, err := s.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w := watch(t, s, "/registry/", start)
	put(t, s, "/registry/mine", "x", 0)
	other := put(t, s, "/elsewhere", "x", 0)
	for seen := int64(0); seen < other; {
		if err := w.Progress(ctx); err != nil {
			t.Fatal(err)
		}
		select {
		case b, ok := <-w.Batches():
			if !ok {
				t.Fatalf("watch ended: %v", w.Err())
			}
			for _, e := range b.Events {
				if e.KV.Key != "/registry/mine" {
					t.Fatalf("got an event of %s", e.KV.Key)
				}
			}
			if b.Revision < seen {
				t.Fatalf("progress went back from %d to %d", seen, b.Revision)
			}
			seen = b.Revision
		case <-time.After(20 * time.Millisecond): // ask again: a request may be lost when the watch just began
		case <-ctx.Done():
			t.Fatalf("watch has told its progress up to %d only, want %d", seen, other)
		}
	}
}

func compaction(t *testing.T, s store.Store) {
	ctx := ctxOf(t)
	start, events := history(t, s)
	middle := events[len(events)/2].KV.ModRevision
	last := events[len(events)-1].KV.ModRevision
	if err := s.Compact(ctx, middle); err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(ctx, middle-1); err != nil {
		t.Errorf("compacting what is compacted: %v", err)
	}
	if err := s.Compact(ctx, last+1000); !errors.Is(err, store.ErrFuture) {
		t.Errorf("compacting the future: got %v, want ErrFuture", err)
	}
	if _, err := s.List(ctx, "/registry/", store.ListOptions{Revision: middle - 1}); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("list of a compacted revision: got %v, want ErrCompacted", err)
	}
	if page, err := s.List(ctx, "/registry/", store.ListOptions{}); err != nil || page.Revision != last {
		t.Errorf("list after compaction: %d, %v; want revision %d", page.Revision, err, last)
	}
	w, err := s.Watch(ctx, "/registry/", start)
	if err == nil {
		for range w.Batches() { // only its end matters
		}
		err = w.Err()
	}
	if !errors.Is(err, store.ErrCompacted) {
		t.Errorf("watch of compacted revisions: got %v, want ErrCompacted", err)
	}
	if got := watch(t, s, "/registry/", middle).events(t, 1); got[0].KV.ModRevision != events[len(events)/2+1].KV.ModRevision {
		t.Errorf("watch from the compacted revision begins at %d", got[0].KV.ModRevision)
	}
}

func watchEnds(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(ctxOf(t))
	w, err := s.Watch(ctx, "/registry/", 0)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range w.Batches() { // only its end matters
	}
	if err := w.Err(); err != nil {
		t.Fatalf("watch that its context ended says %v", err)
	}
}

func revision(t *testing.T, s store.Store) {
	for i := range 20 {
		rev := put(t, s, fmt.Sprintf("/registry/r%d", i), "", 0)
		if got, err := s.Revision(ctxOf(t)); err != nil || got < rev {
			t.Fatalf("newest revision is %d, %v; a write got %d", got, err, rev)
		}
	}
}

func binary(t *testing.T, s store.Store) {
	value := make([]byte, 256)
	for i := range value {
		value[i] = byte(i)
	}
	put(t, s, "/registry/b", string(value), 0)
	if kv, err := s.Get(ctxOf(t), "/registry/b"); err != nil || string(kv.Value) != string(value) {
		t.Fatalf("got %x, %v", kv.Value, err)
	}
	put(t, s, "/registry/empty", "", 0)
	if kv, err := s.Get(ctxOf(t), "/registry/empty"); err != nil || len(kv.Value) != 0 {
		t.Fatalf("got %x, %v; want an empty value", kv.Value, err)
	}
}

func cancelled(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(ctxOf(t))
	cancel()
	if _, err := s.Get(ctx, "/registry/a"); !errors.Is(err, context.Canceled) {
		t.Errorf("get: got %v, want context.Canceled", err)
	}
	if _, err := s.Put(ctx, "/registry/a", nil, 0, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("put: got %v, want context.Canceled", err)
	}
	if _, err := s.List(ctx, "/registry/", store.ListOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("list: got %v, want context.Canceled", err)
	}
}

// watching is a watch with the assertions that hold for every watch.
type watching struct {
	store.Watcher
	last int64
}

func watch(t *testing.T, s store.Store, prefix string, from int64) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(ctxOf(t))
	w, err := s.Watch(ctx, prefix, from)
	if err != nil {
		cancel()
		t.Fatalf("watch %s from %d: %v", prefix, from, err)
	}
	t.Cleanup(func() {
		cancel()
		for range w.Batches() { // wait for its end
		}
	})
	return &watching{Watcher: w, last: from}
}

// events waits for n events and checks order and that no revision is split.
func (w *watching) events(t *testing.T, n int) []store.Event {
	t.Helper()
	ctx := ctxOf(t)
	var got []store.Event
	for len(got) < n {
		select {
		case b, ok := <-w.Batches():
			if !ok {
				t.Fatalf("watch ended after %d of %d events: %v", len(got), n, w.Err())
			}
			if len(b.Events) > 0 && b.Events[0].KV.ModRevision <= w.last {
				t.Fatalf("batch begins at revision %d, but %d was delivered before", b.Events[0].KV.ModRevision, w.last)
			}
			for _, e := range b.Events {
				if e.KV.ModRevision < w.last {
					t.Fatalf("event of revision %d after one of %d", e.KV.ModRevision, w.last)
				}
				w.last = e.KV.ModRevision
			}
			if len(b.Events) > 0 && b.Revision < w.last {
				t.Fatalf("batch says revision %d and holds events up to %d", b.Revision, w.last)
			}
			got = append(got, b.Events...)
		case <-ctx.Done():
			t.Fatalf("got %d of %d events in time", len(got), n)
		}
	}
	return got
}
