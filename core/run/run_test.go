// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
