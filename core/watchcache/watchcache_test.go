// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// decode is a Decoder of JSON objects whose spec.node is a field. The cache packs them.
func decode(_ string, value []byte, revision int64) (*object.Object, labels.Set, fields.Set, error) {
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(value, &u.Object); err != nil {
		return nil, nil, nil, err
	}
	u.SetResourceVersion(fmt.Sprint(revision))
	node, _, _ := unstructured.NestedString(u.Object, "spec", "node")
	o := object.FromStored(object.Unstructured{GVK: schema.GroupVersionKind{Version: "v1", Kind: "Thing"}}, u, object.JSON)
	return o, u.GetLabels(), fields.Set{"spec.node": node}, nil
}

// value is a stored object.
func value(name, color, node string) []byte {
	b, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Thing",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"color": color}},
		"spec":     map[string]any{"node": node},
	})
	if err != nil {
		panic(err)
	}
	return b
}

func color(it *watchcache.Item) string { return it.Labels.Get("color") }

func red(it *watchcache.Item) bool { return color(it) == "red" }

// world is a store with a cache on it, and a way to write.
type world struct {
	t     testing.TB
	store store.Store
	revs  map[string]int64
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	srv, err := etcd.Start(tb.Context(), etcd.ServerConfig{Dir: filepath.Join(tb.TempDir(), "etcd"), NoFsync: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := srv.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &world{t: tb, store: srv.Store(), revs: map[string]int64{}}
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) put(key string, value []byte) int64 {
	w.t.Helper()
	rev, err := w.store.Put(w.ctx(), key, value, w.revs[key], 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.revs[key] = rev
	return rev
}

func (w *world) delete(key string) int64 {
	w.t.Helper()
	rev, err := w.store.Delete(w.ctx(), key, w.revs[key])
	if err != nil {
		w.t.Fatal(err)
	}
	delete(w.revs, key)
	return rev
}

// thing writes /registry/things/NS/NAME.
func (w *world) thing(nsName, color string) int64 {
	w.t.Helper()
	return w.put("/registry/things/"+nsName, value(nsName, color, ""))
}

// cache starts a cache with the resource things.
func (w *world) cache(cfg watchcache.Config) (*watchcache.Cache, *watchcache.Resource) {
	w.t.Helper()
	if cfg.Store == nil {
		cfg.Store = w.store
	}
	c, err := watchcache.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := c.Register("/registry/things/", decode)
	if err != nil {
		w.t.Fatal(err)
	}
	w.run(c)
	return c, r
}

func (w *world) run(c *watchcache.Cache) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	select {
	case <-c.Ready():
	case <-w.ctx().Done():
		w.t.Fatal("the cache does not get ready")
	}
}

func (w *world) fresh(c *watchcache.Cache) int64 {
	w.t.Helper()
	rev, err := c.Fresh(w.ctx())
	if err != nil {
		w.t.Fatal(err)
	}
	return rev
}

func (w *world) watch(r *watchcache.Resource, o watchcache.WatchOptions) *watchcache.Watcher {
	w.t.Helper()
	x, err := r.Watch(w.ctx(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(x.Stop)
	return x
}

// next reads until there are n events, or a bookmark when n is 0.
func (w *world) next(x *watchcache.Watcher, n int) []string {
	w.t.Helper()
	var got []string
	for {
		events, err := x.Next(w.ctx())
		if err != nil {
			w.t.Fatalf("after %v: %v", got, err)
		}
		for _, e := range events {
			got = append(got, show(e))
			if e.Type == watchcache.Bookmark && n == 0 {
				return got
			}
		}
		if n > 0 && len(got) >= n {
			return got
		}
	}
}

func show(e watchcache.Event) string {
	if e.Type == watchcache.Bookmark {
		if e.InitialEnd {
			return "initial-end"
		}
		return "bookmark"
	}
	return fmt.Sprintf("%s %s %s", [...]string{"added", "modified", "deleted"}[e.Type], strings.TrimPrefix(e.Item.Key, "/registry/things/"),
		color(e.Item))
}

func names(l watchcache.List) string {
	var got []string
	for _, it := range l.Items {
		got = append(got, strings.TrimPrefix(it.Key, "/registry/things/"))
	}
	return strings.Join(got, " ")
}

func wantText(tb testing.TB, got, want string) {
	tb.Helper()
	if got != want {
		tb.Fatalf("got  %s\nwant %s", got, want)
	}
}

func TestWriteOfAnotherServerIsInTheNextFreshList(t *testing.T) {
	w := newWorld(t)
	w.thing("ns/a", "red")
	c, r := w.cache(watchcache.Config{})
	wantText(t, names(r.List(watchcache.ListOptions{})), "ns/a")
	for i := range 50 {
		rev := w.thing(fmt.Sprintf("ns/b%02d", i), "blue")
		if got := w.fresh(c); got < rev {
			t.Fatalf("fresh at %d, the write was at %d", got, rev)
		}
		l := r.List(watchcache.ListOptions{})
		if len(l.Items) != i+2 || l.Revision < rev {
			t.Fatalf("list has %d items at %d, want %d at %d", len(l.Items), l.Revision, i+2, rev)
		}
		if it, at, ok := r.Get(fmt.Sprintf("/registry/things/ns/b%02d", i)); !ok || it.Revision != rev || at < rev {
			t.Fatalf("get: %+v at %d", it, at)
		}
	}
	// A write that the cache does not watch at all makes it no less fresh.
	for range 5 {
		rev := w.put("/outside", []byte("x"))
		if got := w.fresh(c); got < rev {
			t.Fatalf("fresh at %d, want %d", got, rev)
		}
	}
	if l := r.List(watchcache.ListOptions{}); l.Revision < w.revs["/outside"] {
		t.Fatalf("list is of revision %d, want at least %d", l.Revision, w.revs["/outside"])
	}
}

func TestListSelectsAndPages(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		w.thing(fmt.Sprintf("ns%d/a%d", i%2, i), []string{"red", "blue"}[i/5])
	}
	c, r := w.cache(watchcache.Config{})
	wantText(t, names(r.List(watchcache.ListOptions{Prefix: "/registry/things/ns0/"})), "ns0/a0 ns0/a2 ns0/a4 ns0/a6 ns0/a8")
	wantText(t, names(r.List(watchcache.ListOptions{Match: red})), "ns0/a0 ns0/a2 ns0/a4 ns1/a1 ns1/a3")
	wantText(t, names(r.List(watchcache.ListOptions{Prefix: "/registry/things/ns0/a2"})), "ns0/a2")

	first := r.List(watchcache.ListOptions{Limit: 4})
	if !first.More || first.Remaining != 6 {
		t.Fatalf("first page: more %v, remaining %d", first.More, first.Remaining)
	}
	// The world moves on; the pages don't.
	w.delete("/registry/things/ns1/a9")
	w.thing("ns1/b", "red")
	last := w.thing("ns0/a8", "green")
	if err := r.WaitReady(w.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(w.ctx(), last); err != nil {
		t.Fatal(err)
	}
	second, err := r.ListAt(first.Revision, watchcache.ListOptions{Limit: 4, From: first.Next})
	if err != nil {
		t.Fatal(err)
	}
	third, err := r.ListAt(first.Revision, watchcache.ListOptions{Limit: 4, From: second.Next})
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, names(first)+" | "+names(second)+" | "+names(third),
		"ns0/a0 ns0/a2 ns0/a4 ns0/a6 | ns0/a8 ns1/a1 ns1/a3 ns1/a5 | ns1/a7 ns1/a9")
	if third.More || second.Remaining != 2 || color(second.Items[0]) != "blue" {
		t.Fatalf("third page has more: %v; second has %d remaining; a8 is %s", third.More, second.Remaining, color(second.Items[0]))
	}
	if _, err := r.ListAt(1, watchcache.ListOptions{}); !errors.Is(err, watchcache.ErrNoSnapshot) {
		t.Fatalf("got %v, want ErrNoSnapshot", err)
	}
	if _, err := r.ListAt(last+1000, watchcache.ListOptions{}); !errors.Is(err, store.ErrFuture) {
		t.Fatalf("got %v, want ErrFuture", err)
	}
}

func TestWatchSeesWhatItsSelectorSees(t *testing.T) {
	w := newWorld(t)
	w.thing("ns/a", "red")
	c, r := w.cache(watchcache.Config{})
	all := w.watch(r, watchcache.WatchOptions{})
	reds := w.watch(r, watchcache.WatchOptions{Match: red})
	other := w.watch(r, watchcache.WatchOptions{Prefix: "/registry/things/other/", SendInitial: true})
	w.thing("ns/a", "blue")
	w.thing("ns/a", "green")
	w.thing("ns/a", "red")
	w.thing("other/b", "blue")
	gone := w.delete("/registry/things/ns/a")
	w.fresh(c)
	wantText(t, fmt.Sprint(w.next(all, 5)), "[modified ns/a blue modified ns/a green modified ns/a red added other/b blue deleted ns/a red]")
	wantText(t, fmt.Sprint(w.next(other, 2)), "[initial-end added other/b blue]")
	events := append([]watchcache.Event(nil), mustNext(t, w, reds)...)
	wantText(t, show(events[0])+", "+show(events[1])+", "+show(events[2]), "deleted ns/a red, added ns/a red, deleted ns/a red")
	m, err := events[2].Item.Object.Meta()
	if err != nil || events[2].Revision != gone || m.GetResourceVersion() != fmt.Sprint(gone) {
		t.Fatalf("deletion says resourceVersion %s, want %d", m.GetResourceVersion(), gone)
	}
}

func mustNext(t *testing.T, w *world, x *watchcache.Watcher) []watchcache.Event {
	t.Helper()
	events, err := x.Next(w.ctx())
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func TestFieldHintWakesWhomItConcerns(t *testing.T) {
	w := newWorld(t)
	c, r := w.cache(watchcache.Config{History: 4})
	on := func(node string) watchcache.WatchOptions {
		return watchcache.WatchOptions{
			Field: "spec.node", Value: node,
			Match: func(it *watchcache.Item) bool { return it.Fields.Get("spec.node") == node },
		}
	}
	one, two := w.watch(r, on("n1")), w.watch(r, on("n2"))
	for i := range 20 { // far more than the history remembers, and none of it for n2
		w.put("/registry/things/ns/x", value("x", fmt.Sprint(i), "n3"))
	}
	w.put("/registry/things/ns/a", value("a", "red", "n1"))
	w.put("/registry/things/ns/a", value("a", "red", "n2"))
	w.delete("/registry/things/ns/a")
	w.fresh(c)
	wantText(t, fmt.Sprint(w.next(one, 2)), "[added ns/a red deleted ns/a red]")
	wantText(t, fmt.Sprint(w.next(two, 2)), "[added ns/a red deleted ns/a red]")
}

func TestInitialEventsAndBookmarks(t *testing.T) {
	w := newWorld(t)
	for i := range 300 {
		w.thing(fmt.Sprintf("ns/a%03d", i), "red")
	}
	c, r := w.cache(watchcache.Config{BookmarkInterval: 50 * time.Millisecond})
	x := w.watch(r, watchcache.WatchOptions{SendInitial: true, Bookmarks: true})
	if b := x.Bookmark(); b.Revision != 0 {
		t.Fatalf("before the initial events the bookmark says %d", b.Revision)
	}
	first := w.thing("ns/new", "blue") // while the initial events are being sent
	w.fresh(c)
	got := w.next(x, 302)
	if got[0] != "added ns/a000 red" || got[299] != "added ns/a299 red" || got[300] != "initial-end" || got[301] != "added ns/new blue" {
		t.Fatalf("got %d events, %s ... %s, %s", len(got), got[0], got[300], got[301])
	}
	if b := x.Bookmark(); b.Revision < first {
		t.Fatalf("bookmark at %d, want at least %d", b.Revision, first)
	}
	// Nothing happens to this resource, but the bookmarks move on.
	outside := w.put("/registry/others/x", []byte("{}"))
	w.fresh(c)
	for x.Bookmark().Revision < outside {
		wantText(t, fmt.Sprint(w.next(x, 0)), "[bookmark]")
	}
}

func TestTooOldAndSlowWatchersAreSentBackToList(t *testing.T) {
	w := newWorld(t)
	c, r := w.cache(watchcache.Config{History: 10})
	start := w.fresh(c)
	slow := w.watch(r, watchcache.WatchOptions{})
	for i := range 30 {
		w.thing("ns/a", fmt.Sprint(i))
	}
	w.fresh(c)
	if _, err := slow.Next(w.ctx()); !errors.Is(err, watchcache.ErrTooOld) {
		t.Fatalf("slow watcher: got %v, want ErrTooOld", err)
	}
	if _, err := r.Watch(w.ctx(), watchcache.WatchOptions{From: start}); !errors.Is(err, watchcache.ErrTooOld) {
		t.Fatalf("old revision: got %v, want ErrTooOld", err)
	}
	x := w.watch(r, watchcache.WatchOptions{From: w.revs["/registry/things/ns/a"] - 3})
	wantText(t, fmt.Sprint(w.next(x, 3)), "[modified ns/a 27 modified ns/a 28 modified ns/a 29]")
}

func TestWatchOfTheFuture(t *testing.T) {
	w := newWorld(t)
	c, r := w.cache(watchcache.Config{})
	now := w.fresh(c)
	x := w.watch(r, watchcache.WatchOptions{From: now + 2})
	for i := range 4 {
		w.thing("ns/a", fmt.Sprint(i))
	}
	wantText(t, fmt.Sprint(w.next(x, 2)), "[modified ns/a 2 modified ns/a 3]")
	ctx, cancel := context.WithTimeout(w.ctx(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Watch(ctx, watchcache.WatchOptions{From: now + 1000, SendInitial: true}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want to wait for the revision", err)
	}
}

func TestAValueThatCannotBeDecodedEndsWatchesAndIsTold(t *testing.T) {
	w := newWorld(t)
	w.put("/registry/things/ns/bad", []byte("not json"))
	w.thing("ns/good", "red")
	c, r := w.cache(watchcache.Config{})
	from := w.fresh(c)
	wantText(t, names(r.List(watchcache.ListOptions{})), "ns/good")
	unreadable := func(want ...string) {
		t.Helper()
		var got []string
		for _, err := range r.Unreadable(r.Prefix()) {
			var e *store.CorruptError
			if !errors.As(err, &e) || !e.Undecodable {
				t.Fatalf("error %v", err)
			}
			got = append(got, strings.TrimPrefix(e.Key, r.Prefix()))
		}
		if !slices.Equal(got, want) {
			t.Errorf("unreadable: %q, want %q", got, want)
		}
	}
	unreadable("ns/bad")
	x := w.watch(r, watchcache.WatchOptions{From: from})
	elsewhere := w.watch(r, watchcache.WatchOptions{From: from, Prefix: r.Prefix() + "other/"})
	byField := w.watch(r, watchcache.WatchOptions{From: from, Field: "spec.node", Value: "violet"})
	w.thing("ns/good", "blue")
	w.put("/registry/things/ns/good", []byte("broken now"))
	w.fresh(c)
	unreadable("ns/bad", "ns/good")
	// What could be read last stays: a deletion would make controllers act on it.
	wantText(t, names(r.List(watchcache.ListOptions{})), "ns/good")
	wantText(t, fmt.Sprint(w.next(x, 1)), "[modified ns/good blue]")
	for _, ended := range []*watchcache.Watcher{x, byField} {
		var e *store.CorruptError
		if _, err := ended.Next(w.ctx()); !errors.As(err, &e) || e.Key != "/registry/things/ns/good" {
			t.Errorf("error %v", err)
		}
	}
	// Who comes from a revision before it reads the same.
	again := w.watch(r, watchcache.WatchOptions{From: from})
	wantText(t, fmt.Sprint(w.next(again, 1)), "[modified ns/good blue]")
	if _, err := again.Next(w.ctx()); err == nil {
		t.Error("the broken change was passed over")
	}
	w.thing("ns/good", "green")
	w.delete("/registry/things/ns/bad")
	w.thing("other/one", "red")
	w.fresh(c)
	unreadable()
	wantText(t, fmt.Sprint(w.next(elsewhere, 1)), "[added other/one red]")
	// A state before the broken change is found by undoing what came behind it.
	if l, err := r.ListAt(from, watchcache.ListOptions{}); err != nil || names(l) != "ns/good" {
		t.Errorf("%s, %v", names(l), err)
	}
}

// TestChangesCountWhatHappensToOneResource: each write and each deletion, and not those of others.
func TestChangesCountWhatHappensToOneResource(t *testing.T) {
	w := newWorld(t)
	c, r := w.cache(watchcache.Config{})
	w.put("/registry/things/ns/a", value("a", "red", ""))
	w.fresh(c)
	for _, step := range []struct {
		name    string
		do      func()
		changes bool
	}{
		{"nothing", func() {}, false},
		{"another object", func() { w.put("/registry/things/ns/b", value("b", "red", "")) }, true},
		{"the same object again", func() { w.put("/registry/things/ns/b", value("b", "red", "")) }, true},
		{"an object of another resource", func() { w.put("/registry/others/ns/b", value("b", "red", "")) }, false},
		{"what cannot be decoded", func() { w.put("/registry/things/ns/c", []byte("{")) }, true},
		{"a deletion", func() { w.delete("/registry/things/ns/a") }, true},
	} {
		before := r.Changes()
		step.do()
		w.fresh(c)
		if after := r.Changes(); (after != before) != step.changes {
			t.Errorf("%s: %d before, %d after", step.name, before, after)
		}
	}
}

func TestResourcesComeAndGoWhileTheCacheRuns(t *testing.T) {
	w := newWorld(t)
	c, _ := w.cache(watchcache.Config{})
	for i := range 100 {
		w.put(fmt.Sprintf("/registry/example.com/widgets/ns/w%03d", i), value("w", "red", ""))
	}
	stop := make(chan struct{})
	wrote := make(chan int)
	go func() { // writes go on while the resource is loaded
		i := 100
		for ; ; i++ {
			select {
			case <-stop:
				wrote <- i
				return
			default:
			}
			if _, err := w.store.Put(context.WithoutCancel(t.Context()), fmt.Sprintf("/registry/example.com/widgets/ns/w%03d", i),
				value("w", "blue", ""), 0, 0); err != nil {
				t.Error(err)
			}
		}
	}()
	r, err := c.Register("/registry/example.com/widgets/", decode)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WaitReady(w.ctx()); err != nil {
		t.Fatal(err)
	}
	l := r.List(watchcache.ListOptions{})
	close(stop)
	total := <-wrote
	x := w.watch(r, watchcache.WatchOptions{From: l.Revision})
	w.fresh(c)
	if got := len(r.List(watchcache.ListOptions{}).Items); got != total {
		t.Fatalf("%d widgets in the cache, %d were written", got, total)
	}
	if more := total - len(l.Items); more > 0 {
		w.next(x, more)
	}
	for _, bad := range []string{
		"/registry/example.com/widgets/", "/registry/example.com/", "/registry/things/ns/", "/elsewhere/x/",
		"/registry/noslash",
	} {
		if _, err := c.Register(bad, decode); err == nil {
			t.Errorf("registered %s", bad)
		}
	}
	c.Unregister(r)
	if _, err := x.Next(w.ctx()); !errors.Is(err, watchcache.ErrStopped) {
		t.Fatalf("watch of an unregistered resource: got %v, want ErrStopped", err)
	}
	r, err = c.Register("/registry/example.com/widgets/", decode)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WaitReady(w.ctx()); err != nil {
		t.Fatal(err)
	}
	if got := len(r.List(watchcache.ListOptions{}).Items); got != total {
		t.Fatalf("registered again: %d widgets, want %d", got, total)
	}
}

// counting counts what the cache asks of the store.
type counting struct {
	store.Store
	revisions chan struct{}
}

func (c counting) Revision(ctx context.Context) (int64, error) {
	c.revisions <- struct{}{}
	return c.Store.Revision(ctx)
}

func TestManyFreshReadersCostOneReadOfTheStore(t *testing.T) {
	w := newWorld(t)
	reads := make(chan struct{})
	c, _ := w.cache(watchcache.Config{Store: counting{w.store, reads}})
	done := make(chan error, 1000)
	ask := func() {
		_, err := c.Fresh(w.ctx())
		done <- err
	}
	go ask()
	for range 999 {
		go ask()
	}
	total := 0
	for got := 0; got < 1000; {
		select {
		case <-reads: // each read waits here, so that the others gather behind it
			total++
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			got++
		}
	}
	if total > 200 {
		t.Fatalf("1000 readers cost %d reads of the store", total)
	}
	t.Logf("1000 readers cost %d reads of the store", total)
}

func TestEncodedBytesAreBounded(t *testing.T) {
	w := newWorld(t)
	const n = 100
	for i := range n {
		w.thing(fmt.Sprintf("ns/a%03d", i), strings.Repeat("x", 1000))
	}
	reg := prometheus.NewRegistry()
	_, r := w.cache(watchcache.Config{EncodedBytes: 20_000, Metrics: reg})
	items := r.List(watchcache.ListOptions{}).Items
	encode := func(it *watchcache.Item) []byte {
		// What is packed as JSON is not encoded to JSON: another form is.
		b, err := it.Object.Kept("copy", func() ([]byte, error) {
			b, err := it.Object.Encoded(object.JSON)
			return slices.Clone(b), err
		})
		if err != nil || len(b) < 1000 {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		return b
	}
	for range 3 {
		for _, it := range items {
			if first, again := encode(it), encode(it); &first[0] != &again[0] {
				t.Fatal("encoded twice")
			}
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch bytes := f.GetMetric()[0].GetGauge().GetValue(); f.GetName() {
		case "wasmplane_watchcache_stored_bytes":
			if bytes < n*1000 || bytes > n*1200 {
				t.Errorf("%g bytes are stored", bytes)
			}
		case "wasmplane_watchcache_encoded_bytes":
			if bytes > 1.5*n*1200 || bytes < n*1000 {
				t.Errorf("%g bytes are kept of a state that fits", bytes)
			}
		}
	}
}

func TestKeptStatesExpire(t *testing.T) {
	w := newWorld(t)
	for i := range 4 {
		w.thing(fmt.Sprintf("ns/a%d", i), "red")
	}
	c, r := w.cache(watchcache.Config{History: 1, HistoryAge: 20 * time.Millisecond})
	first := r.List(watchcache.ListOptions{Limit: 2})
	for i := 0; ; i++ {
		w.thing("ns/a3", fmt.Sprint(i))
		w.fresh(c)
		if _, err := r.ListAt(first.Revision, watchcache.ListOptions{From: first.Next}); errors.Is(err, watchcache.ErrNoSnapshot) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if w.ctx().Err() != nil {
			t.Fatal("a state is kept for ever")
		}
	}
}
