// SPDX-License-Identifier: Apache-2.0

// Package watchcache keeps the cluster's state in memory and fans changes out.
//
// One watch over the whole key space feeds it, split by resource, and nothing
// else does: a write of another apiserver on the same store arrives exactly like
// one of our own. The store's progress tells how fresh the cache is, so a list
// is consistent at a stated revision, across resources too.
//
// Reading never holds a lock while the caller works: a resource's items are a
// persistent tree, a list walks a snapshot of it, and a watcher is a position in
// the resource's history that reads forward at its own pace. A watcher that
// falls off the end of the history is cut off with ErrTooOld; it cannot hold up
// anybody else, and costs no queue of its own.
//
// What the cache refuses: it never writes, it knows no API (a Decoder tells it
// what a stored value is), and it does not answer for revisions that it no
// longer remembers (ErrTooOld, ErrNoSnapshot: ask the store).
package watchcache

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache/pairs"
)

// Item is one object as of a revision. It is shared; nobody changes it.
type Item struct {
	Key      string
	Revision int64
	// Object in the storage version, with metadata.resourceVersion set to Revision.
	Object *object.Object
	Labels pairs.Pairs
	Fields pairs.Pairs

	size int // of the stored value
}

// Size of the stored value in bytes.
func (i *Item) Size() int { return i.size }

// Decoder turns a stored value into what an Item needs besides key and
// revision. It sets metadata.resourceVersion to revision. It may be called from
// several goroutines at once, and once for each revision of a key; an error
// hides that object from the cache (it is logged and counted).
type Decoder func(key string, value []byte, revision int64) (*object.Object, labels.Set, fields.Set, error)

// Config says what to cache and how much of it to remember.
type Config struct {
	Store store.Store
	// Prefix of the key space that is watched; "/registry/" when empty.
	Prefix string
	// History is how many events each resource remembers at most, for watches
	// that resume and for watchers that lag; 0 = 10,000.
	History int
	// HistoryBytes bounds the history of each resource by the size of the stored
	// values in it; 0 = 16 MiB. (Decoded, they take several times as much.)
	HistoryBytes int
	// HistoryAge is how long an event is remembered; 0 = 5 minutes. A resource
	// always remembers its last 128 events.
	HistoryAge time.Duration
	// Snapshots is how many old states each resource keeps for clients that
	// page through a list; 0 = 16.
	Snapshots int
	// EncodedBytes bounds the memory of encoded forms (object.Object's Encoded) of
	// all items together; 0 = 64 MiB. Where what is stored is larger than two
	// thirds of it the bound grows with that, so that a list finds itself in the cache.
	EncodedBytes int64
	// DecodedBytes bounds the memory of items that are decoded, which those are
	// that were written or worked with last; 0 = 8 MiB.
	DecodedBytes int64
	// BookmarkInterval is the time between two bookmarks of a watch; 0 = 1 minute.
	BookmarkInterval time.Duration
	Logger           *slog.Logger          // nil = discard
	Metrics          prometheus.Registerer // nil = not exported
}

// ErrTooOld means that the asked-for revision is older than what the cache (or the store)
// remembers, or a watcher was too slow. The client has to list again: HTTP 410, reason Expired.
var ErrTooOld = errors.New("resource version is too old")

// ErrNoSnapshot means that the cache does not keep the state at that revision; the store may.
var ErrNoSnapshot = errors.New("the cache does not keep that revision")

// ErrStopped means that the cache stopped, or the resource was unregistered.
var ErrStopped = errors.New("watch cache stopped")

// ListOptions selects items of a snapshot.
type ListOptions struct {
	// Prefix that keys begin with, with its slash at the end: the resource's own
	// (all), or that of a namespace. Without a slash at the end it is one whole key. "" = the resource's own.
	Prefix string
	// From is the first key wanted, inclusive; "" = the first.
	From string
	// Limit is the largest number of items returned; 0 = all.
	Limit int
	// Match keeps an item; nil = all of them.
	Match func(*Item) bool
}

// List is the answer to a list: items in key order, all as of Revision.
type List struct {
	Items    []*Item
	Revision int64
	// More: there are matching items behind the last one; Next is the key to go on from.
	More bool
	Next string
	// Remaining counts the items behind the last one, where More and Match is nil; else 0.
	Remaining int64
}

// EventType is what a watcher sees happen.
type EventType uint8

// What a watcher sees.
const (
	Added EventType = iota
	Modified
	Deleted
	Bookmark
)

// Event is one change as a watcher's selector sees it: an object that begins to
// match is Added, one that stops matching is Deleted.
type Event struct {
	Type EventType
	// Item is the new state; for Deleted the last state that matched, with
	// the revision of the change (the deletion) as its Revision and resourceVersion.
	// nil for a Bookmark.
	Item *Item
	// Revision of the change; of a Bookmark: everything up to it has been delivered.
	Revision int64
	// InitialEnd marks the bookmark that ends the initial events of SendInitial.
	InitialEnd bool
}

// WatchOptions says what a watcher wants to see.
type WatchOptions struct {
	// Prefix as in ListOptions.
	Prefix string
	// From: events after this revision. 0 = from now on. It may lie in the future.
	From int64
	// Match is the selector; nil = everything. It is called from Next.
	Match func(*Item) bool
	// Field and Value, where Field is not empty, say that Match cannot hold
	// for an item whose Fields[Field] is not Value ("spec.nodeName"). It is a hint that spares
	// wake-ups: Match has to check it nevertheless.
	Field, Value string
	// Bookmarks asks for bookmarks, about one a minute.
	Bookmarks bool
	// SendInitial sends the present state first, as Added events consistent at
	// one revision that is not older than From, then a Bookmark with InitialEnd (also without Bookmarks).
	SendInitial bool
}
