package watchcache

import "context"

// Cache is the watch cache. Make one with New.
type Cache struct{}

// New checks cfg and makes a cache; Run starts it.
func New(cfg Config) (*Cache, error) { return nil, nil }

// Register adds the resource whose keys begin with prefix ("/registry/pods/").
// It may be called before Run and while the cache runs (custom resources); WaitReady of the
// resource then tells when its items are loaded.
func (c *Cache) Register(prefix string, d Decoder) (*Resource, error) { return nil, nil }

// Unregister forgets a resource; its watchers end with ErrStopped.
func (c *Cache) Unregister(r *Resource) {}

// Run feeds the cache until ctx ends (nil) or the store fails for good.
func (c *Cache) Run(ctx context.Context) error { return nil }

// Ready is closed once every resource registered before Run is loaded.
func (c *Cache) Ready() <-chan struct{} { return nil }

// Revision is the newest revision up to which the cache has seen everything.
func (c *Cache) Revision() int64 { return 0 }

// WaitFor waits until the cache has seen revision rev.
func (c *Cache) WaitFor(ctx context.Context, rev int64) error { return nil }

// Fresh waits until the cache has seen everything that was acknowledged before
// the call, and returns a revision that proves it. Callers share the cost.
func (c *Cache) Fresh(ctx context.Context) (int64, error) { return 0, nil }

// Resource is the cached part of the key space below one prefix.
type Resource struct{}

// WaitReady waits until the items are loaded; ErrStopped after Unregister.
func (r *Resource) WaitReady(ctx context.Context) error { return nil }

// Get returns one item and the revision at which it (or its absence) was seen.
func (r *Resource) Get(key string) (*Item, int64, bool) { return nil, 0, false }

// List lists the newest state that the cache has seen. Call Cache.Fresh or
// Cache.WaitFor before it for a bound on its age. When the answer has More, the
// state is kept for ListAt for a while.
func (r *Resource) List(o ListOptions) List { return List{} }

// ListAt lists the state at an earlier revision that a List with More returned,
// or ErrNoSnapshot.
func (r *Resource) ListAt(rev int64, o ListOptions) (List, error) { return List{}, nil }

// Watch starts a watcher. ErrTooOld when o.From is older than the history.
// It waits, until ctx ends, for the resource to be loaded and From to be seen.
func (r *Resource) Watch(ctx context.Context, o WatchOptions) (*Watcher, error) { return nil, nil }

// Watcher reads changes. It is for one goroutine (Stop is for any) and holds no goroutine itself.
type Watcher struct{}

// Next waits for at least one event and returns all that are there (a bounded
// number), in order. The slice is valid until the next call. It fails with ctx's error,
// ErrTooOld (the watcher was too slow or the store lost the history: the client lists again) or ErrStopped.
func (w *Watcher) Next(ctx context.Context) ([]Event, error) { return nil, nil }

// Bookmark tells how far the watcher has got, for the bookmark that ends a watch.
func (w *Watcher) Bookmark() Event { return Event{} }

// Stop ends the watcher: Next returns ErrStopped. It must be called.
func (w *Watcher) Stop() {}
