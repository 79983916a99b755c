package watchcache

import (
	"fmt"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/wasmplane/wasmplane/core/object"
)

// encodedMark is what the cache knows of an item's encoded forms.
type encodedMark struct {
	charged atomic.Uint32 // bit by media type
	used    atomic.Bool   // since the budget last looked
}

// encodedBudget bounds the bytes of encoded forms. Items stand in a queue; the
// first is dropped when there is too much, unless it was used since: then it
// goes to the end. Items that nobody else holds are not kept alive by it.
type encodedBudget struct {
	limit int64

	mu    sync.Mutex
	bytes int64
	queue []charge
}

type charge struct {
	item weak.Pointer[Item]
	size int64
}

func mediaBit(mediaType string) uint32 {
	switch mediaType {
	case object.JSON:
		return 1
	case object.Protobuf:
		return 2
	case object.CBOR:
		return 4
	case object.YAML:
		return 8
	}
	return 16
}

// Encoded returns an item's object in mediaType, encoded at most once for all
// who ask, and forgotten when the cache's budget is used up. Callers must not
// change the bytes.
func (c *Cache) Encoded(it *Item, mediaType string) ([]byte, error) {
	b, err := it.Object.Encoded(mediaType)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", it.Key, err)
	}
	if bit := mediaBit(mediaType); it.encoded.charged.Load()&bit == 0 {
		c.encoded.charge(it, bit, int64(len(b)))
	} else if !it.encoded.used.Load() {
		it.encoded.used.Store(true)
	}
	return b, nil
}

func (e *encodedBudget) charge(it *Item, bit uint32, size int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if it.encoded.charged.Or(bit)&bit != 0 {
		return // somebody else did
	}
	e.bytes += size
	e.queue = append(e.queue, charge{weak.Make(it), size})
	for e.bytes > e.limit && len(e.queue) > 1 {
		first := e.queue[0]
		e.queue = e.queue[1:]
		old := first.item.Value()
		if old != nil && old != it && old.encoded.used.Swap(false) {
			e.queue = append(e.queue, first)
			continue
		}
		e.bytes -= first.size
		if old != nil {
			old.encoded.charged.Store(0)
			old.Object.DropEncoded()
		}
	}
}
