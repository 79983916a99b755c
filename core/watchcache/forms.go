// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"sync"
	"time"
	"weak"

	"github.com/wasmplane/wasmplane/core/object"
)

// forms bounds the forms that items' objects make of themselves: it is their
// holder. An item keeps its object packed; whatever else somebody asks for is
// made of that, and is worth keeping only for as long as others ask for it too.
//
// Encoded bytes begin in a young queue, so that what has just been written is
// encoded once for all of its watchers. Those that leave it are kept where there
// is room, or where something makes room that nobody asked for in a minute: a
// list that is larger than the bound does not drive itself out again and again,
// but finds what fitted of it. Bytes that nobody asks for are dropped in time.
//
// Decoded forms are dropped in the order in which they were made, and a minute or two
// after it however much room there is: a cache at rest holds bytes alone. Decoding
// costs less than what it would take to remember them all.
//
// Objects that nobody else holds are not kept alive.
type forms struct {
	limit        int64 // of encoded bytes; more where more is stored, see bound
	decodedLimit int64
	stored       func() int64 // bytes that all items are packed into
	now          func() time.Time

	mu                   sync.Mutex
	young, kept, decoded queue
}

// charge is one form of an object.
type charge struct {
	object weak.Pointer[object.Object]
	size   int64
	looked time.Time // when it was last found to be wanted; of a decoded form, when it was made
}

// queue is first in, first out.
type queue struct {
	list  []charge
	bytes int64
}

func (q *queue) push(c charge) {
	q.list = append(q.list, c)
	q.bytes += c.size
}

func (q *queue) pop() charge {
	c := q.list[0]
	q.list[0] = charge{}
	q.list = q.list[1:]
	q.bytes -= c.size
	if len(q.list) == 0 {
		q.list = nil
	}
	return c
}

const (
	// wanted is how long encoded bytes are taken to be wanted after somebody asked for them.
	wanted = time.Minute
	// looks is how many forms are looked at to make room for one.
	looks = 8
	// sweepEvery is how often forms that nobody wants are dropped although there is room.
	sweepEvery = 5 * time.Minute
)

// bound is how many encoded bytes are kept at most: a cluster's whole state in
// another encoding, once it is larger than the limit.
func (f *forms) bound() int64 { return max(f.limit, 3*f.stored()/2) }

// Made implements object.Holder.
func (f *forms) Made(o *object.Object, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.young.push(charge{object: weak.Make(o), size: int64(size)})
	bound, now := f.bound(), f.now()
	for len(f.young.list) > 1 && f.young.bytes > bound/8 {
		c := f.young.pop()
		old := c.object.Value()
		switch {
		case old == nil:
		case f.room(c.size, bound-bound/8, now):
			c.looked = now
			f.kept.push(c)
		default:
			old.DropEncoded()
		}
	}
}

// room says whether another size bytes may be kept, and makes room where a few
// looks find what nobody wants.
func (f *forms) room(size, bound int64, now time.Time) bool {
	for i := 0; f.kept.bytes+size > bound; i++ {
		if i == looks || len(f.kept.list) == 0 {
			return false
		}
		f.look(now)
	}
	return true
}

// look drops the first of the kept forms, or puts it to the end where it is wanted.
func (f *forms) look(now time.Time) {
	c := f.kept.pop()
	o := c.object.Value()
	if o == nil {
		return
	}
	if now.Sub(c.looked) >= wanted {
		if !o.TakeUsed() {
			o.DropEncoded()
			return
		}
		c.looked = now
	}
	f.kept.push(c)
}

// Decoded implements object.Holder.
func (f *forms) Decoded(o *object.Object, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decoded.push(charge{object: weak.Make(o), size: int64(size), looked: f.now()})
	for len(f.decoded.list) > 1 && f.decoded.bytes > f.decodedLimit {
		if old := f.decoded.pop().object.Value(); old != nil && old != o {
			old.DropDecoded()
		}
	}
}

// sweep drops what nobody has asked for since the last sweep, until ctx ends.
func (f *forms) sweep(ctx context.Context) {
	encoded, decoded := time.NewTicker(sweepEvery), time.NewTicker(wanted)
	defer encoded.Stop()
	defer decoded.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-encoded.C:
			f.mu.Lock()
			now := f.now()
			for range len(f.kept.list) {
				f.look(now)
			}
			f.mu.Unlock()
		case <-decoded.C:
			f.dropOldDecoded()
		}
	}
}

// dropOldDecoded drops the decoded forms that were made a minute ago and more.
func (f *forms) dropOldDecoded() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for before := f.now().Add(-wanted); len(f.decoded.list) > 0 && !f.decoded.list[0].looked.After(before); {
		if old := f.decoded.pop().object.Value(); old != nil {
			old.DropDecoded()
		}
	}
}

// encodedBytes is how much is encoded now.
func (f *forms) encodedBytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.young.bytes + f.kept.bytes
}

// decodedBytes is what the decoded forms are taken to cost now.
func (f *forms) decodedBytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decoded.bytes
}
