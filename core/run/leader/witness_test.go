// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// Whatever is seen when: nobody is gone of whom nothing is known, who has just answered, or of whom a process that was held up
// heard nothing in that time; and who is gone is seen to be, in time.
func TestWhatIsSeenOfAHolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sighting
		start := time.Unix(1_000_000, 0)
		now, accepted, heard, steady := start, time.Time{}, time.Time{}, time.Time{}
		inRow := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			gap := time.Duration(rapid.IntRange(200, 300).Draw(t, "gap")) * time.Millisecond
			if rapid.IntRange(0, 9).Draw(t, "stalls") == 0 {
				gap += time.Duration(rapid.IntRange(400, 5000).Draw(t, "stall")) * time.Millisecond
			}
			if now = now.Add(gap); gap > heldUp {
				steady, inRow = now, 0
			}
			if s.looked.IsZero() {
				steady = now
			}
			s.look(now)
			began := now
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "takes")) * time.Millisecond)
			switch rapid.IntRange(0, 2).Draw(t, "comes") {
			case 0:
				s.result(began, now, nil)
				accepted, heard, inRow = now, now, 0
			case 1:
				s.result(began, now, syscall.ECONNREFUSED)
				heard = now
				inRow++
			case 2:
				s.result(began, now, errors.New("no route to host"))
			}
			quiet := heard
			if steady.After(quiet) {
				quiet = steady
			}
			if want := !accepted.IsZero() && inRow >= refusals; s.ended() != want {
				t.Fatalf("it has ended: %t, after %d refusals, accepted %s", s.ended(), inRow, accepted)
			}
			if want := !accepted.IsZero() && now.Sub(quiet) >= silence; s.silent(now) != want {
				t.Fatalf("it is silent: %t, nothing came for %s", s.silent(now), now.Sub(quiet))
			}
			if s.silent(now.Add(heldUp)) && now.Add(heldUp).Sub(s.looked) > heldUp {
				t.Fatal("a process that does not look says that another is silent")
			}
		}
	})
}

// What was asked later counts, whichever answer comes first.
func TestAnswersThatComeLate(t *testing.T) {
	var s sighting
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	s.look(at(0))
	s.result(at(0), at(1), nil)
	for _, ms := range []int{250, 500, 750} {
		s.look(at(ms))
	}
	s.result(at(500), at(800), syscall.ECONNREFUSED)
	s.result(at(750), at(801), syscall.ECONNREFUSED)
	if s.result(at(250), at(802), nil); !s.ended() {
		t.Error("an answer from before the refusals counts as one after them")
	}
}

func TestAddressesAreTheirHolders(t *testing.T) {
	for _, c := range []struct{ holder, written, want string }{
		{"b_1", "192.0.2.7:6443 b_1", "192.0.2.7:6443"},
		{"b_1", "192.0.2.7:6443 a_1", ""},
		{"b_1", "", ""},
		{"", "192.0.2.7:6443 ", ""},
		{"b_1", "192.0.2.7:6443", ""},
	} {
		l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(c.holder)}}
		l.Annotations = map[string]string{placed: c.written}
		if got := addressOf(l); got != c.want {
			t.Errorf("%q, written %q: %q", c.holder, c.written, got)
		}
	}
}

// scene is where processes compete for a lease whose work may overlap for a moment, and look at each other.
type scene struct {
	t     *testing.T
	store stored
	ways  map[string]*way
	ends  map[string]context.CancelFunc
	began chan string
	all   sync.WaitGroup

	mu      sync.Mutex
	apart   map[[2]string]bool   // who do not reach each other
	died    map[string]bool      // and refuse
	working map[string]time.Time // since when another does, too
	overlap time.Duration        // the longest
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return &scene{
		t: t, ways: map[string]*way{}, ends: map[string]context.CancelFunc{}, began: make(chan string, 1000),
		apart: map[[2]string]bool{}, died: map[string]bool{}, working: map[string]time.Time{},
	}
}

func (s *scene) enter(ctx context.Context, ids ...string) {
	for _, id := range ids {
		w := &way{store: &s.store}
		ctx, end := context.WithCancel(ctx)
		s.ways[id], s.ends[id] = w, end
		e := Election{
			Client: w, Namespace: "kube-system", Name: "test", Identity: id, Logger: slog.New(slog.DiscardHandler),
			LeaseDuration: 15 * time.Second, Quick: 4 * time.Second, Address: id,
			Probe: func(ctx context.Context, to string) error { return s.connect(ctx, id, to) },
		}
		s.all.Go(func() {
			if err := e.Stand(ctx, func(ctx context.Context) error { return s.work(ctx, id) }); err != nil {
				s.t.Errorf("%s: %v", id, err)
			}
		})
	}
}

func (s *scene) work(ctx context.Context, id string) error {
	s.record(id, true)
	s.began <- id
	<-ctx.Done()
	s.record(id, false)
	return nil
}

// record measures how long each works on beside those that have followed it.
func (s *scene) record(id string, works bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if works {
		for other, followed := range s.working {
			if followed.IsZero() {
				s.working[other] = now
			}
		}
		s.working[id] = time.Time{}
		return
	}
	if followed := s.working[id]; !followed.IsZero() {
		s.overlap = max(s.overlap, now.Sub(followed))
	}
	delete(s.working, id)
}

func (s *scene) connect(ctx context.Context, from, to string) error {
	s.mu.Lock()
	lost, died := s.apart[[2]string{from, to}] || s.apart[[2]string{to, from}], s.died[to]
	s.mu.Unlock()
	switch {
	case lost || s.ways[from].isCut() || s.ways[to].isCut() && !died:
		<-ctx.Done()
		return ctx.Err()
	case died:
		return syscall.ECONNREFUSED
	}
	return nil
}

// kill ends a process without a word to anybody.
func (s *scene) kill(id string) {
	s.ways[id].set(true, 0)
	s.mu.Lock()
	s.died[id] = true
	s.mu.Unlock()
	s.ends[id]()
	s.record(id, false)
}

func (s *scene) part(a, b string, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apart[[2]string{a, b}] = yes
}

func (w *way) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

// act runs a test of one scene on virtual time: one leads, two and three wait, since a minute.
func act(t *testing.T, do func(ctx context.Context, s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := newScene(t)
		s.enter(ctx, "one")
		<-s.began
		s.enter(ctx, "two", "three")
		time.Sleep(time.Minute)
		do(ctx, s)
		cancel()
		s.all.Wait()
	})
}

// A holder that is killed is followed within half a second and a little, one that is cut off within a second and a half.
func TestWhoIsGoneIsFollowedAtOnce(t *testing.T) {
	for into := range 20 {
		for what, c := range map[string]struct {
			do     func(s *scene)
			within time.Duration
		}{
			"killed":  {func(s *scene) { s.kill("one") }, 600 * time.Millisecond},
			"cut off": {func(s *scene) { s.ways["one"].set(true, 0) }, 1500 * time.Millisecond},
		} {
			act(t, func(_ context.Context, s *scene) {
				time.Sleep(time.Duration(into*37) * time.Millisecond)
				c.do(s)
				since := time.Now()
				if next := <-s.began; next == "one" || time.Since(since) > c.within {
					t.Errorf("%s, %s follows after %s", what, next, time.Since(since))
				}
				time.Sleep(time.Minute)
				if len(s.began) > 0 {
					t.Errorf("%s, and another follows then: %s", what, <-s.began)
				}
				if s.overlap > 3200*time.Millisecond { // four fifths of a lease, from before the cut
					t.Errorf("%s, and two worked for %s", what, s.overlap)
				}
			})
		}
	}
}

// A holder that others don't reach, and that reaches the store, gives way with its next renewal, once: nobody takes it back from
// whom he has never seen.
func TestAPairThatIsCut(t *testing.T) {
	act(t, func(_ context.Context, s *scene) {
		s.part("one", "two", true)
		if next := <-s.began; next != "two" {
			t.Errorf("%s leads", next)
		}
		time.Sleep(5 * time.Minute)
		s.part("one", "two", false)
		time.Sleep(5 * time.Minute)
		if s.overlap > time.Second || len(s.began) > 0 {
			t.Errorf("two worked for %s, and %d lead after that", s.overlap, len(s.began))
		}
	})
}

// A store that is slow, for however long a lease bears, and processes that wait and are held up, take the lease from nobody.
func TestSlowStoresAndBusyMachinesKeepTheHolder(t *testing.T) {
	act(t, func(_ context.Context, s *scene) {
		for _, d := range []time.Duration{500, 1500, 2400, 1000, 2000, 2400} {
			stalled(d*time.Millisecond, s.ways["one"], s.ways["two"], s.ways["three"])
			time.Sleep(20 * time.Second)
		}
		if len(s.began) > 0 {
			t.Errorf("%s leads: a holder that accepts connections lost the lease to a slow store", <-s.began)
		}
	})
	act(t, func(_ context.Context, s *scene) { // in the minute after a late renewal
		for range 20 { // it depends on when between two renewals
			stalled(2400*time.Millisecond, s.ways["one"])
			if time.Sleep(4100 * time.Millisecond); s.store.lasts() == 15*time.Second {
				break
			}
		}
		if s.store.lasts() != 15*time.Second {
			t.Fatalf("the lease lasts %s", s.store.lasts())
		}
		for _, other := range []string{"two", "three"} {
			s.part("one", other, true)
		}
		time.Sleep(10 * time.Second)
		if len(s.began) > 0 {
			t.Error("silence counts though renewals were late")
		}
		for _, other := range []string{"two", "three"} {
			s.part("one", other, false)
		}
		s.kill("one")
		since := time.Now()
		if <-s.began; time.Since(since) > 600*time.Millisecond {
			t.Errorf("one that was killed is followed after %s", time.Since(since))
		}
	})
}

// Whoever is cut from whom and from the store when: nobody works beside who has followed him for longer than is said, and in the end
// one does.
func TestOverlapsAreBounded(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			act(t, func(_ context.Context, s *scene) {
				chance := rand.New(rand.NewPCG(seed, 7))
				ids := []string{"one", "two", "three"}
				for range 60 {
					a, b := ids[chance.IntN(3)], ids[chance.IntN(3)]
					s.part(a, b, a != b && chance.IntN(2) == 0)
					s.ways[a].set(chance.IntN(4) == 0, []time.Duration{0, 20 * time.Millisecond, 300 * time.Millisecond}[chance.IntN(3)])
					time.Sleep(time.Duration(chance.IntN(9000)) * time.Millisecond)
				}
				for _, id := range ids {
					s.ways[id].set(false, 0)
					for _, other := range ids {
						s.part(id, other, false)
					}
				}
				time.Sleep(time.Minute)
				s.mu.Lock()
				defer s.mu.Unlock()
				if len(s.working) != 1 || s.overlap > 3200*time.Millisecond {
					t.Errorf("%d work in the end, and one did beside another for %s", len(s.working), s.overlap)
				}
			})
		})
	}
}

// A lease that says nothing of its holder's address ends as it always did.
func TestAHolderWithoutAnAddressKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := newScene(t)
		now := metav1.NowMicro()
		if _, err := s.store.put(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("former"), LeaseDurationSeconds: ptr.To(int32(4)), RenewTime: &now, AcquireTime: &now,
		}}); err != nil {
			t.Fatal(err)
		}
		s.enter(ctx, "two")
		since := time.Now()
		if <-s.began; time.Since(since) < 4*time.Second {
			t.Errorf("it is followed after %s", time.Since(since))
		}
		cancel()
		s.all.Wait()
	})
}
