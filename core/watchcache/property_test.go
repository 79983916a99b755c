// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/watchcache"
)

// model is what a resource was at each revision.
type model struct {
	revs   []int64
	states []map[string]string // color by name
}

// want is what a watcher with a selector has to see from revision number i on.
func (m *model) want(i int, match func(color string) bool) []string {
	var out []string
	for ; i+1 < len(m.states); i++ {
		before, after := m.states[i], m.states[i+1]
		for _, name := range slices.Sorted(maps.Keys(union(before, after))) {
			was, is := before[name], after[name]
			wasIn, isIn := was != "" && match(was), is != "" && match(is)
			switch {
			case was == is:
			case wasIn && isIn:
				out = append(out, fmt.Sprintf("modified %s %s@%d", name, is, m.revs[i+1]))
			case isIn:
				out = append(out, fmt.Sprintf("added %s %s@%d", name, is, m.revs[i+1]))
			case wasIn:
				out = append(out, fmt.Sprintf("deleted %s %s@%d", name, was, m.revs[i+1]))
			}
		}
	}
	return out
}

func union(a, b map[string]string) map[string]string {
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}

// Over random histories, a watch from every revision, with and without a
// selector, gives each event exactly once and in order, and the state of every
// revision can be listed.
func TestEveryRevisionResumesAndLists(t *testing.T) {
	w := newWorld(t)
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		prefix := fmt.Sprintf("/registry/round%d/", round)
		c, err := watchcache.New(watchcache.Config{Store: w.store, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Register(prefix+"things/", decode)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.ctx())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		defer func() {
			cancel()
			<-done
		}()
		<-c.Ready()
		running, err := r.Watch(ctx, watchcache.WatchOptions{Match: reddish, SendInitial: true})
		if err != nil {
			t.Fatal(err)
		}
		defer running.Stop()

		m := randomHistory(t, w, c, prefix+"things/")
		last := m.revs[len(m.revs)-1]
		if _, err := c.Fresh(ctx); err != nil {
			t.Fatal(err)
		}
		isRed := func(color string) bool { return strings.HasPrefix(color, "red") }
		for i, rev := range m.revs {
			equal(t, drain(t, r, watchcache.WatchOptions{From: rev}, last), m.want(i, func(string) bool { return true }))
			equal(t, drain(t, r, watchcache.WatchOptions{From: rev, Match: reddish}, last), m.want(i, isRed))
			l, err := r.ListAt(rev, watchcache.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, it := range l.Items {
				got[strings.TrimPrefix(it.Key, prefix+"things/")] = color(it)
			}
			if !maps.Equal(got, m.states[i]) {
				t.Fatalf("state at %d: got %v, want %v", rev, got, m.states[i])
			}
		}
		equal(t, read(t, running, last), m.want(0, isRed))
	})
}

func randomHistory(t *rapid.T, w *world, c *watchcache.Cache, prefix string) *model {
	m := &model{revs: []int64{c.Revision()}, states: []map[string]string{{}}}
	mods := map[string]int64{}
	for range rapid.IntRange(1, 25).Draw(t, "changes") {
		name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
		color := rapid.SampledFrom([]string{"red", "blue", "none"}).Draw(t, "color")
		state := maps.Clone(m.states[len(m.states)-1])
		var rev int64
		var err error
		switch {
		case color != "none":
			color = fmt.Sprintf("%s-%d", color, len(m.revs)) // every write changes something
			rev, err = w.store.Put(w.ctx(), prefix+name, value(name, color, ""), mods[name], 0)
			mods[name], state[name] = rev, color
		case state[name] != "":
			rev, err = w.store.Delete(w.ctx(), prefix+name, mods[name])
			delete(mods, name)
			delete(state, name)
		default:
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		m.revs, m.states = append(m.revs, rev), append(m.states, state)
	}
	return m
}

func drain(t *rapid.T, r *watchcache.Resource, o watchcache.WatchOptions, last int64) []string {
	x, err := r.Watch(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Stop()
	return read(t, x, last)
}

func reddish(it *watchcache.Item) bool { return strings.HasPrefix(color(it), "red") }

// read reads until the watcher has seen everything up to a revision.
func read(t *rapid.T, x *watchcache.Watcher, last int64) []string {
	var out []string
	for x.Bookmark().Revision < last {
		events, err := x.TryNext()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Type != watchcache.Bookmark {
				name := e.Item.Key[strings.LastIndex(e.Item.Key, "/")+1:]
				out = append(out, fmt.Sprintf("%s %s %s@%d", [...]string{"added", "modified", "deleted"}[e.Type], name, color(e.Item), e.Revision))
			}
		}
	}
	return out
}

func equal(t *rapid.T, got, want []string) {
	if !slices.Equal(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}
