// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/run"
)

// auditor is a client that holds what a server says against what was written: its watch
// tells of each write once and in order, also where it goes on after it was cut off, at
// another server, or in another life; its lists are whole and not of the past; and counting
// up loses nothing that was acknowledged.
type auditor struct {
	name string
	w    *world

	mu    sync.Mutex
	seen  int64 // the revision up to which the watch has told all; 0 = it has not begun
	told  int   // events of watches
	lists int
	acked []int64 // what was counted, and acknowledged
	maybe int     // counted without an answer
}

// shortly is how long one request may take.
const shortly = 30 * time.Second

func (a *auditor) run(ctx context.Context, l *life) error {
	set, err := l.as(a.name)
	if err != nil {
		return err
	}
	every := func(d time.Duration, f func(context.Context, *client.Set)) func(context.Context) error {
		return func(ctx context.Context) error {
			for ctx.Err() == nil {
				f(ctx, set)
				select {
				case <-ctx.Done():
				case <-time.After(d):
				}
			}
			return nil
		}
	}
	return run.Together(ctx, every(2*time.Second, a.watches), every(7*time.Second, a.reads), every(5*time.Second, a.counts))
}

func (a *auditor) since() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

func (a *auditor) sawUpTo(revision int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = revision
}

// watches follows one watch to its end.
func (a *auditor) watches(ctx context.Context, set *client.Set) {
	if a.since() == 0 {
		revision, ok := a.list(ctx, set)
		if !ok {
			return
		}
		a.sawUpTo(revision)
	}
	w, err := set.Kube.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{
		ResourceVersion: strconv.FormatInt(a.since(), 10), AllowWatchBookmarks: true,
	})
	if err != nil {
		a.startAnew(err)
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			a.startAnew(apierrors.FromObject(e.Object))
			return
		}
		a.event(e)
	}
}

// startAnew has the next watch begin with a list where the server does not remember as far.
func (a *auditor) startAnew(err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		a.sawUpTo(0)
	}
}

// event holds one event against the next write that it should be about.
func (a *auditor) event(e watch.Event) {
	o, ok := e.Object.(metav1.Object)
	if !ok {
		a.w.fail("%s: a watch tells of a %T", a.name, e.Object)
		return
	}
	revision, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		a.w.fail("%s: %s %s has the resource version %q", a.name, e.Type, o.GetName(), o.GetResourceVersion())
		return
	}
	seen := a.since()
	a.sawUpTo(max(revision, seen))
	next, ok := a.w.disk.podAfter(seen)
	if e.Type == watch.Bookmark {
		if ok && next.revision <= revision {
			a.w.fail("%s: a bookmark of revision %d after %d, and the write of %s at %d was not told", a.name, revision, seen, next.name,
				next.revision)
		}
		return
	}
	a.mu.Lock()
	a.told++
	a.mu.Unlock()
	if got := (podWrite{revision, o.GetName(), e.Type == watch.Deleted}); !ok || got != next {
		a.w.fail("%s: after revision %d a watch tells of %+v, and the next write was %+v", a.name, seen, got, next)
	}
}

// list reads all pods, and answers the revision at which it did.
func (a *auditor) list(ctx context.Context, set *client.Set) (revision int64, ok bool) {
	before := a.w.disk.lastPod()
	ctx, cancel := context.WithTimeout(ctx, shortly)
	defer cancel()
	list, err := set.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, false
	}
	if revision, err = strconv.ParseInt(list.ResourceVersion, 10, 64); err != nil {
		a.w.fail("%s: a list has the resource version %q", a.name, list.ResourceVersion)
		return 0, false
	}
	if revision < before.revision {
		a.w.fail("%s: a list is of revision %d, and %s was written at %d before it was asked for", a.name, revision, before.name, before.revision)
	}
	have := map[string]string{}
	for _, p := range list.Items {
		have[p.Name] = p.ResourceVersion
	}
	if want := a.w.disk.podsAt(revision); !maps.Equal(have, want) {
		a.w.fail("%s: a list at revision %d has %v, and there were %v", a.name, revision, have, want)
	}
	return revision, true
}

func (a *auditor) reads(ctx context.Context, set *client.Set) {
	if _, ok := a.list(ctx, set); ok {
		a.mu.Lock()
		a.lists++
		a.mu.Unlock()
	}
}

// counts counts up what all auditors count together, once.
func (a *auditor) counts(ctx context.Context, set *client.Set) {
	ctx, cancel := context.WithTimeout(ctx, shortly)
	defer cancel()
	configs := set.Kube.CoreV1().ConfigMaps("kube-system")
	cm, err := configs.Get(ctx, "count", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// Whoever makes it has counted nothing yet.
		_, _ = configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "count"}, Data: map[string]string{"n": "0"}},
			metav1.CreateOptions{})
		return
	}
	if err != nil {
		return
	}
	n, err := strconv.ParseInt(cm.Data["n"], 10, 64)
	if err != nil {
		a.w.fail("%s: the count is %q", a.name, cm.Data["n"])
		return
	}
	cm.Data["n"] = strconv.FormatInt(n+1, 10)
	_, err = configs.Update(ctx, cm, metav1.UpdateOptions{})
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil:
		a.acked = append(a.acked, n+1)
	case !apierrors.IsConflict(err):
		a.maybe++
	}
}

// counted holds the count against what was acknowledged.
func (w *world) counted() {
	var acked []int64
	maybe := 0
	for _, a := range w.auditors {
		a.mu.Lock()
		acked, maybe = append(acked, a.acked...), maybe+a.maybe
		w.say("%s: %d events, %d lists, counted to %d", a.name, a.told, a.lists, len(a.acked))
		a.mu.Unlock()
	}
	slices.Sort(acked)
	if once := slices.Compact(slices.Clone(acked)); len(once) != len(acked) {
		w.fail("the same count was acknowledged twice: %v", acked)
	}
	cm, err := w.user.Kube.CoreV1().ConfigMaps("kube-system").Get(w.ctx, "count", metav1.GetOptions{})
	if err != nil {
		w.fail("reading the count: %v", err)
		return
	}
	// The auditors still count; what they do now is the one that is on top.
	if n, err := strconv.Atoi(cm.Data["n"]); err != nil || n < len(acked) || n > len(acked)+maybe+len(w.auditors) {
		w.fail("%d increments were acknowledged and %d perhaps made, and the count is %s", len(acked), maybe, cm.Data["n"])
	}
}

// podWrite is one write of a pod.
type podWrite struct {
	revision int64
	name     string
	gone     bool
}

func (p podWrite) String() string { return fmt.Sprintf("%s at %d", p.name, p.revision) }

// wrote remembers a write of a pod; the disk is locked.
func (d *disk) wrote(key string, revision int64, gone bool) {
	if name, ok := podKey(key); ok {
		d.history = append(d.history, podWrite{revision, name, gone})
	}
}

// podAfter is the first write of a pod after a revision.
func (d *disk) podAfter(revision int64) (podWrite, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, _ := slices.BinarySearchFunc(d.history, revision+1, func(p podWrite, r int64) int { return int(p.revision - r) })
	if at == len(d.history) {
		return podWrite{}, false
	}
	return d.history[at], true
}

// lastPod is the last write of a pod.
func (d *disk) lastPod() podWrite {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.history) == 0 {
		return podWrite{}
	}
	return d.history[len(d.history)-1]
}

// podsAt are the resource versions of the pods at a revision.
func (d *disk) podsAt(revision int64) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := map[string]string{}
	for _, p := range d.history {
		switch {
		case p.revision > revision:
			return at
		case p.gone:
			delete(at, p.name)
		default:
			at[p.name] = strconv.FormatInt(p.revision, 10)
		}
	}
	return at
}
