// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/store"
)

// tree is a resource's state in key order. Clones share what they have in
// common; a clone that nobody writes to may be read by anybody without a lock.
type tree = btree.BTreeG[*Item]

func newTree() *tree {
	return btree.NewG(32, func(a, b *Item) bool { return a.Key < b.Key })
}

// Resource is the cached part of the key space below one prefix.
type Resource struct {
	cache  *Cache
	prefix string
	decode Decoder
	loaded chan struct{} // closed once there is a state
	over   chan struct{} // closed when the resource is unregistered or the cache stopped

	mu        sync.Mutex
	ended     bool
	ready     bool
	early     []store.Event // what came before the resource was loaded
	state     *tree
	shared    *tree // a clone of state for readers; nil where state changed since
	revision  int64 // of the newest change in state, or of the list that it came from
	history   history
	received  uint64 // events that the store has sent
	passed    uint64 // of them, those that changed the state, for whoever watches
	epoch     int    // of the history; a watcher of an earlier one has to start again
	watchers  watcherIndex
	snapshots []*snapshot

	unreadable unreadable
}

// snapshot is the state as it was from revision low to revision high at least.
type snapshot struct {
	tree      *tree
	low, high int64
	made      time.Time
}

func newResource(c *Cache, prefix string, d Decoder) *Resource {
	return &Resource{
		cache: c, prefix: prefix, decode: d, state: newTree(),
		loaded: make(chan struct{}), over: make(chan struct{}),
	}
}

// Prefix is the key prefix that the resource was registered with.
func (r *Resource) Prefix() string { return r.prefix }

// WaitReady waits until the items are loaded; before that the resource looks
// empty. ErrStopped after Unregister.
func (r *Resource) WaitReady(ctx context.Context) error {
	select {
	case <-r.loaded:
		return nil
	default:
	}
	select {
	case <-r.loaded:
		return nil
	case <-r.over:
		return ErrStopped
	case <-ctx.Done():
		return fmt.Errorf("wait for %s to be loaded into the watch cache: %w", r.prefix, context.Cause(ctx))
	}
}

func (r *Resource) isLoaded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready
}

func (r *Resource) isOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// end makes every watcher return ErrStopped.
func (r *Resource) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.accountAll(r.state, -1)
		r.ended = true
		close(r.over)
	}
}

// item decodes one value; nil where that fails, which is told and counted.
func (r *Resource) item(kv store.KV) *Item {
	if kv.Unreadable == nil && bytes.HasPrefix(kv.Value, encrypted) {
		kv.Unreadable = &store.CorruptError{
			Key: kv.Key, Revision: kv.ModRevision,
			Err: fmt.Errorf("unable to transform key %q: the value is encrypted, and no encryption configuration says how", kv.Key),
		}
	}
	var o *object.Object
	var l labels.Set
	var f fields.Set
	if kv.Unreadable == nil {
		var err error
		if o, l, f, err = r.decode(kv.Key, kv.Value, kv.ModRevision); err != nil {
			kv.Unreadable = &store.CorruptError{Key: kv.Key, Revision: kv.ModRevision, Undecodable: true, Err: err}
		}
	}
	r.unreadable.record(kv.Key, kv.Unreadable)
	if kv.Unreadable != nil {
		r.cache.metrics.undecodable.WithLabelValues(r.prefix).Inc()
		r.cache.log.Error("a stored object cannot be read; lists and watches of its resource fail until it can be, or is deleted with the option ignoreStoreReadErrorWithClusterBreakingPotential",
			"key", kv.Key, "revision", kv.ModRevision, "error", kv.Unreadable)
		return nil
	}
	o.SetHolder(&r.cache.forms)
	if err := o.Pack(); err != nil {
		r.cache.log.Warn("an object cannot be packed and takes more memory", "key", kv.Key, "revision", kv.ModRevision, "error", err)
	}
	return &Item{
		Key: kv.Key, Revision: kv.ModRevision, Object: o, Labels: r.cache.pairs.Alike(l), Fields: r.cache.pairs.Own(f), size: len(kv.Value),
	}
}

// encrypted begins every value that upstream's encryption at rest wrote.
var encrypted = []byte("k8s:enc:")

// Unreadable are the errors of the stored objects below prefix that cannot be
// decrypted or decoded, by key; each is a *store.CorruptError. An answer without
// them would look whole and not be. At most 100 are told.
func (r *Resource) Unreadable(prefix string) []error { return r.unreadable.below(prefix) }

const maxUnreadable = 100

// unreadable are the keys whose newest value cannot be read.
type unreadable struct {
	any   atomic.Bool // keys is not empty; spares the lock, as nearly always
	mu    sync.Mutex
	keys  map[string]unreadableKey
	round int // of loading everything
}

type unreadableKey struct {
	why   error
	round int
}

func (u *unreadable) record(key string, err error) {
	if err == nil && !u.any.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		delete(u.keys, key)
	} else {
		if u.keys == nil {
			u.keys = map[string]unreadableKey{}
		}
		u.keys[key] = unreadableKey{err, u.round}
	}
	u.any.Store(len(u.keys) > 0)
}

// begin starts a round of loading everything; keys that were noted before it and
// are not noted in it again are forgotten by end.
func (u *unreadable) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.round++
}

func (u *unreadable) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.keys, func(_ string, k unreadableKey) bool { return k.round < u.round })
	u.any.Store(len(u.keys) > 0)
}

func (u *unreadable) below(prefix string) []error {
	if !u.any.Load() {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var keys []string
	for key := range u.keys {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var errs []error
	for _, key := range keys[:min(len(keys), maxUnreadable)] {
		errs = append(errs, u.keys[key].why)
	}
	return errs
}

// of is the error of one key.
func (u *unreadable) of(key string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.keys[key].why
}

// replace makes items, a list as of rev, the whole state. The history begins
// there, and present watchers have to start again.
func (r *Resource) replace(items []*Item, rev int64) {
	fresh := treeOf(items)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset(fresh, rev)
}

// join is replace for a resource whose events were kept since it was registered.
func (r *Resource) join(items []*Item, rev int64) {
	fresh := treeOf(items)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready {
		return // a reload was faster
	}
	early, now := r.early, time.Now()
	r.reset(fresh, rev)
	for _, e := range early {
		if e.KV.ModRevision <= rev {
			continue
		}
		var it *Item
		if e.Type == store.Put {
			it = r.item(e.KV)
		}
		r.change(e, it, now)
	}
}

func treeOf(items []*Item) *tree {
	t := newTree()
	for _, it := range items {
		t.ReplaceOrInsert(it)
	}
	return t
}

func (r *Resource) reset(state *tree, rev int64) {
	r.accountAll(state, 1)
	r.accountAll(r.state, -1)
	r.state, r.shared, r.revision, r.early, r.snapshots = state, nil, rev, nil, nil
	r.history = history{start: rev}
	r.epoch++
	r.watchers.wakeAll()
	r.open()
}

// account tells the cache what an item takes as it is stored: sign is 1 for one that
// came, -1 for one that went.
func (r *Resource) account(it *Item, sign int64) {
	if !r.ended { // end has taken everything away
		r.cache.stored.Add(sign * int64(it.size))
		r.cache.byNamespace.add(r.namespaceOf(it.Key), sign*int64(it.size))
	}
}

// accountAll is account for every item of a state.
func (r *Resource) accountAll(t *tree, sign int64) {
	t.Ascend(func(it *Item) bool {
		r.account(it, sign)
		return true
	})
}

// namespaceOf reads the namespace out of a key; "" for objects of the cluster.
func (r *Resource) namespaceOf(key string) string {
	namespace, _, namespaced := strings.Cut(strings.TrimPrefix(key, r.prefix), "/")
	if !namespaced {
		return ""
	}
	return namespace
}

func (r *Resource) open() {
	if !r.ready {
		r.ready = true
		close(r.loaded)
	}
}

// apply takes in events, all of whole revisions, in order.
func (r *Resource) apply(events []store.Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	r.received += uint64(len(events))
	ready, base := r.ready, r.revision
	if !ready {
		r.early = append(r.early, events...)
	}
	r.mu.Unlock()
	if !ready {
		return
	}
	items := make([]*Item, len(events))
	for i, e := range events {
		if e.Type == store.Put && e.KV.ModRevision > base {
			items[i] = r.item(e.KV)
		}
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	base = max(base, r.revision)
	for i, e := range events {
		if e.KV.ModRevision > base {
			r.change(e, items[i], now)
		}
	}
	r.history.trim(&r.cache.cfg, now)
	r.expire(now)
}

// expire lets go of kept states that are too old: as the state moves on, they
// alone keep what it has left behind in memory.
func (r *Resource) expire(now time.Time) {
	if len(r.snapshots) > 0 && now.Sub(r.snapshots[0].made) >= r.cache.cfg.HistoryAge {
		r.snapshots = slices.DeleteFunc(r.snapshots, func(s *snapshot) bool { return now.Sub(s.made) >= r.cache.cfg.HistoryAge })
	}
}

// change applies one event. item is nil for a deletion, and for a value that cannot be decoded.
func (r *Resource) change(e store.Event, item *Item, now time.Time) {
	r.revision = e.KV.ModRevision
	r.passed++
	var prev *Item
	switch {
	case e.Type == store.Delete:
		r.unreadable.record(e.KV.Key, nil)
		old, ok := r.state.Delete(&Item{Key: e.KV.Key})
		if !ok {
			return // it never could be decoded
		}
		prev = old
	case item == nil:
		// The last state that could be read stays, and whoever watches is told that
		// it is not the newest.
		broken := r.unreadable.of(e.KV.Key)
		if broken == nil { // it has been written again meanwhile
			broken = &store.CorruptError{
				Key: e.KV.Key, Revision: e.KV.ModRevision, Undecodable: true,
				Err: errors.New("the value is not there any more"),
			}
		}
		c := &change{rev: e.KV.ModRevision, key: e.KV.Key, broken: broken, at: now}
		r.watchers.wake(&r.mu, c, r.history.add(c))
		return
	default:
		prev, _ = r.state.ReplaceOrInsert(item)
		r.account(item, 1)
	}
	if prev != nil {
		r.account(prev, -1)
	}
	r.shared = nil
	c := &change{rev: e.KV.ModRevision, key: e.KV.Key, item: item, prev: prev, at: now}
	seq := r.history.add(c)
	r.watchers.wake(&r.mu, c, seq)
}

// view is a snapshot of the newest state, with the revision it is known to be of.
func (r *Resource) view() (*tree, int64) {
	// The cache's revision is read first: everything up to it has been applied.
	seen := r.cache.Revision()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.viewLocked(), max(seen, r.revision)
}

func (r *Resource) viewLocked() *tree {
	if r.shared == nil {
		r.shared = r.state.Clone()
	}
	return r.shared
}

// Count is how many items there are.
func (r *Resource) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Len()
}

// Changes is another number after every change of the state, and the same while there is none.
func (r *Resource) Changes() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return uint64(r.epoch) + r.passed
}

// Get returns one item and the revision at which it (or its absence) was seen.
func (r *Resource) Get(key string) (*Item, int64, bool) {
	seen := r.cache.Revision()
	r.mu.Lock()
	defer r.mu.Unlock()
	it, ok := r.state.Get(&Item{Key: key})
	return it, max(seen, r.revision), ok
}

// List lists the newest state that the cache has seen. Call Cache.Fresh or
// Cache.WaitFor before it for a bound on its age. Where the answer has More,
// the state is kept for ListAt for a while.
func (r *Resource) List(o ListOptions) List {
	t, rev := r.view()
	l := r.list(t, rev, o)
	if l.More {
		r.keep(t, rev, rev)
	}
	return l
}

// ListAt lists the state at an earlier revision, as a client that pages through
// a list needs it: ErrNoSnapshot where the cache does not remember it,
// store.ErrFuture where it has not seen it yet.
func (r *Resource) ListAt(rev int64, o ListOptions) (List, error) {
	t, err := r.at(rev)
	if err != nil {
		return List{}, fmt.Errorf("list %s at revision %d: %w", r.prefix, rev, err)
	}
	return r.list(t, rev, o), nil
}

// at finds the state at a revision: the newest, one that is kept, or the
// newest one with the history's changes undone.
func (r *Resource) at(rev int64) (*tree, error) {
	t, now := r.view()
	if rev > now {
		return nil, store.ErrFuture
	}
	r.mu.Lock()
	for _, s := range r.snapshots {
		if s.low <= rev && rev <= s.high {
			r.mu.Unlock()
			return s.tree, nil
		}
	}
	undo, low, ok := r.history.since(rev)
	if ok {
		t = r.viewLocked()
	}
	r.mu.Unlock()
	if !ok {
		return nil, ErrNoSnapshot
	}
	if len(undo) == 0 {
		return t, nil
	}
	r.mu.Lock()
	t = t.Clone() // writes to the clone copy; r.shared stays as its readers know it
	r.mu.Unlock()
	for i := len(undo) - 1; i >= 0; i-- {
		switch c := undo[i]; {
		case c.broken != nil: // it has changed nothing
		case c.prev != nil:
			t.ReplaceOrInsert(c.prev)
		default:
			t.Delete(c.item)
		}
	}
	r.keep(t, low, rev)
	return t, nil
}

// keep remembers a state for ListAt.
func (r *Resource) keep(t *tree, low, high int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.snapshots {
		if s.tree == t {
			s.high, s.low = max(s.high, high), min(s.low, low)
			return
		}
	}
	now := time.Now()
	r.expire(now)
	if n := len(r.snapshots) - r.cache.cfg.Snapshots + 1; n > 0 {
		r.snapshots = slices.Delete(r.snapshots, 0, n)
	}
	r.snapshots = append(r.snapshots, &snapshot{tree: t, low: low, high: high, made: now})
}

// list walks a state that nobody changes.
func (r *Resource) list(t *tree, rev int64, o ListOptions) List {
	scope := scopeOf(r.prefix, o.Prefix)
	l := List{Revision: rev}
	if scope.whole && o.Match == nil && o.From == "" && o.Limit == 0 {
		l.Items = make([]*Item, 0, t.Len())
	}
	rest := counter{scope: scope}
	t.AscendGreaterOrEqual(&Item{Key: max(scope.prefix, o.From)}, func(it *Item) bool {
		if l.More {
			return rest.add(it)
		}
		if !scope.has(it.Key) {
			return false // the keys of a scope stand together
		}
		if o.Match != nil && !o.Match(it) {
			return true
		}
		if o.Limit > 0 && len(l.Items) == o.Limit {
			l.More, l.Next = true, it.Key
			return o.Match == nil && rest.add(it)
		}
		l.Items = append(l.Items, it)
		return true
	})
	if o.Match == nil {
		l.Remaining = rest.count()
	}
	return l
}

// counter counts the items of a scope, in the order of their keys, from one that is
// in it on. Every page of a list counts all that is behind it, so it looks at
// few of the items: each that is looked at has to come from memory.
type counter struct {
	scope   scope
	known   int // that are in the scope
	pending [64]*Item
	unknown int // of pending
}

// add is false once the scope has ended.
func (c *counter) add(it *Item) bool {
	c.pending[c.unknown] = it
	c.unknown++
	return c.unknown < len(c.pending) || c.look()
}

// look finds out how many of the pending items are in the scope.
func (c *counter) look() (all bool) {
	in := c.unknown
	if in > 0 && !c.scope.has(c.pending[in-1].Key) {
		in = sort.Search(in, func(i int) bool { return !c.scope.has(c.pending[i].Key) })
	}
	all = in == c.unknown
	c.known, c.unknown = c.known+in, 0
	return all
}

func (c *counter) count() int64 {
	c.look()
	return int64(c.known)
}

// scope is the part of a resource's keys that somebody looks at.
type scope struct {
	prefix string
	one    bool // prefix is a whole key
	whole  bool // all of the resource
}

func scopeOf(resource, prefix string) scope {
	if prefix == "" || prefix == resource {
		return scope{prefix: resource, whole: true}
	}
	return scope{prefix: prefix, one: !strings.HasSuffix(prefix, "/")}
}

func (s scope) has(key string) bool {
	if s.one {
		return key == s.prefix
	}
	return s.whole || strings.HasPrefix(key, s.prefix)
}
