// SPDX-License-Identifier: Apache-2.0

// Package queue orders the pods that wait for a node: those to be tried now, by
// the rank that a plugin gave them, by priority and then by age; those that failed a moment ago and back off; and
// those that fit nowhere, until something happens that may change that. Of those that fit
// nowhere and have a template in common one is tried, and speaks for the others.
//
// No pod is lost: one that fits nowhere is tried again at the latest after
// MaxWait, whatever events were missed.
package queue

import (
	"cmp"
	"container/heap"
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Backoff is how long a pod that was refused waits at least; the zero value is upstream's default.
type Backoff struct {
	// InitialBackoff (1 s) doubles with each failed try up to MaxBackoff (10 s).
	InitialBackoff, MaxBackoff time.Duration
}

// orDefault fills in what is not said.
func (b Backoff) orDefault() Backoff {
	return Backoff{cmp.Or(b.InitialBackoff, time.Second), cmp.Or(b.MaxBackoff, 10*time.Second)}
}

// SetBackoff holds for the pods that are refused from now on.
func (q *Queue) SetBackoff(b Backoff) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cfg.Backoff = b.orDefault()
}

// Config of a queue. Zero values mean upstream's.
type Config struct {
	Backoff
	// MaxWait (5 min) is when a pod that fits nowhere is tried again without an event.
	MaxWait time.Duration
	// Rank of a pod that came to the queue at added: the highest goes first. Pop
	// asks it once for each pod that is new or has changed. Nil = all are equal.
	Rank func(ctx context.Context, p *framework.PodInfo, added time.Time) int64
	// Lane of a pod; "" = it has its own rank. The pods of a lane have the rank of the lane, which Try asks
	// LaneRank for, with the lane's first pod: one rank for many pods, that may change
	// with what happens. Nil = no pod has one.
	Lane     func(p *corev1.Pod) string
	LaneRank func(ctx context.Context, lane string, first *framework.PodInfo) int64
	// Moved is told of every pod that comes into one of the queues (active, backoff,
	// unschedulable or gated) and why, in upstream's words. It may be nil, and must
	// not call the queue.
	Moved func(queue, event string)
	// Now is the clock by which pods wait and back off; nil = the time of day. With
	// another one Try is for its owner to call: Pop waits by the time of day.
	Now func() time.Time
}

// Item is one waiting pod.
type Item struct {
	Info *framework.PodInfo
	// Attempts so far, the one that Pop begins included.
	Attempts int
	// Added is when the pod came to the queue first.
	Added time.Time

	lane   string
	number uint64 // pods that came at the same moment are tried in the order in which they came
	rank   int64
	ranked bool
	state  state
	since  time.Time              // when it came into its state
	due    time.Time              // end of its backoff
	group  *group                 // of which it is a member, or tried for the others
	ready  time.Time              // end of its backoff, as a member
	place  int                    // among the members
	missed framework.ClusterEvent // events that came while it was being tried
	gated  bool                   // it may not be tried
	held   bool                   // it stays where it is until it is released
	index  int                    // in its heap
}

type state uint8

const (
	active state = iota
	backingOff
	stuck
	trying // handed out by Pop
)

// Queue is safe for concurrent use.
type Queue struct {
	cfg Config

	mu     sync.Mutex
	items  map[types.UID]*Item
	tried  map[types.UID]*Item // those of them that were handed out
	groups map[string]*group
	waits  waits
	added  uint64 // how many ever came
	ready  lanes
	// unranked has all items of ready that have no rank yet, and maybe others.
	unranked []*Item
	later    dueHeap
	signal   chan struct{} // has an element when ready or later changed
}

// New makes an empty queue.
func New(cfg Config) *Queue {
	cfg.Backoff = cfg.orDefault()
	if cfg.MaxWait == 0 {
		cfg.MaxWait = 5 * time.Minute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Queue{
		cfg: cfg, items: map[types.UID]*Item{}, tried: map[types.UID]*Item{}, groups: map[string]*group{}, waits: newWaits(), ready: newLanes(),
		signal: make(chan struct{}, 1),
	}
}

// Set adds a waiting pod, or tells of its change. A pod that fits nowhere is
// tried again when its spec, labels or annotations have changed.
func (q *Queue) Set(p *corev1.Pod) {
	info := framework.NewPodInfo(p)
	q.mu.Lock()
	defer q.mu.Unlock()
	it, known := q.items[p.UID]
	if !known {
		now := q.cfg.Now()
		q.added++
		it = &Item{Info: info, Added: now, since: now, number: q.added, lane: q.lane(info)}
		q.items[p.UID] = it
		q.push(it, active, "PodAdd")
		return
	}
	changed := differs(it.Info.Pod, p)
	it.Info = info
	switch {
	case !changed:
		return
	case it.state == stuck && it.held:
		it.group.standing = false
	case it.state == stuck:
		q.detach(it)
		q.leave(it, nil)
		q.again(it, "PodUpdate")
	case it.state == trying:
		it.missed |= framework.PodChanged
	}
	it.ranked = false
	q.change(it)
}

// change puts an item where it belongs now: its lane or its priority may differ.
func (q *Queue) change(it *Item) {
	if it.state != active {
		it.lane = q.lane(it.Info)
		return
	}
	q.ready.remove(it)
	it.lane = q.lane(it.Info)
	q.ready.push(it)
	q.unrank(it)
}

// Rerank asks for the ranks of all pods again: another plugin orders them now.
func (q *Queue) Rerank() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.items {
		it.ranked = false
		if it.lane = q.lane(it.Info); it.lane != "" {
			it.rank = 0
		}
	}
	ready := q.ready.items()
	q.ready = newLanes()
	for _, it := range ready {
		q.ready.push(it)
	}
	q.unrank(ready...)
}

// unrank has the ranks of items be asked for.
func (q *Queue) unrank(items ...*Item) {
	if q.cfg.Rank != nil {
		q.unranked = append(q.unranked, items...)
	}
}

// rank asks for the ranks that are missing, outside of the lock.
func (q *Queue) rank(ctx context.Context) {
	if q.cfg.Rank == nil {
		return
	}
	type question struct {
		info  *framework.PodInfo
		added time.Time
	}
	var open []question
	q.mu.Lock()
	for _, it := range q.unranked {
		if it.state == active && !it.ranked && it.lane == "" {
			open = append(open, question{it.Info, it.Added})
		}
	}
	q.unranked = nil
	q.mu.Unlock()
	for _, o := range open {
		rank := q.cfg.Rank(ctx, o.info, o.added)
		q.mu.Lock()
		if it, ok := q.items[o.info.Pod.UID]; ok && it.Info == o.info {
			it.rank, it.ranked = rank, true
			if it.state == active {
				q.ready.fix(it)
			}
		}
		q.mu.Unlock()
	}
}

func differs(a, b *corev1.Pod) bool {
	return a.Generation != b.Generation || !sameMap(a.Labels, b.Labels) || !sameMap(a.Annotations, b.Annotations) ||
		len(a.Spec.SchedulingGates) != len(b.Spec.SchedulingGates) || len(a.Status.ResourceClaimStatuses) != len(b.Status.ResourceClaimStatuses)
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// Remove forgets a pod.
func (q *Queue) Remove(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it, ok := q.items[uid]; ok {
		q.detach(it)
		delete(q.items, uid)
		delete(q.tried, uid)
		q.leave(it, nil)
	}
}

// Pop waits for the next pod to try, or for ctx's end (nil).
func (q *Queue) Pop(ctx context.Context) *Item {
	for {
		it, due := q.Try(ctx)
		if it != nil {
			return it
		}
		wait := time.Hour
		if !due.IsZero() {
			wait = due.Sub(q.cfg.Now())
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-q.signal:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Try is Pop that does not wait: without a pod to try now it says when the next one
// is due; zero = only an event can bring one.
func (q *Queue) Try(ctx context.Context) (it *Item, due time.Time) {
	q.promote()
	q.rank(ctx)
	q.rankLanes(ctx)
	return q.next()
}

// promote moves what is due.
func (q *Queue) promote() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.cfg.Now()
	for len(q.later) > 0 && !q.later[0].due.After(now) {
		it := q.later[0]
		event := "BackoffComplete"
		if it.state == stuck {
			event = "UnschedulableTimeout"
		}
		q.detach(it)
		q.push(it, active, event)
	}
}

// next hands out the first active pod, or says when there may be one.
func (q *Queue) next() (*Item, time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.ready.first(); it != nil {
		return q.hand(it), time.Time{}
	}
	if len(q.later) > 0 {
		return nil, q.later[0].due
	}
	return nil, time.Time{}
}

// hand an item out to be tried.
func (q *Queue) hand(it *Item) *Item {
	q.detach(it)
	it.missed, it.gated, it.held = 0, false, false
	q.tried[it.Info.Pod.UID] = it
	it.Attempts++
	out := *it // the caller's view doesn't change under it
	return &out
}

// Take hands out those of these pods that wait, whatever they wait for: they are tried together with
// one that Pop handed out.
func (q *Queue) Take(uids []types.UID) []*Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []*Item
	for _, uid := range uids {
		if it, ok := q.items[uid]; ok && it.state != trying {
			out = append(out, q.hand(it))
		}
	}
	return out
}

// Done forgets a pod that has found its node.
func (q *Queue) Done(uid types.UID) { q.Remove(uid) }

// Failed puts a pod back after a try that found no node. With an event of interest since
// Pop it only backs off.
func (q *Queue) Failed(uid types.UID, r Refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it, ok := q.items[uid]; ok && it.state == trying {
		it.gated, it.since = false, q.cfg.Now()
		q.refused(it, r)
	}
}

func (q *Queue) refused(it *Item, r Refusal) {
	key := r.Template
	if key == "" {
		key = alone(it.Info.Pod.UID)
	}
	g := q.group(key)
	q.leave(it, g)
	if it.missed&framework.PodChanged != 0 {
		q.drop(g)
		q.retry(it, "ScheduleAttemptFailure")
		return
	}
	q.waits.move(g, r.Keys)
	g.refusal, g.standing, g.since = r, it.missed&r.Interest == 0, q.cfg.Now()
	q.join(it, g)
	if !g.standing {
		q.send(g, "ScheduleAttemptFailure")
	}
}

// Gated puts a pod back that may not be tried: it waits for a change of its own
// or an event of interest, and the try does not count.
func (q *Queue) Gated(uid types.UID, r Refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it, ok := q.items[uid]; ok && it.state == trying {
		it.Attempts--
		it.gated, it.since = true, time.Time{} // and there is nothing to back off from
		q.refused(it, r)
	}
}

// Errored puts a pod back after a fault of ours; it backs off.
func (q *Queue) Errored(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it, ok := q.items[uid]; ok && it.state == trying {
		q.leave(it, nil)
		it.gated, it.since = false, q.cfg.Now()
		q.retry(it, "ScheduleAttemptFailure")
	}
}

// eventNames are upstream's, for what may have helped a pod.
var eventNames = []struct {
	event framework.ClusterEvent
	name  string
}{
	{framework.NodeAdded, "NodeAdd"},
	{framework.NodeLabelsChanged, "NodeLabelChange"},
	{framework.NodeTaintsChanged, "NodeTaintChange"},
	{framework.NodeFeaturesChanged, "NodeDeclaredFeatureChange"},
	{framework.NodeRemoved, "NodeDelete"},
	{framework.PodBound, "AssignedPodAdd"},
	{framework.PodRemoved, "AssignedPodDelete"},
	{framework.PodShrank, "AssignedPodUpdatePodScaleDown"},
	{framework.PodChanged, "AssignedPodUpdate"},
	{framework.VolumesChanged, "PvcUpdate"},
	{framework.DevicesChanged, "ResourceClaimUpdate"},
	{framework.DeviceClassChanged, "DeviceClassUpdate"},
}

// eventName is the first of several that came as one.
func eventName(e framework.ClusterEvent) string {
	if e != framework.AnyEvent {
		for _, n := range eventNames {
			if e&n.event != 0 {
				return n.name
			}
		}
	}
	return "UnschedulableTimeout"
}

// Len counts pods by state: to be tried, backing off, fitting nowhere, and such as
// may not be tried.
func (q *Queue) Len() (ready, backoff, unschedulable, gated int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.items {
		switch it.state {
		case active:
			ready++
		case backingOff:
			backoff++
		case stuck:
			if it.gated {
				gated++
			} else {
				unschedulable++
			}
		case trying: // it is in no queue now
		}
	}
	return ready, backoff, unschedulable, gated
}

// Refused calls each with every pod that was refused and waits, for what may help it, for the end of
// its backoff or for its turn, and with the refusal. The queue is locked meanwhile.
func (q *Queue) Refused(each func(*framework.PodInfo, Refusal)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.items {
		if it.state != trying && it.group != nil {
			each(it.Info, it.group.refusal)
		}
	}
}

// retry moves an item that is tried to the active pods, by way of what is left of its backoff.
func (q *Queue) retry(it *Item, event string) {
	q.detach(it)
	q.again(it, event)
}

func (q *Queue) again(it *Item, event string) {
	due := it.since.Add(q.backoff(it.Attempts))
	if due.After(q.cfg.Now()) {
		it.due = due
		q.push(it, backingOff, event)
		return
	}
	q.push(it, active, event)
}

func (q *Queue) backoff(attempts int) time.Duration {
	d := q.cfg.InitialBackoff
	for i := 1; i < attempts && d < q.cfg.MaxBackoff; i++ {
		d *= 2
	}
	return min(d, q.cfg.MaxBackoff)
}

func (q *Queue) push(it *Item, s state, event string) {
	it.state = s
	delete(q.tried, it.Info.Pod.UID)
	if q.cfg.Moved != nil {
		q.cfg.Moved(it.queue(), event)
	}
	switch s {
	case active:
		q.ready.push(it)
		if !it.ranked {
			q.unrank(it)
		}
	case backingOff, stuck: // both have a time at which they are due
		heap.Push(&q.later, it)
	case trying:
	}
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// queue is the item's, in upstream's words.
func (it *Item) queue() string {
	switch it.state {
	case active, trying:
		return "active"
	case backingOff:
		return "backoff"
	case stuck:
	}
	if it.gated {
		return "gated"
	}
	return "unschedulable"
}

func (q *Queue) detach(it *Item) {
	switch it.state {
	case active:
		q.ready.remove(it)
	case stuck:
		heap.Remove(&it.group.members, it.place)
		heap.Remove(&q.later, it.index)
	case backingOff:
		heap.Remove(&q.later, it.index)
	case trying:
	}
	it.state = trying
}

type activeHeap []*Item

func (h activeHeap) Len() int { return len(h) }
func (h activeHeap) Less(i, j int) bool {
	if h[i].rank != h[j].rank {
		return h[i].rank > h[j].rank
	}
	return before(h[i], h[j])
}
func (h activeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *activeHeap) Push(x any)   { it := x.(*Item); it.index = len(*h); *h = append(*h, it) }
func (h *activeHeap) Pop() any     { old := *h; it := old[len(old)-1]; *h = old[:len(old)-1]; return it }

func priority(it *Item) int32 {
	if p := it.Info.Pod.Spec.Priority; p != nil {
		return *p
	}
	return 0
}

// before says which of two items of the same rank goes first.
func before(x, y *Item) bool {
	a, b := priority(x), priority(y)
	if a != b {
		return a > b
	}
	if !x.Added.Equal(y.Added) {
		return x.Added.Before(y.Added)
	}
	return x.number < y.number
}

type dueHeap []*Item

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	if !h[i].due.Equal(h[j].due) {
		return h[i].due.Before(h[j].due)
	}
	return h[i].number < h[j].number
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *dueHeap) Push(x any)   { it := x.(*Item); it.index = len(*h); *h = append(*h, it) }
func (h *dueHeap) Pop() any     { old := *h; it := old[len(old)-1]; *h = old[:len(old)-1]; return it }
