// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Fences hold a write against what was written since it was judged. A fence is a key that nothing else is
// kept under. Writes that were judged by other objects look at the fences of these before they read them,
// and move the fence of what they write: of two that were judged by the same state, one is done.
type Fences struct {
	// Seen are the revisions that fences must still have, by key; 0 = the key has never been written.
	Seen map[string]int64
	// Moves are the keys that are written with the write.
	Moves []string
}

// FenceError means that something was written since the write was judged: it has to be judged again.
type FenceError struct{ Key string }

// Error implements error.
func (e *FenceError) Error() string {
	return fmt.Sprintf("something was written since %s was judged", e.Key)
}

// Fenced is an optional power of a Store: writes and deletions that are held against fences, in the same transaction.
type Fenced interface {
	// PutFenced is Put, or a *FenceError where a fence has moved. Where the key is at another revision
	// too, it is a *ConflictError.
	PutFenced(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration, f Fences) (int64, error)
	// DeleteFenced is Delete, with the errors of PutFenced.
	DeleteFenced(ctx context.Context, key string, expect int64, f Fences) (int64, error)
}

var errNoFences = errors.New("the store cannot hold a write against others")

func (f Fences) none() bool { return len(f.Seen) == 0 && len(f.Moves) == 0 }

// PutFenced is Put where there are no fences. A store without the power refuses the others.
func PutFenced(ctx context.Context, s Store, key string, value []byte, expect int64, ttl time.Duration, f Fences) (int64, error) {
	if f.none() {
		return s.Put(ctx, key, value, expect, ttl)
	}
	fenced, ok := s.(Fenced)
	if !ok {
		return 0, errNoFences
	}
	return fenced.PutFenced(ctx, key, value, expect, ttl, f)
}

// DeleteFenced is Delete where there are no fences. A store without the power refuses the others.
func DeleteFenced(ctx context.Context, s Store, key string, expect int64, f Fences) (int64, error) {
	if f.none() {
		return s.Delete(ctx, key, expect)
	}
	fenced, ok := s.(Fenced)
	if !ok {
		return 0, errNoFences
	}
	return fenced.DeleteFenced(ctx, key, expect, f)
}
