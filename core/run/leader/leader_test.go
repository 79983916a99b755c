// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// TestTwoProcessesNeverWorkAtOnce: the second leads when the first has given up,
// and not before the first one's work has returned.
func TestTwoProcessesNeverWorkAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		election := func(id string) Election {
			return Election{
				Client: client, Namespace: "kube-system", Name: "test", Identity: id, Logger: slog.New(slog.DiscardHandler),
				LeaseDuration: 2 * time.Second,
			}
		}
		var journal []string // one writes at a time: that is what is tested
		working := make(chan string, 2)
		work := func(id string) func(context.Context) error {
			return func(ctx context.Context) error {
				journal = append(journal, "begin "+id)
				working <- id
				<-ctx.Done()
				journal = append(journal, "end "+id)
				return nil
			}
		}
		ctx1, cancel1 := context.WithCancel(t.Context())
		ctx2, cancel2 := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := election("one").Lead(ctx1, work("one")); err != nil {
				t.Error(err)
			}
		})
		<-working
		wg.Go(func() {
			if err := election("two").Lead(ctx2, work("two")); err != nil {
				t.Error(err)
			}
		})
		cancel1()
		<-working
		cancel2()
		wg.Wait()
		if want := []string{"begin one", "end one", "begin two", "end two"}; !slices.Equal(journal, want) {
			t.Fatalf("journal %v, want %v", journal, want)
		}
	})
}

// TestWorkBeginsAfreshAfterLeadershipIsLost: while the API takes no renewals the
// work ends, and it begins once more when the lease can be had again.
func TestWorkBeginsAfreshAfterLeadershipIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var down atomic.Bool
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("no answer")
		})
		e := Election{
			Client: client, Namespace: "kube-system", Name: "test", Identity: "one", Logger: slog.New(slog.DiscardHandler),
			LeaseDuration: 2 * time.Second,
		}
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan struct{})
		stood := make(chan error, 1)
		go func() {
			stood <- e.Stand(ctx, func(ctx context.Context) error {
				begun <- struct{}{}
				<-ctx.Done()
				down.Store(false)
				return ctx.Err()
			})
		}()
		for range 3 {
			<-begun
			down.Store(true)
		}
		down.Store(false)
		cancel()
		if err := <-stood; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		bad := errors.New("work failed")
		if err := e.Stand(t.Context(), func(context.Context) error { return bad }); !errors.Is(err, bad) {
			t.Fatalf("a failure of the work itself ends it, not %v", err)
		}
	})
}

// TestWorkEndsBeforeTheLeaseDoes: an API that does not answer holds up neither the
// end of the leadership nor, with it, the end of work.
func TestWorkEndsBeforeTheLeaseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &silent{Interface: fake.NewClientset()}
		e := Election{
			Client: client, Namespace: "kube-system", Name: "test", Identity: "one", Logger: slog.New(slog.DiscardHandler),
			LeaseDuration: 15 * time.Second,
		}
		var worked time.Duration
		err := e.Lead(t.Context(), func(ctx context.Context) error {
			client.fell.Store(true)
			since := time.Now()
			<-ctx.Done()
			worked = time.Since(since)
			return ctx.Err()
		})
		if !errors.Is(err, ErrLeadershipLost) {
			t.Errorf("Lead: %v", err)
		}
		if worked > e.LeaseDuration-time.Second {
			t.Errorf("work went on for %v after the API fell silent; another may lead after %v", worked, e.LeaseDuration)
		}
	})
}

// silent is an API that stops answering about leases: requests end with their contexts.
type silent struct {
	kubernetes.Interface
	fell atomic.Bool
}

func (s *silent) CoordinationV1() coordinationv1client.CoordinationV1Interface {
	return silentCoordination{s.Interface.CoordinationV1(), s}
}

type silentCoordination struct {
	coordinationv1client.CoordinationV1Interface
	api *silent
}

func (c silentCoordination) Leases(namespace string) coordinationv1client.LeaseInterface {
	return silentLeases{c.CoordinationV1Interface.Leases(namespace), c.api}
}

type silentLeases struct {
	coordinationv1client.LeaseInterface
	api *silent
}

func (l silentLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if l.api.fell.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.LeaseInterface.Get(ctx, name, o)
}

func (l silentLeases) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if l.api.fell.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.LeaseInterface.Update(ctx, lease, o)
}

// TestAFollowerIsTold: who waits behind another process knows it, and who leads is not told so.
func TestAFollowerIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		follows := make(chan string, 10)
		election := func(id string) Election {
			return Election{
				Client: client, Namespace: "kube-system", Name: "test", Identity: id, Logger: slog.New(slog.DiscardHandler),
				LeaseDuration: 2 * time.Second,
				Follows:       func() { follows <- id },
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		working := make(chan struct{}, 2)
		var wg sync.WaitGroup
		stand := func(id string) {
			wg.Go(func() {
				if err := election(id).Lead(ctx, func(ctx context.Context) error {
					working <- struct{}{}
					<-ctx.Done()
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		stand("one")
		<-working
		stand("two")
		if id := <-follows; id != "two" {
			t.Errorf("%s follows", id)
		}
		cancel()
		wg.Wait()
		close(follows)
		for id := range follows {
			if id != "two" {
				t.Errorf("%s follows", id)
			}
		}
	})
}

// Who has just come marks the lease that it waits for. A leader that leaves in that moment gives it up all the same.
func TestAMarkDoesNotKeepALeaseFromItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 10 * time.Millisecond
		s := &stored{}
		e := Election{
			Client: &way{store: s, late: late}, Namespace: "kube-system", Name: "test", Identity: "one", Logger: slog.New(slog.DiscardHandler),
		}
		leads := e.acquire(t.Context(), newPace(e))
		time.AfterFunc(5*late/2, func() { // between what the leader reads and what it writes
			is, err := s.get()
			if err != nil {
				t.Error(err)
				return
			}
			metav1.SetMetaDataAnnotation(&is.ObjectMeta, mark, "now")
			if _, err := s.put(is); err != nil {
				t.Error(err)
			}
		})
		leads.release(t.Context())
		is, err := s.get()
		if err != nil || ptr.Deref(is.Spec.HolderIdentity, "") != "" || is.Annotations[mark] == "" {
			t.Errorf("%+v, %v: a successor would wait until the lease ends", is, err)
		}
	})
}
