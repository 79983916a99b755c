// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host/pool"
)

// maker makes numbered instances, and knows which were stopped.
type maker struct {
	pool    *pool.Pool[int]
	made    int
	stopped []int
	used    map[int]time.Time
	took    time.Duration
	fails   error
	failed  []error
}

func newMaker(size int) *maker {
	m := &maker{used: map[int]time.Time{}}
	m.pool = pool.New(pool.Config[int]{
		Size: size, Patience: time.Second,
		Start: func(context.Context) (int, error) {
			time.Sleep(m.took)
			if m.fails != nil {
				return 0, m.fails
			}
			m.made++
			m.used[m.made] = time.Now()
			return m.made, nil
		},
		Stop:     func(n int) { m.stopped = append(m.stopped, n) },
		LastUsed: func(n int) time.Time { return m.used[n] },
		Failed:   func(err error) { m.failed = append(m.failed, err) },
	})
	return m
}

func (m *maker) take(t *testing.T, want int) {
	t.Helper()
	if got, err := m.pool.Take(t.Context()); err != nil || got != want {
		t.Fatalf("took instance %d, %v, expected %d", got, err, want)
	}
}

func (m *maker) expect(t *testing.T, alive int, stopped ...int) {
	t.Helper()
	if got := m.pool.Alive(); got != alive || !slices.Equal(m.stopped, stopped) {
		t.Fatalf("%d instances exist, %v are stopped, expected %d and %v", got, m.stopped, alive, stopped)
	}
}

func TestTheWarmOneIsLentAgain(t *testing.T) {
	m := newMaker(3)
	m.take(t, 1)
	m.take(t, 2)
	m.pool.Give(1)
	m.pool.Give(2)
	m.take(t, 2)
	m.take(t, 1)
	m.take(t, 3)
	m.expect(t, 3)
	m.pool.Drop(3)
	m.expect(t, 2, 3)
}

func TestACallWaitsOnlySoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMaker(1)
		m.take(t, 1)
		start := time.Now()
		if _, err := m.pool.Take(t.Context()); !errors.Is(err, pool.ErrBusy) || time.Since(start) != time.Second {
			t.Errorf("with all busy: %v after %s", err, time.Since(start))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m.pool.Take(ended); !errors.Is(err, pool.ErrEnded) {
			t.Errorf("a call that ended: %v", err)
		}
		time.AfterFunc(time.Second/2, func() { m.pool.Give(1) })
		m.take(t, 1)
	})
}

func TestAStartThatFailsKeepsNoPlace(t *testing.T) {
	m := newMaker(1)
	m.fails = errors.New("no memory")
	for range 3 {
		if _, err := m.pool.Take(t.Context()); !errors.Is(err, m.fails) {
			t.Fatal(err)
		}
	}
	m.fails = nil
	m.take(t, 1)
	m.expect(t, 1)
}

// TestWhatFailedIsReplaced: one that is thrown away is followed by another before anybody asks,
// unless one is idle, and a failure to start it is told.
func TestWhatFailedIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMaker(2)
		m.take(t, 1)
		m.pool.Replace(t.Context(), 1)
		synctest.Wait()
		m.expect(t, 1, 1)
		m.take(t, 2)
		m.take(t, 3)
		m.pool.Give(3)
		m.pool.Replace(t.Context(), 2)
		synctest.Wait()
		m.expect(t, 1, 1, 2)

		m.take(t, 3)
		m.fails = errors.New("no memory")
		m.pool.Replace(t.Context(), 3)
		synctest.Wait()
		m.expect(t, 0, 1, 2, 3)
		if len(m.failed) != 1 {
			t.Errorf("failures: %v", m.failed)
		}
	})
}

// TestWhatNobodyUsesIsStopped: the longest idle first, and the last one only where another starts at once.
func TestWhatNobodyUsesIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMaker(3)
		m.took = time.Second
		for i := range 3 {
			m.take(t, i+1)
		}
		for i := range 3 {
			m.pool.Give(i + 1)
		}
		m.pool.StopIdle(m.used[2])
		m.expect(t, 2, 1)
		m.pool.StopIdle(time.Now().Add(time.Hour))
		m.expect(t, 1, 1, 2)
		m.pool.Started(time.Millisecond)
		m.pool.StopIdle(time.Now().Add(time.Hour))
		m.expect(t, 0, 1, 2, 3)
	})
}

func TestCloseWaitsAndStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMaker(3)
		m.take(t, 1)
		m.take(t, 2)
		m.pool.Give(2)
		time.AfterFunc(time.Minute, func() { m.pool.Give(1) })
		start := time.Now()
		if !m.pool.Close() || time.Since(start) != time.Minute {
			t.Errorf("closed after %s, before what was lent had come back", time.Since(start))
		}
		m.expect(t, 0, 2, 1)
		if _, err := m.pool.Take(t.Context()); !errors.Is(err, pool.ErrClosed) {
			t.Error(err)
		}
		if m.pool.Close() {
			t.Error("closed twice")
		}
	})
}
