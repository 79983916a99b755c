// SPDX-License-Identifier: Apache-2.0

// Package store is the contract of the place where the cluster's state lives: a
// revisioned key-value store with compare-and-swap and an ordered watch, as etcd
// is one. An acknowledged write is durable; revisions only grow; nothing else is
// promised, and nothing above this package writes in any other way.
//
// Keys are laid out as Kubernetes lays them out ("/registry/pods/ns/name").
// The suite in storetest is what an implementation has to pass.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// KV is one key with its value at a revision. Value is shared: do not change it.
type KV struct {
	Key         string
	Value       []byte
	ModRevision int64 // revision of the last write of this key
	CreateRev   int64 // revision at which the key came to be
	LeaseID     int64 // 0 = the key does not expire
	// Unreadable says why Value is missing where it cannot be decrypted: a
	// *CorruptError. Only lists and watches have it; Get fails with it instead.
	Unreadable error
}

// Page is one answer to List: the items in key order, all as of Revision.
type Page struct {
	Items     []KV
	Revision  int64
	More      bool  // there are keys behind the last item
	Remaining int64 // how many, where More
}

// ListOptions bounds a List.
type ListOptions struct {
	Revision int64  // 0 = the newest; otherwise exactly this revision
	Limit    int64  // 0 = all
	From     string // first key wanted, inclusive; "" = the prefix itself
}

// EventType says what happened to a key.
type EventType uint8

// The two things that can happen to a key.
const (
	Put EventType = iota
	Delete
)

// Event is one change. Prev is the state before it, and its Value is nil where
// the key did not exist. For Delete, KV holds key and revision of the deletion only.
type Event struct {
	Type EventType
	KV   KV
	Prev KV
}

// Batch is all that happened in some revisions, in order, none of them split
// over two batches. A batch without events is progress: everything up to
// Revision has been delivered.
type Batch struct {
	Events   []Event
	Revision int64
}

// Watcher delivers batches until its context ends or it fails.
type Watcher interface {
	// Batches is closed when the watch ends; Err then says why.
	Batches() <-chan Batch
	// Progress asks for a progress batch soon; it does not wait for it.
	Progress(ctx context.Context) error
	// Err is nil while the watch runs and when its context ended it;
	// ErrCompacted when the start revision is gone.
	Err() error
}

// Store is the contract. Every method is safe for concurrent use and linearizable.
type Store interface {
	// Get returns one key, or ErrNotFound.
	Get(ctx context.Context, key string) (KV, error)
	// Put writes value if the key's ModRevision is expect (0 = the key must not
	// exist), and returns the new revision. ttl > 0 removes the key after about
	// that long. A mismatch is a *ConflictError.
	Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, error)
	// Delete removes the key if its ModRevision is expect, and returns the
	// revision of the deletion. A mismatch is a *ConflictError.
	Delete(ctx context.Context, key string, expect int64) (int64, error)
	// List returns the keys that begin with prefix.
	List(ctx context.Context, prefix string, o ListOptions) (Page, error)
	// Watch delivers every change of keys that begin with prefix, from revision
	// from+1 on, until ctx ends.
	Watch(ctx context.Context, prefix string, from int64) (Watcher, error)
	// Revision is the newest revision; a read that began after a write was
	// acknowledged sees at least that write's.
	Revision(ctx context.Context) (int64, error)
	// Compact forgets states older than revision.
	Compact(ctx context.Context, revision int64) error
}

// LeanStore is an optional power of a Store: watches whose events have no Prev,
// for callers that know the previous state already. In etcd, looking it up takes about a third of
// what a write costs altogether.
type LeanStore interface {
	WatchLean(ctx context.Context, prefix string, from int64) (Watcher, error)
}

// WatchLean is Watch for callers that do not need Prev, which may or may not be there.
func WatchLean(ctx context.Context, s Store, prefix string, from int64) (Watcher, error) {
	if lean, ok := s.(LeanStore); ok {
		return lean.WatchLean(ctx, prefix, from)
	}
	return s.Watch(ctx, prefix, from)
}

// Rewriter is an optional power of a Store that encrypts: which values would be
// written otherwise today, with another key or in the clear.
type Rewriter interface {
	Stale(ctx context.Context, key string) (bool, error)
}

// Stale says whether a write that changes nothing should be done all the same.
func Stale(ctx context.Context, s Store, key string) (bool, error) {
	if r, ok := s.(Rewriter); ok {
		return r.Stale(ctx, key)
	}
	return false, nil
}

// ErrNotFound means that the key does not exist.
var ErrNotFound = errors.New("key not found")

// ErrCompacted means that the asked-for revision has been compacted away.
var ErrCompacted = errors.New("revision has been compacted")

// ErrFuture means that the asked-for revision does not exist yet.
var ErrFuture = errors.New("revision lies in the future")

// ErrUnavailable means that the store cannot be reached, has no leader, or answered too
// late. Whether a write happened is unknown.
var ErrUnavailable = errors.New("store is unavailable")

// ErrFull means that the store has no space left for writes; reads and deletions still work.
var ErrFull = errors.New("store is full")

// ErrTooLarge means that the value is larger than the store takes.
var ErrTooLarge = errors.New("value is too large for the store")

// CorruptError means that there is a value, and nobody can read it. Its key is what tells an
// operator which object it was, and its revision what may be deleted unread.
type CorruptError struct {
	Key      string
	Revision int64
	// Undecodable: it is no object, or none that is known; false: it cannot be decrypted.
	Undecodable bool
	Err         error
}

// Error implements error, in upstream's words.
func (e *CorruptError) Error() string {
	what := "data from the storage is not transformable"
	if e.Undecodable {
		what = "object not decodable"
	}
	return fmt.Sprintf("key %s: %s revision=%d: %v", e.Key, what, e.Revision, e.Err)
}

// Unwrap implements errors.Unwrap.
func (e *CorruptError) Unwrap() error { return e.Err }

// ConflictError means that the key was not at the expected revision. Current is what was
// found instead, in the same transaction; its ModRevision is 0 where the key does not exist.
type ConflictError struct {
	Key     string
	Expect  int64
	Current KV
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("key %s: expected revision %d, found %d", e.Key, e.Expect, e.Current.ModRevision)
}
