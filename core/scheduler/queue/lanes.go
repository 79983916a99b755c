// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"container/heap"
	"context"
	"maps"
	"slices"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// lanes are the pods to be tried now, by lane: in a lane rank, priority and age decide, among
// lanes the rank of the lane, or of its first pod where it has none of its own.
type lanes struct {
	all map[string]*activeHeap
	n   int
	// ranks of the lanes, as of the latest Try; the lane "" has none.
	ranks map[string]int64
}

func newLanes() lanes { return lanes{all: map[string]*activeHeap{}, ranks: map[string]int64{}} }

func (l *lanes) push(it *Item) {
	h := l.all[it.lane]
	if h == nil {
		h = &activeHeap{}
		l.all[it.lane] = h
	}
	heap.Push(h, it)
	l.n++
}

func (l *lanes) remove(it *Item) {
	h := l.all[it.lane]
	heap.Remove(h, it.index)
	l.n--
	if len(*h) == 0 {
		delete(l.all, it.lane)
		delete(l.ranks, it.lane)
	}
}

// fix an item's place after its rank or priority has changed.
func (l *lanes) fix(it *Item) { heap.Fix(l.all[it.lane], it.index) }

// first is the item to be tried next; nil = there is none.
func (l *lanes) first() (best *Item) {
	var most int64
	for lane, h := range l.all {
		it := (*h)[0]
		rank := it.rank
		if lane != "" {
			rank = l.ranks[lane]
		}
		if best == nil || rank > most || rank == most && before(it, best) {
			best, most = it, rank
		}
	}
	return best
}

// items in no particular order.
func (l *lanes) items() (out []*Item) {
	for _, h := range l.all {
		out = append(out, *h...)
	}
	return out
}

// rankLanes asks for the ranks of the lanes that have pods, outside of the lock and in the order of their names.
func (q *Queue) rankLanes(ctx context.Context) {
	if q.cfg.LaneRank == nil {
		return
	}
	var heads map[string]*framework.PodInfo // none where no pod has a lane, as is usual
	q.mu.Lock()
	for lane, h := range q.ready.all {
		if lane == "" {
			continue
		}
		if heads == nil {
			heads = make(map[string]*framework.PodInfo, len(q.ready.all))
		}
		heads[lane] = (*h)[0].Info
	}
	q.mu.Unlock()
	for _, lane := range slices.Sorted(maps.Keys(heads)) {
		rank := q.cfg.LaneRank(ctx, lane, heads[lane])
		q.mu.Lock()
		if q.ready.all[lane] != nil {
			q.ready.ranks[lane] = rank
		}
		q.mu.Unlock()
	}
}

// lane of a pod.
func (q *Queue) lane(p *framework.PodInfo) string {
	if q.cfg.Lane == nil {
		return ""
	}
	return q.cfg.Lane(p.Pod)
}
