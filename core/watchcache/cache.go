// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache/pairs"
)

// Cache is the watch cache. Make one with New.
type Cache struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	forms   forms
	pairs   pairs.Maker
	stored  atomic.Int64 // bytes that the items of all resources are packed into

	byNamespace shares

	revision atomic.Int64 // everything up to it has been applied
	waiting  waiting
	fresh    freshQueue
	watch    atomic.Pointer[store.Watcher] // the one that feeds the cache now

	mu        sync.Mutex
	stopped   bool
	toLoad    []*Resource // registered while the cache runs
	loadSoon  chan struct{}
	reread    chan struct{} // see Reread
	resources atomic.Pointer[routes]

	ready     chan struct{}
	readyOnce sync.Once
}

// New checks cfg and makes a cache; Run starts it.
func New(cfg Config) (*Cache, error) {
	if cfg.Store == nil {
		return nil, errors.New("watch cache: no store given")
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "/registry/"
	}
	if !strings.HasSuffix(cfg.Prefix, "/") {
		return nil, fmt.Errorf("watch cache: prefix %q: want a slash at the end", cfg.Prefix)
	}
	defaultTo(&cfg.History, 10_000)
	defaultTo(&cfg.HistoryBytes, 16<<20)
	defaultTo(&cfg.HistoryAge, 5*time.Minute)
	defaultTo(&cfg.Snapshots, 16)
	defaultTo(&cfg.EncodedBytes, 64<<20)
	defaultTo(&cfg.DecodedBytes, 8<<20)
	defaultTo(&cfg.BookmarkInterval, time.Minute)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Cache{cfg: cfg, log: cfg.Logger, ready: make(chan struct{}), loadSoon: make(chan struct{}, 1), reread: make(chan struct{}, 1)}
	c.forms.limit, c.forms.decodedLimit, c.forms.stored, c.forms.now = cfg.EncodedBytes, cfg.DecodedBytes, c.stored.Load, time.Now
	c.waiting.ask = make(chan struct{}, 1)
	c.fresh.ask, c.fresh.back = make(chan struct{}, 1), make(chan struct{}, 1)
	c.resources.Store(&routes{})
	var err error
	if c.metrics, err = newMetrics(cfg.Metrics, c); err != nil {
		return nil, fmt.Errorf("watch cache: %w", err)
	}
	return c, nil
}

func defaultTo[T int | int64 | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Register adds the resource whose keys begin with prefix ("/registry/pods/").
// It may be called before Run and while the cache runs (custom resources); the
// resource's WaitReady then tells when its items are loaded.
func (c *Cache) Register(prefix string, d Decoder) (*Resource, error) {
	if !strings.HasPrefix(prefix, c.cfg.Prefix) || !strings.HasSuffix(prefix, "/") || len(prefix) <= len(c.cfg.Prefix) {
		return nil, fmt.Errorf("register %q: want a prefix below %s that ends with a slash", prefix, c.cfg.Prefix)
	}
	if d == nil {
		return nil, fmt.Errorf("register %q: no decoder given", prefix)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, fmt.Errorf("register %s: %w", prefix, ErrStopped)
	}
	r := newResource(c, prefix, d)
	next, err := c.resources.Load().with(r)
	if err != nil {
		return nil, err
	}
	c.resources.Store(next)
	c.toLoad = append(c.toLoad, r)
	notify(c.loadSoon)
	return r, nil
}

// Unregister forgets a resource; its watchers end with ErrStopped.
func (c *Cache) Unregister(r *Resource) {
	c.mu.Lock()
	c.resources.Store(c.resources.Load().without(r))
	c.mu.Unlock()
	r.end()
}

// errReread: see Reread.
var errReread = errors.New("values that could not be read may be readable now")

// Reread loads everything anew if there is a value that could not be read:
// the store may have got the key for it.
func (c *Cache) Reread() {
	for _, r := range c.resources.Load().list {
		if r.unreadable.any.Load() {
			notify(c.reread)
			return
		}
	}
}

// Ready is closed once every resource registered before Run is loaded.
func (c *Cache) Ready() <-chan struct{} { return c.ready }

// NamespaceBytes is what the objects of a namespace take as they are stored, as far
// as the cache has seen.
func (c *Cache) NamespaceBytes(name string) int64 { return c.byNamespace.of(name) }

// shares are bytes by namespace.
type shares struct {
	mu    sync.Mutex
	bytes map[string]int64
}

func (s *shares) add(namespace string, bytes int64) {
	if namespace == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes == nil {
		s.bytes = map[string]int64{}
	}
	if s.bytes[namespace] += bytes; s.bytes[namespace] == 0 {
		delete(s.bytes, namespace)
	}
}

func (s *shares) of(namespace string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes[namespace]
}

// Revision is the newest revision up to which the cache has seen everything.
func (c *Cache) Revision() int64 { return c.revision.Load() }

// Run feeds the cache until ctx ends. It outlives every failure of the store:
// it resumes the watch where it broke off, and where the store has forgotten
// that revision it loads everything anew and sends the watchers back to list.
func (c *Cache) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.answerFresh(ctx) })
	wg.Go(func() { c.askProgress(ctx) })
	wg.Go(func() { c.loadLate(ctx) })
	wg.Go(func() { c.forms.sweep(ctx) })
	defer func() {
		cancel()
		wg.Wait()
		c.stop()
	}()
	retry := storeRetry()
	for ctx.Err() == nil {
		err := c.session(ctx, retry.Reset)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, store.ErrCompacted) || errors.Is(err, errWentBack) || errors.Is(err, errReread) {
			c.log.WarnContext(ctx, "the watch cache loads everything anew", "error", err, "revision", c.Revision())
			c.metrics.reloads.Inc()
			c.revision.Store(0)
			continue
		}
		c.log.WarnContext(ctx, "the watch that feeds the watch cache broke off; resuming it", "error", err, "revision", c.Revision())
		retry.Wait(ctx)
	}
	return nil
}

// session loads where nothing is loaded, then watches until that fails.
func (c *Cache) session(ctx context.Context, working func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.Revision() == 0 {
		if err := c.load(ctx); err != nil {
			return err
		}
	}
	// What was before a change, the cache knows itself.
	w, err := store.WatchLean(ctx, c.cfg.Store, c.cfg.Prefix, c.Revision())
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	c.watch.Store(&w)
	defer c.watch.Store(nil)
	defer func() {
		cancel(nil)
		for range w.Batches() { // wait for the end of the store's goroutine
		}
	}()
	notify(c.waiting.ask)
	for {
		select {
		case batch, ok := <-w.Batches():
			if !ok {
				return fmt.Errorf("watch: %w", cmp.Or(w.Err(), context.Cause(ctx)))
			}
			c.apply(batch)
			working()
		case <-c.fresh.back:
			return errWentBack
		case <-c.reread:
			return errReread
		}
	}
}

// load replaces the state by what the store has now.
func (c *Cache) load(ctx context.Context) error {
	c.mu.Lock()
	table := c.resources.Load()
	c.toLoad = nil
	c.mu.Unlock()
	loaded := make(map[*Resource][]*Item, len(table.list))
	for _, r := range table.list {
		r.unreadable.begin()
	}
	rev, err := c.listAll(ctx, c.cfg.Prefix, func(kv store.KV) *Resource { return table.find(kv.Key) }, loaded)
	if err != nil {
		return err
	}
	for _, r := range table.list {
		r.replace(loaded[r], rev)
		r.unreadable.end()
	}
	c.publish(rev)
	c.readyOnce.Do(func() { close(c.ready) })
	return nil
}

// Pages of the first list: large ones are read faster, but neither etcd nor we
// should hold too much at a time.
const (
	pageKeys  = 10_000
	pageBytes = 8 << 20
)

// listAll reads every key below prefix as of one revision, and decodes those
// that belong to a resource.
func (c *Cache) listAll(ctx context.Context, prefix string, route func(store.KV) *Resource, into map[*Resource][]*Item) (int64, error) {
	o := store.ListOptions{Limit: 500}
	for {
		page, err := c.cfg.Store.List(ctx, prefix, o)
		if err != nil {
			return 0, fmt.Errorf("list: %w", err)
		}
		for i, d := range c.decodePage(page.Items, route) {
			if d.item != nil {
				into[d.resource] = append(into[d.resource], d.item)
			} else if d.resource != nil {
				// Better an old state than a deletion that nobody asked for.
				if old, _, ok := d.resource.Get(page.Items[i].Key); ok {
					into[d.resource] = append(into[d.resource], old)
				}
			}
		}
		if !page.More {
			return page.Revision, nil
		}
		size := 1
		for _, kv := range page.Items {
			size += len(kv.Value)
		}
		o.Limit = int64(min(max(pageBytes*len(page.Items)/size, 1), pageKeys))
		o.Revision, o.From = page.Revision, page.Items[len(page.Items)-1].Key+"\x00"
	}
}

type decoded struct {
	resource *Resource
	item     *Item
}

// decodePage decodes on every processor.
func (c *Cache) decodePage(kvs []store.KV, route func(store.KV) *Resource) []decoded {
	out := make([]decoded, len(kvs))
	share := max(len(kvs)/(4*runtime.GOMAXPROCS(0)), 16)
	var wg sync.WaitGroup
	for from := 0; from < len(kvs); from += share {
		wg.Go(func() {
			for i := from; i < min(from+share, len(kvs)); i++ {
				if r := route(kvs[i]); r != nil {
					out[i] = decoded{r, r.item(kvs[i])}
				}
			}
		})
	}
	wg.Wait()
	return out
}

// apply takes in what happened in some revisions. Only the session calls it.
func (c *Cache) apply(b store.Batch) {
	table := c.resources.Load()
	if len(b.Events) == 1 {
		if r := table.find(b.Events[0].KV.Key); r != nil {
			r.apply(b.Events)
		}
	} else {
		// A resource gets its events at once: a reader must not see half a revision.
		parts := map[*Resource][]store.Event{}
		for _, e := range b.Events {
			if r := table.find(e.KV.Key); r != nil {
				parts[r] = append(parts[r], e)
			}
		}
		for r, events := range parts {
			r.apply(events)
		}
	}
	if b.Revision > c.Revision() {
		c.publish(b.Revision)
	}
}

func (c *Cache) publish(rev int64) {
	c.revision.Store(rev)
	c.waiting.reached(rev)
}

// loadLate loads resources that were registered while the cache runs.
func (c *Cache) loadLate(ctx context.Context) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return
	}
	retry := storeRetry()
	for {
		c.mu.Lock()
		batch := c.toLoad
		c.toLoad = nil
		c.mu.Unlock()
		for _, r := range batch {
			for ctx.Err() == nil && !r.isOver() && !r.isLoaded() {
				err := c.loadOne(ctx, r)
				if err == nil {
					retry.Reset()
					break
				}
				c.log.WarnContext(ctx, "the watch cache could not load a resource; trying again", "prefix", r.prefix, "error", err)
				retry.Wait(ctx)
			}
		}
		select {
		case <-c.loadSoon:
		case <-ctx.Done():
			return
		}
	}
}

// loadOne lists one resource. Its events have been kept since it was
// registered: whatever was dropped before that is in the list, which began later.
func (c *Cache) loadOne(ctx context.Context, r *Resource) error {
	loaded := map[*Resource][]*Item{}
	rev, err := c.listAll(ctx, r.prefix, func(store.KV) *Resource { return r }, loaded)
	if err != nil {
		return err
	}
	r.join(loaded[r], rev)
	return nil
}

func (c *Cache) stop() {
	c.mu.Lock()
	c.stopped = true
	table := c.resources.Load()
	c.mu.Unlock()
	for _, r := range table.list {
		r.end()
	}
	c.waiting.stop()
	c.fresh.stop()
}

// routes finds the resource of a key; it is never changed, but replaced.
type routes struct{ list []*Resource } // by prefix

func (t *routes) find(key string) *Resource {
	i := sort.Search(len(t.list), func(i int) bool { return t.list[i].prefix > key })
	if i == 0 || !strings.HasPrefix(key, t.list[i-1].prefix) {
		return nil
	}
	return t.list[i-1]
}

func (t *routes) with(r *Resource) (*routes, error) {
	i := sort.Search(len(t.list), func(i int) bool { return t.list[i].prefix >= r.prefix })
	// Of sorted prefixes, one that contains another stands right before it.
	for _, n := range []int{i - 1, i} {
		if n < 0 || n >= len(t.list) {
			continue
		}
		if o := t.list[n].prefix; strings.HasPrefix(o, r.prefix) || strings.HasPrefix(r.prefix, o) {
			return nil, fmt.Errorf("register %s: %s is registered already", r.prefix, o)
		}
	}
	list := make([]*Resource, 0, len(t.list)+1)
	list = append(append(append(list, t.list[:i]...), r), t.list[i:]...)
	return &routes{list}, nil
}

func (t *routes) without(r *Resource) *routes {
	list := make([]*Resource, 0, len(t.list))
	for _, x := range t.list {
		if x != r {
			list = append(list, x)
		}
	}
	return &routes{list}
}

// notify wakes a goroutine that waits for ch, which has room for one.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// storeRetry spaces attempts to reach the store.
func storeRetry() *run.Backoff {
	return &run.Backoff{First: 20 * time.Millisecond, Longest: 2 * time.Second}
}
