// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/run"
)

// placed is the annotation by which a holder says at which address it can be seen to live, and that it is this holder who does.
const placed = "leader.wasmplane.dev/address"

// addressOf is where the holder of a lease can be seen to live; "": it does not say.
func addressOf(l *coordinationv1.Lease) string {
	address, holder, _ := strings.Cut(l.Annotations[placed], " ")
	if holder == "" || holder != ptr.Deref(l.Spec.HolderIdentity, "") {
		return "" // a holder of another version, which left its predecessor's
	}
	return address
}

const (
	// looksEvery is how often one that waits connects to the holder.
	looksEvery = 250 * time.Millisecond
	// refusals in a row are those of a process that has ended; a single one may be of one that is just starting.
	refusals = 2
	// silence is how long a holder that answered before may not answer at all: four looks, so that single lost packets don't count.
	silence = time.Second
	// heldUp is how late a look may come. One that comes later says nothing of the holder: this process was held up itself.
	heldUp = 2 * looksEvery
)

// sighting is what one process has seen of another. It decides by the times that it is told, and by nothing else.
type sighting struct {
	seen    bool      // it has accepted a connection: of one that never did nothing is known
	refused int       // in a row
	since   time.Time // when it is silent from
	looked  time.Time
	latest  time.Time // when the look began whose result came last
}

// look is done regularly, whatever comes of it.
func (s *sighting) look(now time.Time) {
	if now.Sub(s.looked) > heldUp {
		s.since, s.refused = now, 0
	}
	s.looked = now
}

// result is what came of the look that began at a time: nothing, if nobody answered.
func (s *sighting) result(began, now time.Time, err error) {
	refused := errors.Is(err, syscall.ECONNREFUSED)
	if began.Before(s.latest) || err != nil && !refused {
		return
	}
	s.latest, s.since = began, now
	if refused {
		s.refused++
		return
	}
	s.seen, s.refused = true, 0
}

// ended: the process has ended.
func (s *sighting) ended() bool { return s.seen && s.refused >= refusals }

// silent: its machine is off, or cut off from this one.
func (s *sighting) silent(now time.Time) bool {
	return s.seen && now.Sub(s.looked) <= heldUp && now.Sub(s.since) >= silence
}

// witness looks whether the holder of a lease lives.
type witness struct {
	probe func(ctx context.Context, address string) error
	// sooner has something in it once the holder is seen to be gone.
	sooner chan struct{}

	mu              sync.Mutex
	holder, address string
	is              sighting
}

func newWitness(e Election) *witness {
	return &witness{probe: e.Probe, sooner: make(chan struct{}, 1)}
}

// follow has the holder of this lease looked at from now on.
func (w *witness) follow(l *coordinationv1.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if holder, at := ptr.Deref(l.Spec.HolderIdentity, ""), addressOf(l); holder != w.holder || at != w.address {
		w.holder, w.address, w.is = holder, at, sighting{}
	}
}

// gone says whether the lease need not end for another to follow: its holder has ended, or is silent
// and counts on the short lease alone. One whose renewals were late of late is given the whole lease.
func (w *witness) gone(l *coordinationv1.Lease, quick time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holder == "" || w.holder != ptr.Deref(l.Spec.HolderIdentity, "") {
		return false
	}
	lasts := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
	return w.is.ended() || lasts <= quick && w.is.silent(time.Now())
}

// run looks until ctx ends.
func (w *witness) run(ctx context.Context) error {
	var looks run.Tasks
	defer looks.Wait()
	for run.Sleep(ctx, looksEvery) {
		began := time.Now()
		w.mu.Lock()
		at, holder := w.address, w.holder
		w.is.look(began)
		w.wake(began)
		w.mu.Unlock()
		if at == "" {
			continue
		}
		looks.Go("leader election: look at the holder", func() {
			one, cancel := context.WithTimeout(ctx, silence)
			defer cancel()
			err := w.probe(one, at)
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.holder == holder && w.address == at && ctx.Err() == nil {
				w.is.result(began, time.Now(), err)
				w.wake(time.Now())
			}
		})
	}
	return nil
}

// wake has who waits look at the lease at once.
func (w *witness) wake(now time.Time) {
	if !w.is.ended() && !w.is.silent(now) {
		return
	}
	select {
	case w.sooner <- struct{}{}:
	default:
	}
}
