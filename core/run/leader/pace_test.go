// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// stage is where processes compete for one lease.
type stage struct {
	t     *testing.T
	store stored

	mu      sync.Mutex
	working string // whose work has begun and not returned
	began   chan string
	lost    int
}

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{t: t, began: make(chan string, 1000)}
}

// enter begins to compete, with work that takes some time to return. It ends with ctx.
func (s *stage) enter(ctx context.Context, all *sync.WaitGroup, id string, w *way, returns time.Duration) {
	w.store = &s.store
	e := Election{
		Client: w, Namespace: "kube-system", Name: "test", Identity: id, Logger: slog.New(slog.DiscardHandler),
		LeaseDuration: 15 * time.Second, Quick: 4 * time.Second,
	}
	all.Go(func() {
		if err := e.Stand(ctx, func(working context.Context) error { return s.work(ctx, working, id, returns) }); err != nil {
			s.t.Errorf("%s: %v", id, err)
		}
	})
}

func (s *stage) work(ctx, working context.Context, id string, returns time.Duration) error {
	s.mu.Lock()
	if s.working != "" {
		s.t.Errorf("%s works beside %s", id, s.working)
	}
	s.working = id
	s.mu.Unlock()
	s.began <- id
	<-working.Done()
	time.Sleep(returns)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.working == id {
		s.working = ""
	}
	if ctx.Err() == nil {
		s.lost++
	}
	return nil
}

func (s *stage) losses() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// play runs a test of one stage on virtual time, and ends all who compete.
func play(t *testing.T, run func(ctx context.Context, s *stage, all *sync.WaitGroup)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		run(ctx, newStage(t), &all)
		cancel()
		all.Wait()
	})
}

// A leader that is cut off is followed within four seconds and a half, and has stopped before.
func TestAnotherTakesOverSoon(t *testing.T) {
	for _, into := range []time.Duration{0, 100, 300, 500, 660} { // into the time between two renewals
		play(t, func(ctx context.Context, s *stage, all *sync.WaitGroup) {
			one, two, three := &way{}, &way{}, &way{}
			s.enter(ctx, all, "one", one, 300*time.Millisecond)
			<-s.began
			s.enter(ctx, all, "two", two, 0)
			s.enter(ctx, all, "three", three, 0)
			time.Sleep(time.Minute + into*time.Millisecond)
			one.set(true, 0)
			since := time.Now()
			next := <-s.began
			if took := time.Since(since); next == "one" || took > 4500*time.Millisecond || took < 3200*time.Millisecond {
				t.Errorf("cut off %d ms after a minute: %s leads after %s", into, next, took)
			}
			if time.Sleep(4 * time.Second); s.store.lasts() != 4*time.Second {
				t.Errorf("%s leads by leases of %s though another waits", next, s.store.lasts())
			}
			one.set(false, 0)
			time.Sleep(time.Minute)
			if s.losses() != 1 {
				t.Errorf("the leadership was lost %d times", s.losses())
			}
		})
	}
}

// A leader that fails within its first second is followed as soon as any other where somebody waits: no long lease stands in between,
// neither of one that has taken over nor of one that was started again.
func TestALeaderThatFailsAtOnceIsFollowedSoon(t *testing.T) {
	for _, again := range []bool{false, true} {
		play(t, func(ctx context.Context, s *stage, all *sync.WaitGroup) {
			first, end := context.WithCancel(ctx)
			ways := map[string]*way{"one": {}, "two": {}, "three": {}}
			s.enter(first, all, "one", ways["one"], 0)
			<-s.began
			s.enter(ctx, all, "two", ways["two"], 0)
			s.enter(ctx, all, "three", ways["three"], 0)
			time.Sleep(20 * time.Second)
			if again {
				ways["one"].set(true, 0) // killed, before it gives up its lease
			}
			end()
			if again {
				time.Sleep(time.Second)
				ways["one"] = &way{}
				s.enter(ctx, all, "one", ways["one"], 0)
			}
			next := <-s.began
			if again != (next == "one") {
				t.Errorf("%s leads", next)
			}
			time.Sleep(100 * time.Millisecond)
			ways[next].set(true, 0)
			since := time.Now()
			if after := <-s.began; after == next || time.Since(since) > 4500*time.Millisecond {
				t.Errorf("after %s, which failed at once, %s leads after %s", next, after, time.Since(since))
			}
		})
	}
}

// A process alone renews a long lease seldom, also when others have come and gone.
func TestLeasesAreLongWhereNobodyWaits(t *testing.T) {
	play(t, func(ctx context.Context, s *stage, all *sync.WaitGroup) {
		s.enter(ctx, all, "one", &way{}, 0)
		<-s.began
		writes := func(d time.Duration) int {
			before := s.store.written()
			time.Sleep(d)
			return s.store.written() - before
		}
		if n := writes(time.Minute); n > 24 || s.store.lasts() != 15*time.Second {
			t.Errorf("alone it writes %d times a minute, for %s each", n, s.store.lasts())
		}
		others, end := context.WithCancel(ctx)
		s.enter(others, all, "two", &way{}, 0)
		s.enter(others, all, "three", &way{}, 0)
		time.Sleep(10 * time.Second)
		if n := writes(time.Minute); n < 76 || n > 98 || s.store.lasts() != 4*time.Second {
			t.Errorf("while others wait %d are written a minute, for %s each", n, s.store.lasts())
		}
		end()
		time.Sleep(2 * time.Minute)
		if n := writes(time.Minute); n > 24 || s.store.lasts() != 15*time.Second {
			t.Errorf("alone again it writes %d times a minute, for %s each", n, s.store.lasts())
		}
	})
}

// A renewal that is more than two seconds late loses nothing, and makes leases long for a minute. Stalls that would be too long for quick
// leases cost each process its leadership once, however often they come.
func TestLateRenewalsMakeLeasesLong(t *testing.T) {
	play(t, func(ctx context.Context, s *stage, all *sync.WaitGroup) {
		one, two := &way{}, &way{}
		s.enter(ctx, all, "one", one, 0)
		<-s.began
		s.enter(ctx, all, "two", two, 0)
		stall := func(d, calm time.Duration) { // of the store, for all
			stalled(d, one, two)
			time.Sleep(calm)
		}
		is := func(when string, losses int, lasts time.Duration) {
			t.Helper()
			if s.losses() != losses || s.store.lasts() != lasts {
				t.Errorf("%s: lost %d times, and leases last %s", when, s.losses(), s.store.lasts())
			}
		}
		time.Sleep(time.Minute)
		is("a minute later", 0, 4*time.Second)
		stall(1500*time.Millisecond, 3*time.Second)
		is("after an election of the store", 0, 4*time.Second)
		time.Sleep(700 * time.Millisecond)
		stall(2400*time.Millisecond, 3*time.Second)
		is("after a late renewal", 0, 15*time.Second)
		time.Sleep(time.Minute)
		is("a minute after it", 0, 4*time.Second)
		for range 20 {
			stall(7*time.Second, 45*time.Second)
		}
		if n := s.losses(); n == 0 || n > 2 {
			t.Errorf("twenty stalls of seven seconds lost %d times", n)
		}
	})
}

// A leader whose long lease becomes a quick one, and that never hears so, stops in the time of the quick one.
func TestAQuickLeaseThatIsNotAnswered(t *testing.T) {
	play(t, func(ctx context.Context, s *stage, all *sync.WaitGroup) {
		one := &way{}
		one.fate = func(l *coordinationv1.Lease) {
			if *l.Spec.LeaseDurationSeconds == 4 {
				one.set(true, 0)
			}
		}
		s.enter(ctx, all, "one", one, 0)
		<-s.began
		s.enter(ctx, all, "two", &way{}, 0)
		if next := <-s.began; next != "two" {
			t.Errorf("%s leads", next)
		}
	})
}

// Who takes a lease and hears so when it is over by his own count does not work by it, for another may by then.
// The next one that he takes is long enough for such answers.
func TestALeaseThatIsOverWhenItIsAnswered(t *testing.T) {
	play(t, func(ctx context.Context, s *stage, all *sync.WaitGroup) {
		one, two := &way{}, &way{slow: 5 * time.Second}
		s.enter(ctx, all, "one", one, 0)
		<-s.began
		s.enter(ctx, all, "two", two, 0)
		time.Sleep(time.Minute)
		one.set(true, 0)
		if next := <-s.began; next != "two" {
			t.Errorf("%s leads", next)
		}
		time.Sleep(time.Minute)
		if n := s.losses(); n != 1 || s.store.lasts() != 15*time.Second {
			t.Errorf("the leadership was lost %d times, and leases last %s", n, s.store.lasts())
		}
	})
}

// Renewals whose answers come later than anybody waits for them count all the same, once they are seen to be stored.
func TestARenewalIsFoundDone(t *testing.T) {
	play(t, func(ctx context.Context, s *stage, all *sync.WaitGroup) {
		s.enter(ctx, all, "one", &way{slow: 4 * time.Second}, 0)
		<-s.began
		before := s.store.written()
		time.Sleep(10 * time.Minute)
		if n := s.store.written() - before; s.losses() != 0 || n < 60 {
			t.Errorf("after %d renewals the leadership was lost %d times", n, s.losses())
		}
	})
}

// Whatever the network does to requests and answers, and whoever is cut off when: two never work at once.
func TestNeverTwoWorkWhateverArrives(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			led := 0
			play(t, func(ctx context.Context, s *stage, all *sync.WaitGroup) {
				chance := rand.New(rand.NewPCG(seed, 1))
				ways := []*way{}
				for i := range 3 {
					w := &way{chance: rand.New(rand.NewPCG(seed, uint64(i)+2))}
					ways = append(ways, w)
					s.enter(ctx, all, fmt.Sprintf("p%d", i), w, time.Duration(chance.IntN(700))*time.Millisecond)
				}
				for range 100 {
					w := ways[chance.IntN(len(ways))]
					late := []time.Duration{0, 50 * time.Millisecond, time.Second, 4 * time.Second, 12 * time.Second}[chance.IntN(5)]
					w.set(chance.IntN(3) == 0, late)
					time.Sleep(time.Duration(chance.IntN(20_000)) * time.Millisecond)
				}
				for _, w := range ways {
					w.set(false, 0)
				}
				time.Sleep(time.Minute)
				s.mu.Lock()
				if s.working == "" {
					t.Error("nobody works though all is well again")
				}
				s.mu.Unlock()
				led = len(s.began)
			})
			if led < 2 {
				t.Errorf("%d have led: nothing was tried", led)
			}
		})
	}
}
