// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Every watcher of a crowd sees every change once and in order, although it is
// not woken by each: those with a selector too, one that comes in the middle, and
// the few that are left when the crowd has gone.
func TestACrowdSeesEveryChange(t *testing.T) {
	w := newWorld(t)
	_, r := w.cache(watchcache.Config{})
	const watchers = 120
	var want, reds []string
	var revision int64
	write := func(from, to int) {
		for i := from; i < to; i++ {
			color := []string{"blue", "red"}[i%2]
			key := fmt.Sprintf("ns/a%03d", i)
			revision = w.thing(key, color)
			seen := fmt.Sprintf("%s@%d", key, revision)
			want = append(want, seen)
			if color == "red" {
				reds = append(reds, seen)
			}
		}
	}
	crowd := make([]*watchcache.Watcher, watchers)
	answers := make([]chan []string, watchers)
	follow := func(i int, last string) {
		answers[i] = make(chan []string, 1)
		go func() { answers[i] <- w.until(crowd[i], last) }()
	}
	for i := range crowd {
		o := watchcache.WatchOptions{}
		if i%3 == 0 {
			o.Match = red
		}
		crowd[i] = w.watch(r, o)
		follow(i, "ns/a199")
	}
	write(0, 100)
	late := w.watch(r, watchcache.WatchOptions{From: revision})
	write(100, 200)
	for i, answer := range answers {
		expected := want
		if i%3 == 0 {
			expected = reds
		}
		if diff := cmp.Diff(expected, <-answer); diff != "" {
			t.Fatalf("watcher %d (-written +seen):\n%s", i, diff)
		}
	}
	if diff := cmp.Diff(want[100:], w.until(late, "ns/a199")); diff != "" {
		t.Errorf("one that came late (-written +seen):\n%s", diff)
	}
	for _, x := range crowd[2:] {
		x.Stop()
	}
	want, reds = nil, nil
	follow(1, "ns/a219")
	write(200, 220)
	if diff := cmp.Diff(want, <-answers[1]); diff != "" {
		t.Errorf("one that stayed (-written +seen):\n%s", diff)
	}
}

// until reads until something happened to the key last; an error ends it too.
func (w *world) until(x *watchcache.Watcher, last string) []string {
	var got []string
	for {
		events, err := x.Next(w.ctx())
		if err != nil {
			return append(got, err.Error())
		}
		for _, e := range events {
			key := strings.TrimPrefix(e.Item.Key, "/registry/things/")
			got = append(got, fmt.Sprintf("%s@%d", key, e.Revision))
			if key == last {
				return got
			}
		}
	}
}
