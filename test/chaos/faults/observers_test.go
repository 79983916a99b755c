// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/run"
)

func event(kind watch.EventType, name string, at int) watch.Event {
	return watch.Event{Type: kind, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(at)}}}
}

// Each wrong watch that the observers are there for is one that they see.
func TestWatcherSeesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name         string
		events       []watch.Event
		is           map[string]int64
		acknowledged map[string]int64
		wants        string // "" = nothing is wrong
	}{
		{
			"all in order",
			[]watch.Event{event(watch.Added, "b", 11), event(watch.Modified, "b", 12), event(watch.Deleted, "a", 13), event(watch.Bookmark, "", 20)},
			map[string]int64{"b": 12},
			map[string]int64{"a": 9, "b": 11},
			"",
		},
		{"a lost event", []watch.Event{event(watch.Added, "c", 12)}, map[string]int64{"a": 9, "b": 11, "c": 12}, nil, "it lacks b of 11"},
		{
			"an acknowledged write that was gone before it was seen",
			[]watch.Event{event(watch.Added, "c", 14)},
			map[string]int64{"a": 9, "c": 14},
			map[string]int64{"b": 11},
			"acknowledged at 11, and seen at 0",
		},
		{"repeated", []watch.Event{event(watch.Added, "b", 11), event(watch.Added, "b", 11)}, map[string]int64{"a": 9, "b": 11}, nil, "ADDED of b at 11 after 11"},
		{"out of order", []watch.Event{event(watch.Added, "c", 12), event(watch.Added, "b", 11)}, map[string]int64{"a": 9, "b": 11, "c": 12}, nil, "at 11 after 12"},
		{"from the past", []watch.Event{event(watch.Deleted, "a", 8)}, map[string]int64{}, nil, "DELETED of a at 8 after 10"},
		{"deleted twice", []watch.Event{event(watch.Deleted, "a", 11), event(watch.Deleted, "a", 12)}, map[string]int64{}, nil, "which was there: false"},
		{"a bookmark of the past", []watch.Event{event(watch.Bookmark, "", 9)}, map[string]int64{"a": 9}, nil, "a bookmark of 9 after 10"},
		{"a deletion of which no event comes", nil, map[string]int64{}, nil, "it has a of 9"},
	} {
		w := &watcher{view: map[string]int64{"a": 9}, from: 10, at: 10, seen: map[string]int64{}}
		for _, e := range c.events {
			w.take(e)
		}
		found := strings.Join(w.judge(c.is, c.acknowledged), "; ")
		if (c.wants == "") != (found == "") || !strings.Contains(found, c.wants) {
			t.Errorf("%s: %q", c.name, found)
		}
	}
}

func TestWatcherIsToldThatHistoryHasEnded(t *testing.T) {
	w := &watcher{seen: map[string]int64{}}
	for code, expired := range map[int32]bool{410: true, 500: false} {
		if w.take(watch.Event{Type: watch.Error, Object: &metav1.Status{Code: code}}) != expired {
			t.Errorf("%d: the history has ended: %t", code, !expired)
		}
	}
	if found := w.judge(nil, nil); len(found) > 0 {
		t.Errorf("both are allowed: %q", found)
	}
}

func TestWhatIsLost(t *testing.T) {
	w := newWritten()
	w.record("kept", there, 1, false, nil)
	w.record("vanished", there, 2, false, nil)
	w.record("deleted", gone, 0, false, nil)
	w.record("risen", gone, 0, false, nil)
	w.record("nobody-knows", there, 0, true, errors.New("no answer"))
	lost := strings.Join(w.lost(map[string]int64{"kept": 1, "risen": 3}), "; ")
	if strings.Count(lost, ";") != 1 || !strings.Contains(lost, "vanished was created") || !strings.Contains(lost, "risen was deleted") {
		t.Errorf("lost: %q", lost)
	}
	var r result
	if w.take(&r); r.Acknowledged != 4 || r.Failed != 1 || r.Retried != 1 {
		t.Errorf("counted: %+v", r)
	}
}

func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gaps{last: time.Now()}
		run.Sleep(t.Context(), time.Second)
		g.succeeded(time.Now())
		run.Sleep(t.Context(), 3*time.Second)
		g.succeeded(time.Now())
		run.Sleep(t.Context(), 2*time.Second)
		if is := g.take(time.Now()); is != seconds(3*time.Second) {
			t.Errorf("the longest is %s", is)
		}
		run.Sleep(t.Context(), 5*time.Second)
		if is := g.take(time.Now()); is != seconds(5*time.Second) {
			t.Errorf("one that is not over is %s", is)
		}
		var d delays
		d.begin()
		run.Sleep(t.Context(), 4*time.Second)
		if is := d.take(); is != seconds(4*time.Second) || d.count() != 0 {
			t.Errorf("what is not done yet takes %s", is)
		}
		d.end()
		run.Sleep(t.Context(), time.Minute)
		if is := d.take(); is != seconds(4*time.Second) || d.count() != 1 {
			t.Errorf("what was done took %s", is)
		}
	})
}

// A client asks another server at once, and the only one after a while; it stays where it was answered.
func TestClientsTryAgainOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		several, dead := servers{all: make([]*kubernetes.Clientset, 3)}, 0
		tries := 0
		request := func(context.Context, *kubernetes.Clientset, bool) error {
			if tries++; several.at%3 == dead {
				return errors.New("no answer")
			}
			return nil
		}
		if retried, err := several.do(t.Context(), request); !retried || err != nil || tries != 2 {
			t.Errorf("the next answers: %t, %v after %d", retried, err, tries)
		}
		if retried, err := several.do(t.Context(), request); retried || err != nil || tries != 3 {
			t.Errorf("it stays there: %t, %v after %d", retried, err, tries)
		}
		began, only := time.Now(), servers{all: make([]*kubernetes.Clientset, 1)}
		retried, err := only.do(t.Context(), func(context.Context, *kubernetes.Clientset, bool) error { return errors.New("no answer") })
		if !retried || err == nil || time.Since(began) != again {
			t.Errorf("nobody answers: %t, %v after %s", retried, err, time.Since(began))
		}
	})
}

func TestWhatWasStartedAgain(t *testing.T) {
	n := restarted(map[string]int{"same": 1, "again": 1, "replaced": 0}, map[string]int{"same": 1, "again": 3, "new": 0})
	if n != 3 {
		t.Errorf("%d were started again or replaced", n)
	}
}
