// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"container/heap"
	"iter"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Refusal is why a pod fits nowhere now.
type Refusal struct {
	// Interest: events that may help.
	Interest framework.ClusterEvent
	// Template that the pod has in common with others: what refuses one of them refuses them
	// all. "" = none.
	Template string
	// Keys of what it waits for, for HappenedTo; nil = anything.
	Keys []string
	// Why is the caller's: Happened asks with it who is helped, and Standing returns it.
	Why any
}

// group is the pods of one template that fit nowhere. One of them is tried at a time, the
// one that has backed off first: where it finds a node the next one follows, and where it
// doesn't the others need not be tried.
type group struct {
	key     string
	members memberHeap // stuck
	out     *Item      // is tried for the others; it is no member meanwhile
	refusal Refusal    // the latest
	// standing: nothing that may help has happened since the latest refusal, at the time in since.
	standing bool
	since    time.Time
}

// Standing is the refusal of another pod of the template, if it still holds: the pod
// need not be tried, and Spoken puts it back. It holds no longer than MaxWait,
// whatever events were missed.
func (q *Queue) Standing(template string) (Refusal, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[template]
	if template == "" || g == nil || !g.standing || q.cfg.Now().Sub(g.since) >= q.cfg.MaxWait {
		return Refusal{}, false
	}
	return g.refusal, true
}

// Spoken puts a pod back for which the refusal of another one of its template stands.
func (q *Queue) Spoken(uid types.UID, template string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it, ok := q.items[uid]
	if !ok || it.state != trying {
		return
	}
	g := q.group(template)
	q.leave(it, g)
	it.gated, it.since = false, q.cfg.Now()
	if it.missed&framework.PodChanged != 0 {
		q.drop(g)
		q.retry(it, "ScheduleAttemptFailure")
		return
	}
	q.join(it, g)
	if !g.standing { // not any more: something has happened in between
		q.send(g, "ScheduleAttemptFailure")
	}
}

// Placed is told that a pod has taken its room: another one of its template may find some, too.
func (q *Queue) Placed(uid types.UID, template string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[template]
	if template == "" || g == nil {
		return
	}
	g.standing = false
	if it := q.items[uid]; it != nil && g.out == it {
		g.out = nil
	}
	q.send(g, "AssignedPodAdd")
}

func (q *Queue) group(key string) *group {
	g := q.groups[key]
	if g == nil {
		g = &group{key: key}
		q.groups[key] = g
	}
	return g
}

// alone is the key of the group of a pod that has nothing in common with others. No template
// begins with a zero.
func alone(uid types.UID) string { return "\x00" + string(uid) }

// join makes an item a member: it is stuck until the group sends it.
func (q *Queue) join(it *Item, g *group) {
	it.group, it.ready = g, it.since.Add(q.backoff(it.Attempts))
	it.due = q.cfg.Now().Add(q.cfg.MaxWait)
	heap.Push(&g.members, it)
	q.push(it, stuck, "ScheduleAttemptFailure")
}

// leave ends that an item is tried for the others of a group, unless it comes back to the same one.
func (q *Queue) leave(it *Item, to *group) {
	g := it.group
	if g == nil {
		return
	}
	if g.out == it {
		g.out = nil
	}
	if it.group = nil; g == to {
		return
	}
	if !g.standing {
		q.send(g, "ScheduleAttemptFailure")
	}
	q.drop(g)
}

// drop forgets a group that is empty.
func (q *Queue) drop(g *group) {
	if len(g.members) == 0 && g.out == nil && q.groups[g.key] == g {
		delete(q.groups, g.key)
		q.waits.drop(g)
	}
}

// send has one of a group be tried, unless one is, or they are held back.
func (q *Queue) send(g *group, event string) {
	if g.out != nil || len(g.members) == 0 || g.members[0].held {
		return
	}
	it := g.members[0]
	q.detach(it)
	g.out, it.group = it, g
	q.again(it, event)
}

// Hold has pods that are put back stay there, whatever happens, until Release.
func (q *Queue) Hold(pods []types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, uid := range pods {
		if it, ok := q.items[uid]; ok {
			it.held = true
		}
	}
}

// Release ends that pods are held back: they are tried again if something has happened meanwhile that may
// help them, or if that is asked for.
func (q *Queue) Release(pods []types.UID, again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, uid := range pods {
		it, ok := q.items[uid]
		if !ok {
			continue
		}
		it.held = false
		switch {
		case it.state == trying && again: // it is being put back
			it.missed |= framework.AnyEvent
		case it.state == stuck && (again || !it.group.standing):
			it.group.standing = false
			q.send(it.group, "AssignedPodDelete")
		}
	}
}

// Happened tells of cluster events: one of each group of pods that they may help is tried
// again. helps says so of a refusal, beyond the kind of event; nil = it may. Where an event does not help although
// it is of interest, something else refuses the pod from then on: helps adds that to the Interest.
func (q *Queue) Happened(e framework.ClusterEvent, helps func(*Refusal) bool) {
	if e == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.happened(e, maps.Values(q.groups), helps)
}

// HappenedTo tells of an event that concerns objects with these keys: it may help the pods that wait for one of
// them, and those that wait for anything. helps is as in Happened.
func (q *Queue) HappenedTo(e framework.ClusterEvent, keys []string, helps func(*Refusal) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.happened(e, q.waits.of(keys), helps)
}

func (q *Queue) happened(e framework.ClusterEvent, groups iter.Seq[*group], helps func(*Refusal) bool) {
	for _, it := range q.tried {
		it.missed |= e
	}
	var helped []*group
	for g := range groups {
		if g.refusal.Interest&e == 0 || helps != nil && !helps(&g.refusal) {
			continue
		}
		g.standing = false
		if g.out == nil && len(g.members) > 0 {
			helped = append(helped, g)
		}
	}
	// In the order in which they came, not in the map's: plugins are asked in it.
	slices.SortFunc(helped, func(a, b *group) int { return cmp.Compare(a.members[0].number, b.members[0].number) })
	for _, g := range helped {
		q.send(g, eventName(e))
	}
}

// memberHeap has the pod that has backed off first at its top.
type memberHeap []*Item

func (h memberHeap) Len() int { return len(h) }
func (h memberHeap) Less(i, j int) bool {
	if !h[i].ready.Equal(h[j].ready) {
		return h[i].ready.Before(h[j].ready)
	}
	return h[i].number < h[j].number
}
func (h memberHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i, j }
func (h *memberHeap) Push(x any)   { it := x.(*Item); it.place = len(*h); *h = append(*h, it) }
func (h *memberHeap) Pop() any     { old := *h; it := old[len(old)-1]; *h = old[:len(old)-1]; return it }
