// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/store"
)

// paced is a resource whose changes the test makes itself, so that time can be
// that of a bubble: nothing of it runs by itself.
type paced struct {
	t        *testing.T
	resource *Resource
	revision int64
}

func newPaced(t *testing.T) *paced {
	t.Helper()
	c, err := New(Config{Store: struct{ store.Store }{}}) // it is never asked: the cache does not run
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Register("/registry/things/", func(string, []byte, int64) (*object.Object, labels.Set, fields.Set, error) {
		return &object.Object{}, nil, nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.replace(nil, 1)
	return &paced{t: t, resource: r, revision: 1}
}

// write changes one object.
func (p *paced) write(key string) {
	p.revision++
	p.resource.apply(
		[]store.Event{{Type: store.Put, KV: store.KV{Key: "/registry/things/" + key, Value: []byte("x"), ModRevision: p.revision}}})
}

// seen is what one watcher has been told, and when.
type seen struct {
	revisions []int64
	at        []time.Time // of each revision
	returns   int         // of Next
}

// follow has watchers of the key prefix note what they see until the test ends.
func (p *paced) follow(number int, prefix string) []*seen {
	p.t.Helper()
	all := make([]*seen, number)
	for i := range all {
		w, err := p.resource.Watch(p.t.Context(), WatchOptions{Prefix: prefix})
		if err != nil {
			p.t.Fatal(err)
		}
		s := &seen{}
		all[i] = s
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				events, err := w.Next(p.t.Context())
				if err != nil {
					if !errors.Is(err, ErrStopped) && p.t.Context().Err() == nil {
						p.t.Error(err)
					}
					return
				}
				s.returns++
				for _, e := range events {
					s.revisions, s.at = append(s.revisions, e.Revision), append(s.at, time.Now())
				}
			}
		}()
		p.t.Cleanup(func() {
			w.Stop()
			<-done
		})
	}
	synctest.Wait()
	return all
}

// A change that comes after a quiet time is seen at once, however many watch.
func TestAQuietCrowdIsWokenAtOnce(t *testing.T) {
	for _, number := range []int{1, crowd - 1, crowd, 500} {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPaced(t)
				all := p.follow(number, "")
				for range 3 {
					written := time.Now()
					p.write("a")
					synctest.Wait()
					for i, s := range all {
						if len(s.revisions) == 0 || s.revisions[len(s.revisions)-1] != p.revision || !s.at[len(s.at)-1].Equal(written) {
							t.Fatalf("watcher %d of %d has not seen revision %d at once, but %v at %v", i, number, p.revision, s.revisions, s.at)
						}
					}
					time.Sleep(crowdPause)
				}
			})
		})
	}
}

// However fast changes come, a crowd is woken no more often than its pause
// allows, and no change waits for longer than that; fewer watchers see each at once.
func TestABusyCrowdIsWokenInTurns(t *testing.T) {
	for _, c := range []struct {
		watchers int
		pause    time.Duration
	}{
		{1, 0},
		{crowd - 1, 0},
		{crowd, 5 * time.Millisecond},
		{200, 20 * time.Millisecond},
		{500, 50 * time.Millisecond},
		{2000, 50 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(c.watchers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPaced(t)
				all := p.follow(c.watchers, "")
				const every, changes = time.Millisecond, 400
				written := map[int64]time.Time{}
				var want []int64
				for range changes {
					p.write("a")
					written[p.revision] = time.Now()
					want = append(want, p.revision)
					synctest.Wait()
					time.Sleep(every)
				}
				time.Sleep(crowdPause)
				synctest.Wait()
				most := changes
				if c.pause > 0 {
					most = int(changes*every/c.pause) + 1
				}
				for i, s := range all {
					if !slices.Equal(s.revisions, want) {
						t.Fatalf("watcher %d saw %v", i, s.revisions)
					}
					if s.returns > most {
						t.Errorf("watcher %d was woken %d times, want %d at most", i, s.returns, most)
					}
					for j, revision := range s.revisions {
						if late := s.at[j].Sub(written[revision]); late > c.pause {
							t.Fatalf("watcher %d saw revision %d after %v, want %v at most", i, revision, late, c.pause)
						}
					}
				}
			})
		})
	}
}

// Who watches a single object beside a busy crowd is not held up with it.
func TestWatchersOfOneObjectDoNotWaitForTheCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t)
		p.follow(500, "")
		one := p.follow(1, "/registry/things/a")[0]
		for i := range 100 {
			p.write([]string{"a", "b"}[i%2])
			written := time.Now()
			synctest.Wait()
			if i%2 == 0 && (len(one.at) != i/2+1 || !one.at[i/2].Equal(written)) {
				t.Fatalf("change %d was not seen at once: %v", i, one.at)
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// The last of a crowd to stay, and one that comes late, miss nothing: the turns
// go on for whoever is there.
func TestACrowdThatGoesInTheMiddleOfATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t)
		stays := p.follow(1, "")[0]
		var others []*Watcher
		for range 300 {
			w, err := p.resource.Watch(t.Context(), WatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, w)
		}
		p.write("a") // at once
		synctest.Wait()
		p.write("a") // waits for the crowd's turn
		synctest.Wait()
		if len(stays.revisions) != 1 {
			t.Fatalf("saw %v, want the first change alone", stays.revisions)
		}
		for _, w := range others {
			w.Stop()
		}
		time.Sleep(crowdPause)
		synctest.Wait()
		if !slices.Equal(stays.revisions, []int64{2, 3}) {
			t.Errorf("saw %v, want both changes", stays.revisions)
		}
	})
}
