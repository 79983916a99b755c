// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// breakable is a store whose watches can be broken, and which can be exchanged.
type breakable struct {
	mu      sync.Mutex
	store   store.Store
	current *brokenWatch
	opened  chan struct{}  // one for each watch
	hold    sync.WaitGroup // a new watch waits for it
	lists   int
}

func (b *breakable) now() store.Store {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.store
}

func (b *breakable) Get(ctx context.Context, key string) (store.KV, error) {
	return b.now().Get(ctx, key)
}

func (b *breakable) Put(ctx context.Context, key string, v []byte, e int64, ttl time.Duration) (int64, error) {
	return b.now().Put(ctx, key, v, e, ttl)
}

func (b *breakable) Delete(ctx context.Context, key string, e int64) (int64, error) {
	return b.now().Delete(ctx, key, e)
}

func (b *breakable) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	b.mu.Lock()
	b.lists++
	b.mu.Unlock()
	return b.now().List(ctx, prefix, o)
}
func (b *breakable) Revision(ctx context.Context) (int64, error)  { return b.now().Revision(ctx) }
func (b *breakable) Compact(ctx context.Context, rev int64) error { return b.now().Compact(ctx, rev) }

func (b *breakable) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	b.hold.Wait()
	ctx, cancel := context.WithCancel(ctx)
	w, err := b.now().Watch(ctx, prefix, from)
	if err != nil {
		cancel()
		return nil, err
	}
	bw := &brokenWatch{Watcher: w, cancel: cancel}
	b.mu.Lock()
	b.current = bw
	b.mu.Unlock()
	b.opened <- struct{}{}
	return bw, nil
}

// cut breaks the watch as a lost connection does.
func (b *breakable) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.current.broken = errors.New("connection lost")
	b.current.cancel()
}

type brokenWatch struct {
	store.Watcher
	cancel context.CancelFunc
	broken error
}

func (w *brokenWatch) Err() error { return errors.Join(w.broken, w.Watcher.Err()) }

func newBreakable(s store.Store) *breakable {
	return &breakable{store: s, opened: make(chan struct{}, 100)}
}

func TestBrokenWatchIsResumed(t *testing.T) {
	w := newWorld(t)
	b := newBreakable(w.store)
	c, r := w.cache(watchcache.Config{Store: b})
	x := w.watch(r, watchcache.WatchOptions{})
	var want []string
	for i := range 5 {
		<-b.opened
		b.hold.Add(1)
		b.cut()
		for j := range 3 { // while the cache is cut off
			w.thing("ns/a", fmt.Sprintf("%d-%d", i, j))
			verb := "modified"
			if i+j == 0 {
				verb = "added"
			}
			want = append(want, fmt.Sprintf("%s ns/a %d-%d", verb, i, j))
		}
		b.hold.Done()
	}
	w.fresh(c)
	wantText(t, fmt.Sprint(w.next(x, len(want))), fmt.Sprint(want))
	if b.lists != 1 {
		t.Fatalf("the cache listed %d times, want once", b.lists)
	}
}

func TestCompactedWhileCutOffIsLoadedAnew(t *testing.T) {
	w := newWorld(t)
	w.thing("ns/a", "red")
	w.thing("ns/b", "red")
	b := newBreakable(w.store)
	c, r := w.cache(watchcache.Config{Store: b})
	start := w.fresh(c)
	x := w.watch(r, watchcache.WatchOptions{})
	<-b.opened
	b.hold.Add(1)
	b.cut()
	w.delete("/registry/things/ns/a")
	w.thing("ns/c", "blue")
	if err := w.store.Compact(w.ctx(), w.thing("ns/b", "green")); err != nil {
		t.Fatal(err)
	}
	b.hold.Done()
	w.fresh(c)
	wantText(t, names(r.List(watchcache.ListOptions{})), "ns/b ns/c")
	if _, err := x.Next(w.ctx()); !errors.Is(err, watchcache.ErrTooOld) {
		t.Fatalf("watcher over the gap: got %v, want ErrTooOld", err)
	}
	if _, err := r.Watch(w.ctx(), watchcache.WatchOptions{From: start}); !errors.Is(err, watchcache.ErrTooOld) {
		t.Fatalf("resume from before the gap: got %v, want ErrTooOld", err)
	}
	x = w.watch(r, watchcache.WatchOptions{From: r.List(watchcache.ListOptions{}).Revision})
	w.thing("ns/d", "red")
	wantText(t, fmt.Sprint(w.next(x, 1)), "[added ns/d red]")
}

func TestStoreThatWentBackInTimeIsLoadedAnew(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		w.thing("ns/a", fmt.Sprint(i))
	}
	b := newBreakable(w.store)
	c, r := w.cache(watchcache.Config{Store: b})
	w.fresh(c)
	x := w.watch(r, watchcache.WatchOptions{})
	<-b.opened
	restored := newWorld(t)
	rev := restored.thing("ns/restored", "red")
	b.mu.Lock()
	b.store = restored.store
	b.mu.Unlock()
	b.cut()
	<-b.opened
	if _, err := c.Fresh(w.ctx()); err == nil {
		t.Fatal("a list from a past that is gone was called fresh")
	}
	<-b.opened
	if got := w.fresh(c); got != rev {
		t.Fatalf("fresh at %d, want %d", got, rev)
	}
	wantText(t, names(r.List(watchcache.ListOptions{})), "ns/restored")
	if _, err := x.Next(w.ctx()); !errors.Is(err, watchcache.ErrTooOld) {
		t.Fatalf("watcher of the past: got %v, want ErrTooOld", err)
	}
}

// An etcd outside this process stops and starts again; the cache carries on
// where it was, and says meanwhile that the store cannot be reached.
func TestExternalStoreRestarts(t *testing.T) {
	dir, err := os.MkdirTemp("", "wp") //nolint:usetesting // the path of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := etcd.ServerConfig{Dir: filepath.Join(dir, "data"), Listen: []string{"unix://" + filepath.Join(dir, "s")}, NoFsync: true}
	srv, err := etcd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	client, err := etcdclient.Dial(t.Context(), etcdclient.Config{Endpoints: cfg.Listen, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	w := &world{t: t, store: client, revs: map[string]int64{}}
	c, r := w.cache(watchcache.Config{})
	w.thing("ns/a", "red")
	w.fresh(c)
	x := w.watch(r, watchcache.WatchOptions{From: w.revs["/registry/things/ns/a"]})
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fresh(w.ctx()); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("store is down: got %v, want ErrUnavailable", err)
	}
	if srv, err = etcd.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	for w.ctx().Err() == nil {
		if _, err = c.Fresh(w.ctx()); err == nil {
			break
		}
	}
	w.thing("ns/a", "blue")
	w.fresh(c)
	wantText(t, fmt.Sprint(w.next(x, 1)), "[modified ns/a blue]")
	wantText(t, names(r.List(watchcache.ListOptions{})), "ns/a")
}

func TestStoppedCacheSaysSo(t *testing.T) {
	w := newWorld(t)
	c, err := watchcache.New(watchcache.Config{Store: w.store})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Register("/registry/things/", decode)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-c.Ready()
	x := w.watch(r, watchcache.WatchOptions{})
	waited := make(chan error, 1)
	go func() { waited <- c.WaitFor(w.ctx(), 1<<40) }()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := x.Next(w.ctx()); !errors.Is(err, watchcache.ErrStopped) {
		t.Errorf("watcher: got %v, want ErrStopped", err)
	}
	if err := <-waited; !errors.Is(err, watchcache.ErrStopped) {
		t.Errorf("waiting: got %v, want ErrStopped", err)
	}
	if _, err := c.Fresh(w.ctx()); !errors.Is(err, watchcache.ErrStopped) {
		t.Errorf("fresh: got %v, want ErrStopped", err)
	}
	if _, err := c.Register("/registry/others/", decode); !errors.Is(err, watchcache.ErrStopped) {
		t.Errorf("register: got %v, want ErrStopped", err)
	}
}

func TestWhatCannotBeDecryptedIsToldUntilItCanBe(t *testing.T) {
	w := newWorld(t)
	c, things := w.cache(watchcache.Config{})
	key := things.Prefix() + "ns/sealed"
	w.put(key, []byte("k8s:enc:aesgcm:v1:k:xxx"))
	w.fresh(c)
	if errs := things.Unreadable(things.Prefix()); len(errs) != 1 || !strings.Contains(errs[0].Error(), key) {
		t.Errorf("errors %v", errs)
	}
	if err := things.Unreadable(things.Prefix() + "other/"); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	// As after a new configuration: everything is read again, and it still cannot be.
	c.Reread()
	w.fresh(c)
	if err := things.Unreadable(things.Prefix()); err == nil {
		t.Error("forgotten")
	}
	w.put(key, value("sealed", "red", ""))
	w.fresh(c)
	if err := things.Unreadable(things.Prefix()); err != nil {
		t.Errorf("after it was written again: %v", err)
	}
	if _, _, ok := things.Get(key); !ok {
		t.Error("it is not there")
	}
}
