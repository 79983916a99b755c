// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// event as a watcher saw it.
type event struct {
	kind     watch.EventType
	object   string
	value    string
	revision int64
}

// span is what one list began: the watcher saw everything from there, up to at.
type span struct{ from, at int64 }

// follower lists, and then watches from where it was, over and over. Where the
// server says that it has no history from there (it has just been started), it
// lists again, as clients do, and another span begins.
type follower struct {
	client *kubernetes.Clientset

	mu      sync.Mutex
	spans   []span
	events  []event
	faults  []string
	target  int64
	reached chan struct{}
}

func (f *follower) run(ctx context.Context) {
	c := f.client.CoreV1().ConfigMaps(label)
	begun := false
	for ctx.Err() == nil {
		if !begun {
			l, err := c.List(ctx, metav1.ListOptions{})
			if err != nil {
				pause(ctx)
				continue
			}
			f.begin(l.ResourceVersion)
			begun = true
		}
		w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(f.at(), 10), AllowWatchBookmarks: true})
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			begun = false
			continue
		}
		if err != nil {
			pause(ctx)
			continue
		}
		for e := range w.ResultChan() {
			begun = f.take(e) && begun
		}
		w.Stop()
	}
}

func (f *follower) begin(version string) {
	from, _ := strconv.ParseInt(version, 10, 64)
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.spans); n > 0 && from < f.spans[n-1].at {
		f.faults = append(f.faults, fmt.Sprintf("a list of %d after %d", from, f.spans[n-1].at))
	}
	f.spans = append(f.spans, span{from, from})
	f.arrive()
}

func (f *follower) at() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.spans[len(f.spans)-1].at
}

func (f *follower) arrive() {
	if f.target > 0 && f.spans[len(f.spans)-1].at >= f.target {
		close(f.reached)
		f.target = 0
	}
}

func pause(ctx context.Context) {
	timer := time.NewTimer(20 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// take notes an event; false says that the watch has expired.
func (f *follower) take(e watch.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	cm, ok := e.Object.(*corev1.ConfigMap)
	if !ok {
		s, ok := e.Object.(*metav1.Status)
		if ok && strings.HasPrefix(s.Message, "an error on the server (\"unable to decode an event from the watch stream") {
			return true // it is the client who says so: the connection was cut
		}
		if !ok || e.Type != watch.Error || s.Code != 410 {
			f.faults = append(f.faults, fmt.Sprintf("%s: %+v", e.Type, e.Object))
		}
		return false
	}
	now := &f.spans[len(f.spans)-1]
	at := revision(cm)
	switch {
	case e.Type == watch.Bookmark && at < now.at:
		f.faults = append(f.faults, fmt.Sprintf("a bookmark of %d after %d", at, now.at))
	case e.Type != watch.Bookmark && at <= now.at:
		f.faults = append(f.faults, fmt.Sprintf("%s of %s at %d after %d", e.Type, cm.Name, at, now.at))
	}
	now.at = max(now.at, at)
	if e.Type != watch.Bookmark {
		f.events = append(f.events, event{e.Type, cm.Name, cm.Data["value"], at})
	}
	f.arrive()
	return true
}

// reach waits until the follower has seen what happened up to a revision.
func (f *follower) reach(t *testing.T, target int64) {
	t.Helper()
	f.mu.Lock()
	f.target = target
	if len(f.spans) > 0 {
		f.arrive()
	}
	f.mu.Unlock()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case <-f.reached:
	case <-timer.C:
		t.Fatalf("a watcher is at %d after a minute, and %d was acknowledged", f.at(), target)
	}
}

// followed says whether a revision is one that the watcher had to be told of.
func (f *follower) followed(revision int64) bool {
	return slices.ContainsFunc(f.spans, func(s span) bool { return s.from < revision && revision <= s.at })
}

// judge compares what a watcher saw with what was acknowledged.
func (f *follower) judge(t *testing.T, number int, h *history, until int64) {
	t.Helper()
	for _, fault := range f.faults {
		t.Errorf("watcher %d: %s", number, fault)
	}
	seen := map[int64]event{}
	tried := map[string]bool{"last": true}
	for _, e := range f.events {
		seen[e.revision] = e
	}
	checked := 0
	for _, op := range h.ops {
		in, out := op.Input.(input), op.Output.(output)
		if in.value != "" {
			tried[in.value] = true
		}
		if out.outcome != done || in.verb == get || in.verb == list || in.verb == remove || out.revision > until || !f.followed(out.revision) {
			continue
		}
		checked++
		if e, ok := seen[out.revision]; !ok || e.object != in.object || e.value != in.value {
			t.Errorf("watcher %d: %s of %s was acknowledged at %d, and was told as %+v", number, in.verb, in.object, out.revision, e)
		}
	}
	for _, e := range f.events {
		if !tried[e.value] {
			t.Errorf("watcher %d: nobody wrote %+v", number, e)
		}
	}
	if checked == 0 {
		t.Errorf("watcher %d: nothing to compare", number)
	}
	t.Logf("watcher %d: %d events in %d spans, %d of them compared", number, len(f.events), len(f.spans), checked)
}
