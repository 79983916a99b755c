// SPDX-License-Identifier: Apache-2.0

package replicaset

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers"
)

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(1000, 0))},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if change != nil {
		change(p)
	}
	return p
}

func ready(since int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(time.Unix(since, 0)),
		}}
	}
}

// Each pod is worth more than the one before it.
func TestLeastMissedFirst(t *testing.T) {
	want := []*corev1.Pod{
		pod("unassigned", func(p *corev1.Pod) { p.Spec.NodeName = "" }),
		pod("pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		pod("not-ready", nil),
		pod("cheap", func(p *corev1.Pod) { ready(1000)(p); p.Annotations = map[string]string{corev1.PodDeletionCost: "-5"} }),
		pod("crowded", func(p *corev1.Pod) { ready(1000)(p); p.Spec.NodeName = "crowded" }),
		pod("ready-lately", ready(1900)),
		pod("restarts", func(p *corev1.Pod) {
			ready(1000)(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
		}),
		pod("dear", func(p *corev1.Pod) { ready(1000)(p); p.Annotations = map[string]string{corev1.PodDeletionCost: "7"} }),
	}
	related := []*corev1.Pod{
		pod("x", func(p *corev1.Pod) { p.Spec.NodeName = "crowded" }),
		pod("y", func(p *corev1.Pod) { p.Spec.NodeName = "crowded" }),
	}
	shuffled := []*corev1.Pod{want[5], want[2], want[7], want[0], want[4], want[1], want[6], want[3]}
	got := leastMissed(shuffled, related, time.Unix(2000, 0))
	for i := range want {
		if got[i].Name != want[i].Name {
			t.Errorf("place %d: %s, want %s", i, got[i].Name, want[i].Name)
		}
	}
}

func TestDeletionCost(t *testing.T) {
	for text, want := range map[string]int32{
		"": 0, "5": 5, "-5": -5, "+5": 0, "05": 0, "0": 0, "99999999999": 0, "2147483647": 2147483647,
		"-2147483648": -2147483648, "2147483648": 0, "x": 0,
	} {
		if got := parseCost(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// world is a server and a controller whose cache lags behind, and which may die
// between any two writes.
type world struct {
	server   map[types.UID]*corev1.Pod
	cache    map[types.UID]*corev1.Pod
	events   []func() // not yet delivered to the cache, in order
	expected *controllers.Expectations
	serial   int
}

var key = controllers.Key{Namespace: "default", Name: "rs"}

func sorted(pods map[types.UID]*corev1.Pod) []types.UID { return slices.Sorted(maps.Keys(pods)) }

// ghosts are pods that the cache still shows and that died by themselves.
func (w *world) ghosts() (n int) {
	for uid := range w.cache {
		if w.server[uid] == nil {
			n++
		}
	}
	return n
}

func (w *world) create() {
	w.serial++
	p := pod(fmt.Sprint(w.serial), nil)
	w.server[p.UID] = p
	w.events = append(w.events, func() { w.cache[p.UID] = p; w.expected.Created(key, 1) })
}

func (w *world) remove(uid types.UID) {
	if w.server[uid] == nil {
		w.expected.Deleted(key, uid) // NotFound
		return
	}
	delete(w.server, uid)
	w.events = append(w.events, func() { delete(w.cache, uid); w.expected.Deleted(key, uid) })
}

func (w *world) deliver(n int) {
	for ; n > 0 && len(w.events) > 0; n-- {
		w.events[0]()
		w.events = w.events[1:]
	}
}

// restart loses what is in memory and fills the cache by a fresh list.
func (w *world) restart() {
	w.expected, w.events, w.cache = controllers.NewExpectations(), nil, map[types.UID]*corev1.Pod{}
	for uid, p := range w.server {
		w.cache[uid] = p
	}
}

func (w *world) reconcile(want int32, writes int) {
	if !w.expected.Satisfied(key) {
		return
	}
	var active []*corev1.Pod
	for _, uid := range sorted(w.cache) {
		active = append(active, w.cache[uid])
	}
	d := decide(want, active, nil, time.Unix(2000, 0))
	if d.create > 0 {
		w.expected.Expect(key, d.create)
		for range d.create {
			if writes--; writes < 0 {
				w.restart()
				return
			}
			w.create()
		}
		return
	}
	var uids []types.UID
	for _, p := range d.remove {
		uids = append(uids, p.UID)
	}
	if len(uids) > 0 {
		w.expected.Expect(key, 0, uids...)
	}
	for _, uid := range uids {
		if writes--; writes < 0 {
			w.restart()
			return
		}
		w.remove(uid)
	}
}

// Whatever is stale, missed or cut off: never more pods than were ever wanted,
// never fewer by the controller's own hand, and in the end exactly as many.
func TestNeverOverNeverUnder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{server: map[types.UID]*corev1.Pod{}, cache: map[types.UID]*corev1.Pod{}, expected: controllers.NewExpectations()}
		want := rapid.Int32Range(0, 8).Draw(t, "want")
		most := want
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				want = rapid.Int32Range(0, 8).Draw(t, "want")
				most = max(most, want)
			case 1: // a node dies with a pod
				if uids := sorted(w.server); len(uids) > 0 {
					w.remove(uids[0])
				}
			case 2:
				w.restart()
			case 3, 4, 5:
				w.deliver(rapid.IntRange(1, 4).Draw(t, "events"))
			default:
				before, ghosts := len(w.server), w.ghosts()
				w.reconcile(want, rapid.IntRange(0, 10).Draw(t, "writes before death"))
				// What died without our doing and is not known yet cannot be helped.
				if after := len(w.server); after < before && after < int(want)-ghosts {
					t.Fatalf("deleted down to %d of %d", after, want)
				}
			}
			if len(w.server) > int(most) {
				t.Fatalf("%d pods, at most %d were ever wanted", len(w.server), most)
			}
		}
		for range 10 {
			w.deliver(1000)
			w.reconcile(want, 1000)
		}
		if len(w.server) != int(want) {
			t.Fatalf("%d pods in the end, want %d", len(w.server), want)
		}
	})
}
