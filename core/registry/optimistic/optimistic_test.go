// SPDX-License-Identifier: Apache-2.0

package optimistic_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/registry/optimistic"
	"github.com/wasmplane/wasmplane/core/registry/turns"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// source has one key, at one revision in the cache and at another in the store; 0 is
// nothing.
type source struct {
	cached, stored int64
	read           int // times
}

func (s *source) Cached(string) (*watchcache.Item, bool) {
	return item(s.cached), s.cached > 0
}

func (s *source) Stored(context.Context, string) (*watchcache.Item, error) {
	s.read++
	return item(s.stored), nil
}

func (s *source) Item(kv store.KV) (*watchcache.Item, error) { return item(kv.ModRevision), nil }

func item(revision int64) *watchcache.Item {
	if revision == 0 {
		return nil
	}
	return &watchcache.Item{Revision: revision}
}

func conflict(revision int64) error {
	return &store.ConflictError{Current: store.KV{ModRevision: revision}}
}

func TestAnAnswerCountsOnTheNewestStateOnly(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		from source
		// errs are what the attempts answer, one after the other.
		errs []error
		// seen are the revisions that they get.
		seen []int64
		read int
		want error
	}{
		"written on what the cache has":                 {source{cached: 3, stored: 3}, []error{nil}, []int64{3}, 0, nil},
		"not in the cache":                              {source{stored: 3}, []error{nil}, []int64{3}, 1, nil},
		"nowhere":                                       {source{}, []error{refused}, []int64{0}, 1, refused},
		"refused, and the cache was right":              {source{cached: 3, stored: 3}, []error{refused}, []int64{3}, 1, refused},
		"refused, and the cache was behind":             {source{cached: 3, stored: 5}, []error{refused, nil}, []int64{3, 5}, 1, nil},
		"refused twice":                                 {source{cached: 3, stored: 5}, []error{refused, refused}, []int64{3, 5}, 1, refused},
		"refused, and deleted meanwhile":                {source{cached: 3}, []error{refused, refused}, []int64{3, 0}, 1, refused},
		"nothing to write, and the cache was right":     {source{cached: 3, stored: 3}, []error{optimistic.ErrUnsure}, []int64{3}, 1, nil},
		"nothing to write, and the cache was behind":    {source{cached: 3, stored: 5}, []error{optimistic.ErrUnsure, nil}, []int64{3, 5}, 1, nil},
		"the store has another state":                   {source{cached: 3}, []error{conflict(4), nil}, []int64{3, 4}, 0, nil},
		"it has nothing any more":                       {source{cached: 3}, []error{conflict(0), refused}, []int64{3, 0}, 0, refused},
		"it has others again and again":                 {source{cached: 3}, []error{conflict(4), conflict(5), nil}, []int64{3, 4, 5}, 0, nil},
		"nothing to write on what a conflict has shown": {source{cached: 3}, []error{conflict(4), optimistic.ErrUnsure}, []int64{3, 4}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []int64
			from := c.from
			result, err := optimistic.Run(t.Context(), optimistic.Writes{Source: &from, Turns: turns.New(), Written: optimistic.NewWritten()}, "key",
				func(_ context.Context, at optimistic.Snapshot) (int64, error) {
					seen = append(seen, at.Revision())
					return at.Revision(), c.errs[len(seen)-1]
				})
			if !errors.Is(err, c.want) || err != nil && c.want == nil {
				t.Errorf("%v, want %v", err, c.want)
			}
			if !slices.Equal(seen, c.seen) || result != c.seen[len(c.seen)-1] {
				t.Errorf("%d was answered after attempts on %v, want %v", result, seen, c.seen)
			}
			if from.read != c.read {
				t.Errorf("%d reads of the store, want %d", from.read, c.read)
			}
		})
	}
}

// TestAWriteBeginsWithWhatWasWritten: a write begins on what this server wrote, where the cache does not have it yet, and
// only there; what somebody else wrote since, or deleted, it finds out.
func TestAWriteBeginsWithWhatWasWritten(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		from    source
		written func(w *optimistic.Written)
		errs    []error
		seen    []int64
		read    int
		want    error
	}{
		"the cache is behind": {
			source{cached: 3, stored: 5}, func(w *optimistic.Written) { w.Put("key", nil, 5) }, []error{nil}, []int64{5}, 0, nil,
		},
		"the cache is ahead": {
			source{cached: 6, stored: 6}, func(w *optimistic.Written) { w.Put("key", nil, 5) }, []error{nil}, []int64{6}, 0, nil,
		},
		"refused, and it was the newest": {
			source{cached: 3, stored: 5}, func(w *optimistic.Written) { w.Put("key", nil, 5) }, []error{refused}, []int64{5}, 1, refused,
		},
		"refused, and somebody else has written since": {
			source{cached: 3, stored: 6}, func(w *optimistic.Written) { w.Put("key", nil, 5) }, []error{refused, nil}, []int64{5, 6}, 1, nil,
		},
		"somebody else has written since": {
			source{cached: 3, stored: 6}, func(w *optimistic.Written) { w.Put("key", nil, 5) }, []error{conflict(6), nil}, []int64{5, 6}, 0, nil,
		},
		"somebody else has deleted it": {
			source{cached: 3}, func(w *optimistic.Written) { w.Put("key", nil, 5) }, []error{conflict(0), refused}, []int64{5, 0}, 0, refused,
		},
		"deleted here": {
			source{cached: 3}, func(w *optimistic.Written) {
				w.Put("key", nil, 5)
				w.Drop("key")
			}, []error{conflict(0), refused}, []int64{3, 0}, 0, refused,
		},
		"two writes that end in the other order": {
			source{cached: 3, stored: 6}, func(w *optimistic.Written) {
				w.Put("key", nil, 6)
				w.Put("key", nil, 5)
			}, []error{nil}, []int64{6}, 0, nil,
		},
		"too large": {
			source{cached: 3, stored: 5}, func(w *optimistic.Written) { w.Put("key", make([]byte, 1<<20), 5) }, []error{nil}, []int64{3}, 0, nil,
		},
		"many others since": {
			source{cached: 3, stored: 5}, func(w *optimistic.Written) {
				w.Put("key", nil, 5)
				for i := range 1000 {
					w.Put(strconv.Itoa(i), nil, 6)
				}
			}, []error{nil}, []int64{3}, 0, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []int64
			from, w := c.from, optimistic.NewWritten()
			c.written(w)
			_, err := optimistic.Run(t.Context(), optimistic.Writes{Source: &from, Turns: turns.New(), Written: w}, "key",
				func(_ context.Context, at optimistic.Snapshot) (int64, error) {
					seen = append(seen, at.Revision())
					return at.Revision(), c.errs[len(seen)-1]
				})
			if !errors.Is(err, c.want) || err != nil && c.want == nil {
				t.Errorf("%v, want %v", err, c.want)
			}
			if !slices.Equal(seen, c.seen) || from.read != c.read {
				t.Errorf("attempts on %v with %d reads of the store, want %v with %d", seen, from.read, c.seen, c.read)
			}
		})
	}
}

// A write that always finds another state ends with its request.
func TestAWriteEndsWithItsRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	attempts := 0
	writes := optimistic.Writes{Source: &source{cached: 1, stored: 2}, Turns: turns.New(), Written: optimistic.NewWritten()}
	_, err := optimistic.Run(ctx, writes, "key",
		func(context.Context, optimistic.Snapshot) (any, error) {
			if attempts++; attempts == 3 {
				cancel()
			}
			return nil, conflict(int64(attempts + 1))
		})
	if !apierrors.IsTimeout(err) || attempts != 3 {
		t.Errorf("%v after %d attempts", err, attempts)
	}
}
