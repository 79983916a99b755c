// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

func pod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &priority}}
}

// pop returns the name of the next pod, or "" where none comes within d.
func pop(t *testing.T, q *Queue, d time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if it := q.Pop(ctx); it != nil {
		return it.Info.Pod.Name
	}
	return ""
}

func TestPriorityThenAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		q.Set(pod("old", 0))
		time.Sleep(time.Second)
		q.Set(pod("young", 0))
		q.Set(pod("important", 100))
		for _, want := range []string{"important", "old", "young"} {
			if got := pop(t, q, time.Second); got != want {
				t.Fatalf("popped %q, want %q", got, want)
			}
		}
	})
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		q.Set(pod("a", 0))
		for i, want := range []time.Duration{
			0, 1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second,
			10 * time.Second,
		} {
			before := time.Now()
			if pop(t, q, time.Minute) != "a" {
				t.Fatal("the pod is lost")
			}
			if took := time.Since(before); took != want {
				t.Fatalf("try %d came after %s, want %s", i+1, took, want)
			}
			q.Errored("a")
		}
	})
}

func TestOnlyEventsOfInterestWakeAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		q.Set(pod("a", 0))
		pop(t, q, time.Second)
		q.Failed("a", Refusal{Interest: framework.NodeAdded})
		time.Sleep(20 * time.Second)
		q.Happened(framework.PodRemoved, nil)
		if got := pop(t, q, time.Second); got != "" {
			t.Fatalf("%s was tried again for an event that cannot help", got)
		}
		q.Happened(framework.NodeAdded, nil)
		if got := pop(t, q, time.Second); got != "a" {
			t.Fatal("the event did not wake the pod")
		}
	})
}

func TestAnEventDuringTheTryCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		q.Set(pod("a", 0))
		pop(t, q, time.Second)
		q.Happened(framework.NodeAdded, nil)
		q.Failed("a", Refusal{Interest: framework.NodeAdded})
		if got := pop(t, q, 2*time.Second); got != "a" {
			t.Fatal("an event between Pop and Failed was missed")
		}
	})
}

func TestAMissedEventOnlyCostsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		q.Set(pod("a", 0))
		pop(t, q, time.Second)
		q.Failed("a", Refusal{Interest: framework.NodeAdded})
		if got := pop(t, q, 6*time.Minute); got != "a" {
			t.Fatal("the pod is lost")
		}
	})
}

func TestAChangedPodIsTriedAgainAndARemovedOneIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		for _, name := range []string{"a", "b"} {
			q.Set(pod(name, 0))
			pop(t, q, time.Second)
			q.Failed(types.UID(name), Refusal{Interest: 0})
		}
		time.Sleep(time.Minute)
		changed := pod("a", 0)
		changed.Labels = map[string]string{"x": "y"}
		q.Set(changed)
		q.Remove("b")
		if got := pop(t, q, time.Second); got != "a" {
			t.Fatalf("popped %q", got)
		}
		if got := pop(t, q, time.Hour); got != "" {
			t.Fatalf("popped %q", got)
		}
	})
}

// TestAPluginsRankComesFirst: it is asked once for a pod, and again when the pod
// changes or another plugin orders the queue.
func TestAPluginsRankComesFirst(t *testing.T) {
	ranks, asked := map[string]int64{"b": 2, "c": 1}, 0
	q := New(Config{Rank: func(_ context.Context, p *framework.PodInfo, _ time.Time) int64 {
		asked++
		return ranks[p.Pod.Name]
	}})
	for _, p := range []*corev1.Pod{pod("a", 1000), pod("b", 0), pod("c", 0)} {
		q.Set(p)
	}
	if got := pop(t, q, time.Minute); got != "b" {
		t.Fatalf("popped %q, want b", got)
	}
	if asked != 3 {
		t.Errorf("asked %d times for three pods", asked)
	}
	ranks["a"] = 5
	q.Rerank()
	for _, want := range []string{"a", "c"} {
		if got := pop(t, q, time.Minute); got != want {
			t.Fatalf("popped %q, want %q", got, want)
		}
	}
}

// TestAGatedPodWaitsForItsEventAndHasNotTried: no backoff, no attempt counted.
func TestAGatedPodWaitsForItsEventAndHasNotTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		q.Set(pod("a", 0))
		for range 5 {
			if pop(t, q, 0) != "a" {
				t.Fatal("the pod was not there at once")
			}
			q.Gated("a", Refusal{Interest: framework.NodeAdded})
			q.Happened(framework.PodRemoved, nil)
			if pop(t, q, time.Second) != "" {
				t.Fatal("an event that it has no interest in let it through")
			}
			q.Happened(framework.NodeAdded, nil)
		}
		if it := q.Pop(t.Context()); it.Attempts != 1 {
			t.Errorf("attempt %d, want the first", it.Attempts)
		}
	})
}

// TestOneOfATemplateSpeaksForTheOthers: after an event one of them is tried; the next one
// follows it only where it has found a node, and one that is new is refused with the others.
func TestOneOfATemplateSpeaksForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		refused := Refusal{Interest: framework.NodeAdded, Template: "big", Why: "no room"}
		for _, name := range []string{"a", "b", "c"} {
			q.Set(pod(name, 0))
			if pop(t, q, time.Second) != name {
				t.Fatal("the pod was not there at once")
			}
			if r, stands := q.Standing("big"); stands != (name != "a") || stands && r.Why != "no room" {
				t.Fatalf("pod %s: the refusal %v stands: %v", name, r, stands)
			}
			if name == "a" {
				q.Failed("a", refused)
			} else {
				q.Spoken(types.UID(name), "big")
			}
		}
		time.Sleep(20 * time.Second)
		q.Happened(framework.NodeAdded, func(r *Refusal) bool { return r.Why != "no room" })
		if got := pop(t, q, time.Second); got != "" {
			t.Fatalf("%s was tried, although the event helps nobody", got)
		}
		q.Happened(framework.NodeAdded, nil)
		if got := pop(t, q, time.Second); got != "a" {
			t.Fatalf("popped %q, want a", got)
		}
		if got := pop(t, q, time.Second); got != "" {
			t.Fatalf("%s was tried beside the one that speaks for it", got)
		}
		q.Placed("a", "big")
		q.Done("a")
		if got := pop(t, q, time.Second); got != "b" {
			t.Fatalf("popped %q, want b after a has found a node", got)
		}
		q.Failed("b", refused)
		if got := pop(t, q, time.Minute); got != "" {
			t.Fatalf("%s was tried, although b was refused for it", got)
		}
		q.Happened(framework.NodeAdded, nil)
		if got := pop(t, q, time.Second); got != "c" {
			t.Fatalf("popped %q, want c, which has waited longest", got)
		}
		q.Remove("c") // it is deleted while it is tried
		if got := pop(t, q, time.Minute); got != "b" {
			t.Fatalf("popped %q, want b in the place of c", got)
		}
	})
}

// A pod that is held back stays where it is, whatever happens; released it is tried if something has happened, or
// if that is asked for.
func TestHeldPodsWaitForTheirRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		refusal := Refusal{Interest: framework.NodeAdded}
		try := func(name string, before ...framework.ClusterEvent) {
			t.Helper()
			if got := pop(t, q, time.Minute); got != name {
				t.Fatalf("popped %q, want %q", got, name)
			}
			q.Hold([]types.UID{types.UID(name)})
			for _, e := range before {
				q.Happened(e, nil)
			}
			q.Failed(types.UID(name), refusal)
		}
		held := func(what string) {
			t.Helper()
			if got := pop(t, q, time.Minute); got != "" {
				t.Errorf("%s was tried %s", got, what)
			}
		}
		a := []types.UID{"a"}
		q.Set(pod("a", 0))
		try("a")
		q.Release(a, false)
		held("though nothing has happened")

		q.Happened(framework.NodeAdded, nil)
		try("a", framework.NodeAdded)
		held("while it was held back: a node came during its try")
		q.Release(a, false)
		try("a")
		q.Happened(framework.NodeAdded, nil)
		held("while it was held back")
		q.Release(a, false)
		try("a")
		q.Release(a, true) // asked for

		if got := pop(t, q, time.Minute); got != "a" {
			t.Fatalf("popped %q", got)
		}
		q.Hold(a)
		q.Release(a, true) // before it is put back
		q.Failed("a", refusal)
		try("a")
		changed := pod("a", 7)
		changed.Generation = 1
		q.Set(changed)
		held("while it was held back: it changed")
		q.Release(a, false)
		try("a")
	})
}

// An event of one object concerns those that wait for it, and those that wait for anything; of ten thousand that
// wait for others none is looked at.
func TestAnEventOfOneObjectConcernsThoseWhoWaitForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{})
		refuse := func(name string, keys []string) {
			t.Helper()
			q.Set(pod(name, 0))
			if got := pop(t, q, time.Minute); got != name {
				t.Fatalf("popped %q, want %q", got, name)
			}
			q.Failed(types.UID(name), Refusal{Interest: framework.VolumesChanged, Keys: keys})
		}
		for i := range 10000 {
			refuse(fmt.Sprint("other-", i), []string{fmt.Sprint("claim/", i)})
		}
		refuse("both", []string{"claim/a", "claim/b"})
		refuse("wasm", nil) // a plugin that does not say what it waits for
		refuse("none", []string{})
		looked := 0
		for range q.waits.of([]string{"claim/a", "claim/b", "claim/nobody's"}) {
			looked++
		}
		if looked != 2 {
			t.Errorf("%d groups are looked at", looked)
		}
		q.HappenedTo(framework.VolumesChanged, []string{"claim/b"}, nil)
		for _, want := range []string{"both", "wasm", ""} {
			if got := pop(t, q, time.Second+time.Millisecond); got != want {
				t.Fatalf("popped %q, want %q", got, want)
			}
		}
		q.Failed("both", Refusal{Interest: framework.VolumesChanged, Keys: []string{"claim/c"}})
		q.Remove("wasm")
		q.HappenedTo(framework.VolumesChanged, []string{"claim/b"}, nil)
		if got := pop(t, q, time.Minute); got != "" {
			t.Errorf("popped %q: it waits for another claim now", got)
		}
		q.HappenedTo(framework.VolumesChanged, []string{"claim/c"}, nil)
		if got := pop(t, q, time.Minute); got != "both" {
			t.Errorf("popped %q", got)
		}
		q.Remove("both")
		q.Remove("none")
		for i := range 10000 {
			q.Remove(types.UID(fmt.Sprint("other-", i)))
		}
		if len(q.waits.byKey)+len(q.waits.any) != 0 {
			t.Errorf("%d keys and %d groups are left of pods that have gone", len(q.waits.byKey), len(q.waits.any))
		}
	})
}
