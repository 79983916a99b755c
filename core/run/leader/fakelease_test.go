// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

var leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// stored is one lease in a store that compares and swaps.
type stored struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	writes  int
}

func (s *stored) get() (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return nil, apierrors.NewNotFound(leaseResource, "test")
	}
	return s.lease.DeepCopy(), nil
}

func (s *stored) put(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := ""
	if s.lease != nil {
		is = s.lease.ResourceVersion
	}
	if l.ResourceVersion != is {
		return nil, apierrors.NewConflict(leaseResource, "test", errors.New("it has changed"))
	}
	s.version++
	s.writes++
	s.lease = l.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	return s.lease.DeepCopy(), nil
}

func (s *stored) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// lasts is how long the lease is, as stored.
func (s *stored) lasts() time.Duration {
	l, err := s.get()
	if err != nil || l.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
}

// way is how one process reaches the store.
type way struct {
	kubernetes.Interface
	coordinationclient.CoordinationV1Interface
	coordinationclient.LeaseInterface
	store *stored

	mu sync.Mutex
	// cut: nothing arrives. late is how long requests and answers take at the most, slow how long writes
	// take that are stored at once.
	cut  bool
	late time.Duration
	slow time.Duration
	// fate is told what was stored.
	fate   func(*coordinationv1.Lease)
	chance *rand.Rand
	stall  chan struct{} // until it is closed nothing happens; nil: nothing stalls
}

func (w *way) CoordinationV1() coordinationclient.CoordinationV1Interface { return w }

func (w *way) Leases(string) coordinationclient.LeaseInterface { return w }

func (w *way) set(cut bool, late time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut, w.late = cut, late
}

// await returns when nothing stalls.
func (w *way) await() {
	w.mu.Lock()
	stall := w.stall
	w.mu.Unlock()
	if stall != nil {
		<-stall
	}
}

// stalled has all ways stall for a while.
func stalled(d time.Duration, ways ...*way) {
	stall := make(chan struct{})
	for _, w := range ways {
		w.mu.Lock()
		w.stall = stall
		w.mu.Unlock()
	}
	time.Sleep(d)
	close(stall)
}

// delay is how long something takes now; false: it gets lost.
func (w *way) delay() (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late == 0 || w.chance == nil {
		return w.late, !w.cut
	}
	return time.Duration(w.chance.Int64N(int64(w.late))), !w.cut
}

// ask does something at the store some time later, also when nobody waits for its answer any more.
func (w *way) ask(ctx context.Context, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	type answer struct {
		lease *coordinationv1.Lease
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		there, arrives := w.delay()
		if time.Sleep(there); !arrives {
			return
		}
		w.await()
		l, err := do()
		back, arrives := w.delay()
		if time.Sleep(back); arrives {
			answers <- answer{l, err}
		}
	}()
	select {
	case a := <-answers:
		return a.lease, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *way) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return w.ask(ctx, w.store.get)
}

func (w *way) Create(ctx context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return w.ask(ctx, w.put(l))
}

func (w *way) put(l *coordinationv1.Lease) func() (*coordinationv1.Lease, error) {
	return func() (*coordinationv1.Lease, error) {
		defer time.Sleep(w.slow)
		done, err := w.store.put(l)
		if err == nil && w.fate != nil {
			w.fate(done)
		}
		return done, err
	}
}

func (w *way) Update(ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return w.ask(ctx, w.put(l))
}
