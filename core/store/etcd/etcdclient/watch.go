// SPDX-License-Identifier: Apache-2.0

package etcdclient

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
)

// watcher carries one etcd watch to its reader.
type watcher struct {
	store   *Store
	lean    bool            // events without Prev
	stream  metadata.MD     // names the watch's own gRPC stream; see watch
	ended   <-chan struct{} // closed when whoever watches ends it
	batches chan store.Batch

	mu  sync.Mutex
	err error
}

// watchSerial tells the streams of one process apart.
type watchSerial struct{ n atomic.Int64 }

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	return s.watch(ctx, prefix, from, false)
}

// WatchLean implements store.LeanStore.
func (s *Store) WatchLean(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	return s.watch(ctx, prefix, from, true)
}

func (s *Store) watch(ctx context.Context, prefix string, from int64, lean bool) (store.Watcher, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("watch %s: %w", prefix, err)
	}
	// etcd's client puts watches with equal metadata on one stream, where a
	// request for progress waits for the slowest of them. Each of ours has its own.
	// hasleader makes the server end the stream rather than keep silent when it is cut off from its peers.
	ctx, cancel := context.WithCancel(ctx)
	stream := metadata.Pairs(
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader,
		"wasmplane-watch", strconv.FormatInt(s.watches.n.Add(1), 10))
	w := &watcher{store: s, lean: lean, stream: stream, ended: ctx.Done(), batches: make(chan store.Batch, 16)}
	// No WithFragment: etcd then never splits a revision over two responses.
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(from + 1), clientv3.WithProgressNotify()}
	if !lean {
		opts = append(opts, clientv3.WithPrevKV())
	}
	responses := s.client.Watcher.Watch(metadata.NewOutgoingContext(ctx, stream), prefix, opts...)
	run.Go("etcd: watch", func() error {
		defer cancel()
		defer close(w.batches)
		w.end(ctx, w.copy(ctx, responses), prefix)
		return nil
	})
	return w, nil
}

// copy hands responses on until the watch ends, and returns why.
func (w *watcher) copy(ctx context.Context, responses clientv3.WatchChan) error {
	for resp := range responses {
		if err := resp.Err(); err != nil {
			return err
		}
		batch, err := toBatch(resp, w.lean)
		if err != nil {
			return err
		}
		select {
		case w.batches <- batch:
		case <-ctx.Done():
			return nil
		}
	}
	return errors.New("etcd's client ended the watch")
}

func (w *watcher) end(ctx context.Context, err error, prefix string) {
	if err == nil || ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	w.err = w.store.failure(ctx, err, "watch", prefix)
	w.mu.Unlock()
}

func toBatch(resp clientv3.WatchResponse, lean bool) (store.Batch, error) {
	if len(resp.Events) == 0 {
		return store.Batch{Revision: resp.Header.Revision}, nil
	}
	events := make([]store.Event, len(resp.Events))
	for i, e := range resp.Events {
		if e.Kv == nil {
			return store.Batch{}, fmt.Errorf("etcd sent an event without a key at revision %d", resp.Header.Revision)
		}
		events[i].KV = fromKV(e.Kv)
		if e.PrevKv != nil {
			events[i].Prev = fromKV(e.PrevKv)
		}
		if e.Type == clientv3.EventTypeDelete {
			events[i].Type = store.Delete
		}
		if !lean && e.PrevKv == nil && !e.IsCreate() {
			// There was something before it, which etcd leaves out when it was
			// compacted just now: then the watch is too late to tell it.
			return store.Batch{}, rpctypes.ErrCompacted
		}
	}
	// Events of later revisions may be under way; the header knows of them already.
	return store.Batch{Events: events, Revision: events[len(events)-1].KV.ModRevision}, nil
}

// Batches implements store.Watcher.
func (w *watcher) Batches() <-chan store.Batch { return w.batches }

// Progress implements store.Watcher.
func (w *watcher) Progress(ctx context.Context) error {
	select {
	case <-w.ended:
		return fmt.Errorf("ask for the progress of a watch that has ended: %w", context.Canceled)
	default:
	}
	if err := w.store.client.Watcher.RequestProgress(metadata.NewOutgoingContext(ctx, w.stream)); err != nil {
		return w.store.failure(ctx, err, "ask for", "the progress of a watch")
	}
	return nil
}

// Err implements store.Watcher.
func (w *watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
