// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// maxEvents bounds what one Next returns, so that a watcher that catches up
// neither holds the resource's lock long nor much memory.
const maxEvents = 128

// idleRoom is the room for events that a watcher keeps while it waits.
const idleRoom = 8

// Watcher reads changes. It is for one goroutine (Stop is for any) and holds no
// goroutine itself. It has no queue: it is a position in the resource's history.
type Watcher struct {
	resource *Resource
	opts     WatchOptions
	scope    scope
	wakes    chan struct{} // has room for one
	stop     chan struct{}
	stopOnce sync.Once

	// Guarded by the resource's mutex.
	epoch int
	// pending: there are changes from number next on that may be for us. Where it is
	// false, nothing since has been, and next means nothing: so a watcher whose
	// objects rest never becomes too old.
	pending bool
	// held: they wait for the crowd's turn. A watcher that comes back early, while
	// others are still being woken, does not take what came meanwhile one by one.
	held   bool
	next   uint64
	replay uint64 // the number up to which there was history when the watcher was made

	// Of the goroutine that calls Next.
	initial   *tree  // state still to be sent, from key initialAt on
	initialAt string // "" = from the beginning
	initialAs int64  // its revision
	caughtUp  bool   // see CaughtUp
	after     int64  // changes up to this revision are not for us
	at        int64  // everything up to this revision has been returned by Next
	timer     *time.Timer
	timerAt   time.Time // what it is set to
	bookmark  time.Time // when the next is due
	changes   []*change
	out       []Event
	broken    error // a change that could not be read ended the watch
}

// Watch starts a watcher. ErrTooOld when o.From is older than the history. It
// waits, until ctx ends, for the resource to be loaded, and with SendInitial for From to be seen.
func (r *Resource) Watch(ctx context.Context, o WatchOptions) (*Watcher, error) {
	if err := r.WaitReady(ctx); err != nil {
		return nil, err
	}
	if o.SendInitial {
		if err := r.cache.WaitFor(ctx, o.From); err != nil {
			return nil, err
		}
	}
	w := &Watcher{resource: r, opts: o, scope: scopeOf(r.prefix, o.Prefix), wakes: make(chan struct{}, 1), stop: make(chan struct{})}
	if o.Bookmarks {
		w.bookmark = time.Now().Add(r.cache.cfg.BookmarkInterval)
	}
	seen := r.cache.Revision()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil, ErrStopped
	}
	now := max(seen, r.revision)
	w.epoch = r.epoch
	switch {
	case o.SendInitial:
		w.initial, w.initialAs, w.after = r.viewLocked(), now, now
	case o.From == 0 || o.From >= now:
		w.after = max(o.From, now)
	default:
		next, ok := r.history.after(o.From)
		if !ok {
			return nil, fmt.Errorf("watch %s from revision %d: %w: the history begins at %d", r.prefix, o.From, ErrTooOld, r.history.start)
		}
		w.after, w.next, w.replay = o.From, next, r.history.end()
		w.pending = next < w.replay
	}
	w.caughtUp = !o.SendInitial && !w.pending
	if !o.SendInitial {
		w.at = w.after
	}
	r.watchers.add(w)
	return w, nil
}

// Stop ends the watcher: Next returns ErrStopped. It must be called.
func (w *Watcher) Stop() {
	w.stopOnce.Do(func() {
		close(w.stop)
		w.resource.mu.Lock()
		w.resource.watchers.remove(w)
		w.resource.mu.Unlock()
	})
}

// Bookmark tells how far the watcher has got, for the bookmark that ends a
// watch. Call it where Next is called. Its Revision is 0 before the initial events have been sent.
func (w *Watcher) Bookmark() Event { return Event{Type: Bookmark, Revision: w.at} }

// CaughtUp says whether everything has been returned that was there when the
// watcher was made: the initial state, or the history from its revision on. What
// comes now comes as it happens. Call it where Next is called.
func (w *Watcher) CaughtUp() bool { return w.caughtUp }

// Next waits for at least one event and returns all that are there (a bounded
// number), in order; it returns none, once, where it catches up with nothing to tell. The slice is valid until the next call. It fails with
// ctx's error, ErrTooOld (the watcher was too slow, or the store lost the
// history: the client has to list again), a *store.CorruptError (an object has
// got a value that cannot be read) or ErrStopped.
func (w *Watcher) Next(ctx context.Context) ([]Event, error) {
	clear(w.out)
	w.out = w.out[:0]
	for {
		if err := w.over(ctx); err != nil {
			return nil, err
		}
		before := w.caughtUp
		if err := w.collect(); err != nil {
			return nil, err
		}
		if len(w.out) > 0 || w.caughtUp != before {
			return w.out, nil
		}
		if cap(w.out) > idleRoom || cap(w.changes) > idleRoom {
			w.out, w.changes = nil, nil // most watchers rest most of the time
		}
		select {
		case <-w.wakes:
		case <-w.due():
		case <-ctx.Done():
		case <-w.stop:
		case <-w.resource.over:
		}
	}
}

func (w *Watcher) over(ctx context.Context) error {
	select {
	case <-w.stop:
		return ErrStopped
	case <-w.resource.over:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	default:
		return nil
	}
}

// due fires when a bookmark is. The timer runs on over calls of Next: most of
// them return before it fires, and setting it anew each time would cost more than the rest of them.
func (w *Watcher) due() <-chan time.Time {
	switch {
	case !w.opts.Bookmarks:
		return nil
	case w.timer == nil:
		w.timer = time.NewTimer(time.Until(w.bookmark))
	case !w.timerAt.Equal(w.bookmark):
		w.timer.Reset(time.Until(w.bookmark))
	}
	w.timerAt = w.bookmark
	return w.timer.C
}

// collect fills out with what there is.
func (w *Watcher) collect() error {
	if w.broken != nil {
		return w.broken
	}
	if w.initial != nil {
		w.collectInitial()
		return nil
	}
	seen, rest, err := w.read()
	if err != nil {
		return err
	}
	for i, c := range w.changes {
		if c.rev > w.after && w.scope.has(c.key) && w.broken == nil {
			w.see(c)
		}
		w.changes[i] = nil
	}
	if w.broken != nil {
		if len(w.out) > 0 {
			return nil // what came before is returned first
		}
		return w.broken
	}
	w.at = max(w.at, seen)
	if w.opts.Bookmarks && !rest && !time.Now().Before(w.bookmark) {
		w.bookmark = time.Now().Add(w.resource.cache.cfg.BookmarkInterval)
		w.out = append(w.out, Event{Type: Bookmark, Revision: w.at})
	}
	return nil
}

// read takes the next changes, and tells up to which revision they go and
// whether there are more.
func (w *Watcher) read() (seen int64, rest bool, err error) {
	w.changes = w.changes[:0]
	r := w.resource
	seen = r.cache.Revision()
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.epoch != r.epoch {
		return 0, false, fmt.Errorf("watch %s: %w: the store has lost its history", r.prefix, ErrTooOld)
	}
	if !w.pending {
		return max(seen, r.revision), false, nil
	}
	if w.next < r.history.first {
		r.cache.metrics.slow.Inc()
		return 0, false, fmt.Errorf("watch %s: %w: the watcher was too slow", r.prefix, ErrTooOld)
	}
	from := int(w.next - r.history.first)
	if w.held {
		return r.history.log[from].rev - 1, true, nil
	}
	to := min(from+maxEvents, len(r.history.log))
	w.changes = append(w.changes, r.history.log[from:to]...)
	w.next += uint64(to - from)
	w.caughtUp = w.caughtUp || w.next >= w.replay
	if to < len(r.history.log) {
		// A transaction may have changed several keys at one revision: what is
		// certainly complete ends before the next change's.
		return r.history.log[to].rev - 1, true, nil
	}
	w.pending = false
	return max(seen, r.revision), false, nil
}

// see adds what the watcher's selector makes of a change.
func (w *Watcher) see(c *change) {
	if w.broken = c.broken; w.broken != nil {
		return
	}
	is := c.item != nil && w.matches(c.item)
	was := c.prev != nil && w.matches(c.prev)
	switch {
	case is && was:
		w.out = append(w.out, Event{Type: Modified, Item: c.item, Revision: c.rev})
	case is:
		w.out = append(w.out, Event{Type: Added, Item: c.item, Revision: c.rev})
	case was:
		w.out = append(w.out, Event{Type: Deleted, Item: c.gone(w.resource.cache), Revision: c.rev})
	}
}

func (w *Watcher) matches(it *Item) bool { return w.opts.Match == nil || w.opts.Match(it) }

// collectInitial sends the next part of the initial state, and the bookmark
// that ends it.
func (w *Watcher) collectInitial() {
	done := true
	w.initial.AscendGreaterOrEqual(&Item{Key: max(w.scope.prefix, w.initialAt)}, func(it *Item) bool {
		if !w.scope.has(it.Key) {
			return false
		}
		if len(w.out) == maxEvents {
			w.initialAt, done = it.Key, false
			return false
		}
		if w.matches(it) {
			w.out = append(w.out, Event{Type: Added, Item: it, Revision: it.Revision})
		}
		return true
	})
	if done {
		w.at, w.initial, w.caughtUp = w.initialAs, nil, true
		w.out = append(w.out, Event{Type: Bookmark, Revision: w.initialAs, InitialEnd: true})
	}
}

// watcherIndex finds the watchers that a change may be for, so that it wakes
// those and no others: by scope, and by the field hint within it.
type watcherIndex struct{ scopes map[string]*scopeWatchers }

type scopeWatchers struct {
	plain   map[*Watcher]struct{}
	byField map[string]map[string]map[*Watcher]struct{} // field, value

	crowdWoken time.Time   // when all of a crowd were woken last
	crowdTimer *time.Timer // set to wake them again; nil = it is not
}

// Waking a watcher, and writing what it then sees to its client, costs some 30
// microseconds of processor time, most of which it costs only once for several
// changes. A crowd of watchers that see all of a scope's changes is therefore
// woken at once by a change that comes after a quiet time, and then not again
// before perWatcher times their number has passed: however busy a resource with
// many watchers is, waking them takes a part of one processor, and no event waits
// for longer than crowdPause. A crowd has fewer changes to write at once, and
// more wakeups, the smaller it is; below the number of crowd nobody waits.
const (
	crowd      = 50
	perWatcher = 100 * time.Microsecond
	crowdPause = 50 * time.Millisecond // at most
)

// pauseOf is how long a crowd is left alone after it was woken; 0 for fewer.
func pauseOf(watchers int) time.Duration {
	if watchers < crowd {
		return 0
	}
	return min(time.Duration(watchers)*perWatcher, crowdPause)
}

func (x *watcherIndex) add(w *Watcher) {
	if x.scopes == nil {
		x.scopes = map[string]*scopeWatchers{}
	}
	s := x.scopes[w.scope.prefix]
	if s == nil {
		s = &scopeWatchers{plain: map[*Watcher]struct{}{}, byField: map[string]map[string]map[*Watcher]struct{}{}}
		x.scopes[w.scope.prefix] = s
	}
	if w.opts.Field == "" {
		s.plain[w] = struct{}{}
		return
	}
	values := s.byField[w.opts.Field]
	if values == nil {
		values = map[string]map[*Watcher]struct{}{}
		s.byField[w.opts.Field] = values
	}
	if values[w.opts.Value] == nil {
		values[w.opts.Value] = map[*Watcher]struct{}{}
	}
	values[w.opts.Value][w] = struct{}{}
}

func (x *watcherIndex) remove(w *Watcher) {
	s := x.scopes[w.scope.prefix]
	if s == nil {
		return
	}
	delete(s.plain, w)
	if values := s.byField[w.opts.Field]; values != nil {
		delete(values[w.opts.Value], w)
		if len(values[w.opts.Value]) == 0 {
			delete(values, w.opts.Value)
		}
		if len(values) == 0 {
			delete(s.byField, w.opts.Field)
		}
	}
	if len(s.plain) == 0 && len(s.byField) == 0 {
		delete(x.scopes, w.scope.prefix)
	}
}

// wake marks and wakes whoever the change, numbered seq, may be for. Scopes end
// at a slash or are a whole key, so there are only a few to look at.
func (x *watcherIndex) wake(mu *sync.Mutex, c *change, seq uint64) {
	if len(x.scopes) == 0 {
		return
	}
	for i := 0; i < len(c.key); i++ {
		if c.key[i] == '/' {
			if s := x.scopes[c.key[:i+1]]; s != nil {
				s.wake(mu, c, seq)
			}
		}
	}
	if s := x.scopes[c.key]; s != nil && !strings.HasSuffix(c.key, "/") {
		s.wake(mu, c, seq)
	}
}

// wakePlain wakes those who see every change, a crowd of them not too often. mu
// is the resource's mutex, which the caller holds.
func (s *scopeWatchers) wakePlain(mu *sync.Mutex, c *change, seq uint64) {
	pause := pauseOf(len(s.plain))
	if pause == 0 || s.crowdTimer == nil && c.at.Sub(s.crowdWoken) >= pause {
		for w := range s.plain {
			w.wake(seq)
		}
		s.crowdWoken = c.at
		return
	}
	for w := range s.plain {
		w.hold(seq)
	}
	if s.crowdTimer != nil {
		return
	}
	s.crowdTimer = time.AfterFunc(s.crowdWoken.Add(pause).Sub(c.at), func() {
		mu.Lock()
		defer mu.Unlock()
		s.crowdTimer, s.crowdWoken = nil, time.Now()
		for w := range s.plain {
			if w.held {
				w.held = false
				notify(w.wakes)
			}
		}
	})
}

func (s *scopeWatchers) wake(mu *sync.Mutex, c *change, seq uint64) {
	if len(s.plain) > 0 {
		s.wakePlain(mu, c, seq)
	}
	for field, values := range s.byField {
		if c.broken != nil { // it may have any fields
			for _, set := range values {
				for w := range set {
					w.wake(seq)
				}
			}
			continue
		}
		var is, was string
		if c.item != nil {
			is = c.item.Fields.Get(field)
			for w := range values[is] {
				w.wake(seq)
			}
		}
		if c.prev != nil {
			if was = c.prev.Fields.Get(field); c.item == nil || was != is {
				for w := range values[was] {
					w.wake(seq)
				}
			}
		}
	}
}

// wake has the watcher read now, from number seq on where it has read everything else.
func (w *Watcher) wake(seq uint64) {
	if !w.pending {
		w.pending, w.next = true, seq
	}
	w.held = false
	notify(w.wakes)
}

// hold is wake, but not before the crowd's turn where the watcher has nothing else to read.
func (w *Watcher) hold(seq uint64) {
	if !w.pending {
		w.pending, w.held, w.next = true, true, seq
	}
}

// each visits every watcher.
func (x *watcherIndex) each(visit func(*Watcher)) {
	for _, s := range x.scopes {
		for w := range s.plain {
			visit(w)
		}
		for _, values := range s.byField {
			for _, set := range values {
				for w := range set {
					visit(w)
				}
			}
		}
	}
}

func (x *watcherIndex) wakeAll() { x.each(func(w *Watcher) { notify(w.wakes) }) }
