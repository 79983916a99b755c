package run

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// journal records what happens in which order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) unit(name string, startup time.Duration) Unit {
	ready := make(chan struct{})
	return Unit{Name: name, Ready: ready, Run: func(ctx context.Context) error {
		j.add("start " + name)
		time.Sleep(startup)
		close(ready)
		<-ctx.Done()
		j.add("stop " + name)
		return nil
	}}
}

func TestUnitsStartInOrderAndStopInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := Group{}
		g.Add(j.unit("store", time.Second))
		g.Add(j.unit("server", time.Second))
		g.Add(j.unit("node", time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		if err := g.Run(ctx, func() { j.add("ready"); cancel() }); err != nil {
			t.Fatal(err)
		}
		want := "start store,start server,start node,ready,stop node,stop server,stop store"
		if got := strings.Join(j.lines, ","); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

func TestAFailureIsNamedAndStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := Group{}
		g.Add(j.unit("store", 0))
		g.Add(Unit{Name: "server", Ready: make(chan struct{}), Run: func(context.Context) error { return errors.New("port 6443 is taken") }})
		g.Add(j.unit("node", 0))
		err := g.Run(t.Context(), func() { t.Error("it was never ready") })
		if err == nil || err.Error() != "server: port 6443 is taken" {
			t.Fatalf("error %v", err)
		}
		if !slices.Equal(j.lines, []string{"start store", "stop store"}) {
			t.Fatalf("journal %v", j.lines)
		}
	})
}

func TestAUnitThatDoesNotStopIsGivenUpOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := Group{StopTimeout: time.Second}
		release := make(chan struct{})
		g.Add(Unit{Name: "stubborn", Run: func(context.Context) error { <-release; return nil }})
		ctx, cancel := context.WithCancel(t.Context())
		err := g.Run(ctx, cancel)
		close(release)
		if err == nil || !strings.Contains(err.Error(), "stubborn did not stop within 1s") {
			t.Fatalf("error %v", err)
		}
	})
}

// TestTwoProcessesNeverWorkAtOnce: the second leads when the first has given up,
// and not before the first one's work has returned.
func TestTwoProcessesNeverWorkAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		election := func(id string) Election {
			return Election{
				Client: client, Namespace: "kube-system", Name: "test", Identity: id, Logger: slog.New(slog.DiscardHandler),
				LeaseDuration: 2 * time.Second, RenewDeadline: time.Second, RetryPeriod: 50 * time.Millisecond,
			}
		}
		var j journal
		working := make(chan string, 2)
		work := func(id string) func(context.Context) error {
			return func(ctx context.Context) error {
				j.add("begin " + id)
				working <- id
				<-ctx.Done()
				j.add("end " + id)
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
		if want := []string{"begin one", "end one", "begin two", "end two"}; !slices.Equal(j.lines, want) {
			t.Fatalf("journal %v, want %v", j.lines, want)
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
			LeaseDuration: 2 * time.Second, RenewDeadline: time.Second, RetryPeriod: 50 * time.Millisecond,
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
