// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"sort"
	"strconv"
	"sync"
	"time"
)

// minHistory is how many events a resource remembers whatever their age.
const minHistory = 128

// change is one event of a resource, shared by all of its watchers.
type change struct {
	rev  int64
	key  string
	item *Item // nil for a deletion
	prev *Item // nil for a creation
	at   time.Time
	// broken: the key has a new value, and it cannot be read. item and prev are nil then.
	broken error

	once sync.Once
	last *Item
}

// gone is the last state before the change, with the change's revision: what a
// watcher gets that sees the object go. It is made once, for whoever asks first.
func (c *change) gone(cache *Cache) *Item {
	c.once.Do(func() {
		c.last = &Item{Key: c.prev.Key, Revision: c.rev, Object: c.prev.Object, Labels: c.prev.Labels, Fields: c.prev.Fields, size: c.prev.size}
		o, err := c.prev.Object.Copy()
		if err == nil {
			m, merr := o.Meta()
			if err = merr; err == nil {
				m.SetResourceVersion(strconv.FormatInt(c.rev, 10))
				o.SetHolder(&cache.forms)
				c.last.Object = o
				err = o.Pack()
			}
		}
		if err != nil {
			cache.log.Error("the last state of a deleted object could not be stamped with its revision", "key", c.key, "revision", c.rev,
				"error", err)
		}
	})
	return c.last
}

// weight is what the change keeps in memory that nothing else needs to.
func (c *change) weight() int {
	switch {
	case c.item != nil:
		return c.item.size
	case c.prev != nil:
		return c.prev.size
	}
	return 0
}

// history is the recent changes of a resource. Each has a number, its place in
// the sequence, which watchers use as their position.
type history struct {
	log   []*change
	first uint64 // number of log[0]
	start int64  // every change after this revision is in log
	bytes int
}

// end is the number that the next change will get.
func (h *history) end() uint64 { return h.first + uint64(len(h.log)) }

func (h *history) add(c *change) uint64 {
	h.log = append(h.log, c)
	h.bytes += c.weight()
	return h.end() - 1
}

// trim forgets what is too much or too old.
func (h *history) trim(cfg *Config, now time.Time) {
	for len(h.log) > minHistory || len(h.log) > cfg.History {
		oldest := h.log[0]
		if len(h.log) <= cfg.History && h.bytes <= cfg.HistoryBytes && now.Sub(oldest.at) < cfg.HistoryAge {
			return
		}
		h.bytes -= oldest.weight()
		h.start = oldest.rev
		h.log[0] = nil // the array outlives the slice's move
		h.log = h.log[1:]
		h.first++
	}
}

// after is the number of the first change behind a revision; false where the
// history does not reach back that far.
func (h *history) after(rev int64) (uint64, bool) {
	if rev < h.start {
		return 0, false
	}
	i := sort.Search(len(h.log), func(i int) bool { return h.log[i].rev > rev })
	return h.first + uint64(i), true
}

// since returns the changes behind a revision, and the first revision from
// which the state was what it was at rev.
func (h *history) since(rev int64) (changes []*change, low int64, ok bool) {
	n, ok := h.after(rev)
	if !ok {
		return nil, 0, false
	}
	i := int(n - h.first)
	low = h.start
	if i > 0 {
		low = h.log[i-1].rev
	}
	return append([]*change(nil), h.log[i:]...), low, true
}
