// SPDX-License-Identifier: Apache-2.0

package optimistic

import (
	"sync"

	"github.com/wasmplane/wasmplane/core/store"
)

// Written is what this server has written last. Its cache has that a moment later, and a client that writes an object twice
// in a row, as a kubelet that reports the end of a pod and deletes it, would find another state in the store each time:
// such an attempt costs what a write costs, and is in vain.
//
// It is a hint, and bounded: who is not in it, or whose object somebody else has written since, finds out by a
// conflict. It is safe for concurrent use.
type Written struct {
	mu   sync.Mutex
	last map[string]store.KV
	keys [written]string // those of last, from the oldest on; one may stand there twice
	next int
}

const (
	// written is how many objects are remembered: those of some tenths of a second.
	written = 256
	// largest is how long a value may be.
	largest = 64 << 10
)

// NewWritten remembers nothing yet.
func NewWritten() *Written { return &Written{last: map[string]store.KV{}} }

// Put remembers a value that was written, which nobody changes.
func (w *Written) Put(key string, value []byte, revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(value) > largest {
		delete(w.last, key)
		return
	}
	if before, known := w.last[key]; known {
		if before.ModRevision < revision { // of two that write at once, either may come first
			w.last[key] = store.KV{Key: key, Value: value, ModRevision: revision}
		}
		return
	}
	delete(w.last, w.keys[w.next])
	w.keys[w.next] = key
	w.next = (w.next + 1) % len(w.keys)
	w.last[key] = store.KV{Key: key, Value: value, ModRevision: revision}
}

// Drop forgets a key that was deleted.
func (w *Written) Drop(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, key)
}

// after is what was written of a key later than at a revision that the cache has.
func (w *Written) after(key string, revision int64) (store.KV, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kv, known := w.last[key]
	if known && kv.ModRevision <= revision {
		delete(w.last, key) // the cache has it now
		return store.KV{}, false
	}
	return kv, known
}
