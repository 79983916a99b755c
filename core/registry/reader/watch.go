// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Watch is a running watch. It is for one goroutine; Stop must be called.
type Watch struct {
	r       *Reader
	watcher *watchcache.Watcher
	// initialEnd: the client asked to be told where the initial events end.
	initialEnd bool
	bookmarks  bool
}

// Watch starts a watch with the meaning that resourceVersion and
// sendInitialEvents have upstream: from now on, from a revision, or the present
// state first.
func (r *Reader) Watch(ctx context.Context, q Query, o ListOptions) (*Watch, error) {
	where, err := r.selection(ctx, q, o)
	if err != nil {
		return nil, err
	}
	revision, err := ParseRevision(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	options := watchcache.WatchOptions{
		Prefix: where.prefix, Match: where.match, Field: where.field, Value: where.value,
		Bookmarks: o.Bookmarks, From: revision,
	}
	switch {
	case o.SendInitialEvents != nil:
		options.SendInitial = *o.SendInitialEvents
	default:
		// Without a revision a client has always been sent what is there.
		options.SendInitial = revision == 0
	}
	if options.SendInitial && o.ResourceVersion == "" {
		if options.From, err = r.fresh(ctx); err != nil {
			return nil, err
		}
	} else if err := r.notOlderThan(ctx, 0); err != nil {
		return nil, err
	}
	if err := r.unreadable(where); err != nil {
		return nil, err
	}
	w, err := r.cached.Watch(ctx, options)
	if errors.Is(err, watchcache.ErrTooOld) {
		return nil, r.tooOld(revision)
	}
	if err != nil {
		return nil, r.StoreError(err, "watch", "")
	}
	return &Watch{r: r, watcher: w, bookmarks: o.Bookmarks, initialEnd: o.SendInitialEvents != nil && *o.SendInitialEvents && o.Bookmarks}, nil
}

func (r *Reader) tooOld(revision int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", revision, r.cfg.Cache.Revision()))
}

// Next waits for events and returns those that are there. The slice is valid
// until the next call. A nil error with no events means that none of those that
// came was for this client.
func (w *Watch) Next(ctx context.Context) ([]watchcache.Event, error) {
	events, err := w.watcher.Next(ctx)
	if errors.Is(err, watchcache.ErrTooOld) {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", w.watcher.Bookmark().Revision,
			w.r.cfg.Cache.Revision()))
	}
	var unreadable *store.CorruptError
	if errors.As(err, &unreadable) {
		return nil, corrupt(unreadable)
	}
	if err != nil {
		return nil, err
	}
	kept := events[:0]
	for _, e := range events {
		if e.Type == watchcache.Bookmark && (!w.bookmarks || e.InitialEnd && !w.initialEnd) {
			continue
		}
		kept = append(kept, e)
	}
	return kept, nil
}

// Bookmark is how far the watch has got.
func (w *Watch) Bookmark() watchcache.Event { return w.watcher.Bookmark() }

// CaughtUp says whether all that was there when the watch began has been returned.
func (w *Watch) CaughtUp() bool { return w.watcher.CaughtUp() }

// Stop ends the watch.
func (w *Watch) Stop() { w.watcher.Stop() }
