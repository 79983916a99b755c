// SPDX-License-Identifier: Apache-2.0

package shutdown_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/shutdown"
	"github.com/wasmplane/wasmplane/core/run"
)

// machine is one with a login manager, and a node's pods that take their time.
type machine struct {
	began time.Time

	mu     sync.Mutex
	log    []string
	pods   []*corev1.Pod
	takes  map[types.UID]time.Duration
	delay  time.Duration
	signs  chan bool
	broken bool
}

func newMachine(pods ...*corev1.Pod) *machine {
	return &machine{began: time.Now(), pods: pods, takes: map[types.UID]time.Duration{}, delay: 5 * time.Second, signs: make(chan bool)}
}

func (m *machine) say(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, fmt.Sprintf("%v ", time.Since(m.began))+fmt.Sprintf(format, args...))
}

func (m *machine) takeLog() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := strings.Join(m.log, "\n")
	m.log = nil
	return out
}

func (m *machine) connect(context.Context) (shutdown.Power, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		return nil, errors.New("no bus")
	}
	return m, nil
}

func (m *machine) Delay(context.Context) (time.Duration, error) { return m.delay, nil }

func (m *machine) Lengthen(_ context.Context, d time.Duration) error {
	m.say("waits %v", d)
	m.delay = d
	return nil
}

func (m *machine) Hold(context.Context) (func() error, error) {
	m.say("held")
	return func() error { m.say("let go"); return nil }, nil
}

func (m *machine) Shutdowns(context.Context) (<-chan bool, error) { return m.signs, nil }
func (m *machine) Close() error                                   { return nil }

func (m *machine) Remaining() []*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pods)
}

func (m *machine) Terminate(uid types.UID, reason, _ string, grace int64) {
	m.say("%s %s in %ds", uid, reason, grace)
	time.AfterFunc(m.takes[uid], func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pods = slices.DeleteFunc(m.pods, func(p *corev1.Pod) bool { return p.UID == uid })
	})
}

func (m *machine) NodeEvent(_, reason, message string) { m.say("%s: %s", reason, message) }
func (m *machine) Refresh()                            {}

func keep(t *testing.T, m *machine, s shutdown.Settings) (*shutdown.Keeper, func()) {
	t.Helper()
	periods, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	k := shutdown.New(shutdown.Config{Periods: periods, Connect: m.connect, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := run.Go("keeper", func() error { return k.Run(ctx, m) })
	return k, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func expect(t *testing.T, m *machine, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := m.takeLog(); got != strings.Join(want, "\n") {
		t.Errorf("said\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// Pods end in the order of their priorities: the next when the others have ended or had their time. Then the machine goes.
func TestAShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(pod("critical", 2_000_000_000, 600), pod("quick", 0, 30), pod("slow", 0, 30))
		m.takes = map[types.UID]time.Duration{"critical": time.Hour, "quick": time.Second, "slow": 3900 * time.Millisecond}
		k, stop := keep(t, m, shutdown.Settings{Grace: 30 * time.Second, Critical: 10 * time.Second})
		expect(t, m, "0s waits 30s", "0s held")
		if ok, _, _, _ := k.Admit(t.Context(), nil, nil); !ok || k.Unwell() != nil {
			t.Error("a node that stays takes no pods")
		}
		m.signs <- false
		expect(t, m)
		m.signs <- true
		expect(t, m, "0s NodeShutdown: Shutdown manager detected shutdown event", "0s quick Terminated in 20s", "0s slow Terminated in 20s")
		ok, reason, message, err := k.Admit(t.Context(), nil, nil)
		if ok || reason != "NodeShutdown" || message != "Pod was rejected as the node is shutting down." || err != nil {
			t.Errorf("admitted %v: %s, %s, %v", ok, reason, message, err)
		}
		if err := k.Unwell(); err == nil || err.Error() != "node is shutting down" {
			t.Errorf("the node says %v", err)
		}
		time.Sleep(4*time.Second + 200*time.Millisecond)
		expect(t, m, "4s critical Terminated in 10s")
		time.Sleep(10 * time.Second)
		expect(t, m, "14s let go")
		stop()
		expect(t, m)
	})
}

// A shutdown that is taken back keeps the pods whose turn has not come, and the node takes pods again; the next one is held up again.
func TestAShutdownIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(pod("critical", 2_000_000_000, 600), pod("a", 0, 30))
		m.takes["a"], m.takes["critical"] = time.Minute, 100*time.Millisecond
		m.delay = time.Hour
		k, stop := keep(t, m, shutdown.Settings{Grace: 30 * time.Second, Critical: 10 * time.Second})
		m.signs <- true
		expect(t, m, "0s held", "0s NodeShutdown: Shutdown manager detected shutdown event", "0s a Terminated in 20s")
		time.Sleep(time.Second)
		m.signs <- false
		expect(t, m, "1s NodeShutdown: Shutdown manager detected shutdown cancellation")
		if ok, _, _, _ := k.Admit(t.Context(), nil, nil); !ok || k.Unwell() != nil {
			t.Error("the node takes no pods")
		}
		time.Sleep(time.Hour)
		expect(t, m)
		m.signs <- true // all but critical have ended
		expect(t, m, "1h0m1s NodeShutdown: Shutdown manager detected shutdown event", "1h0m1s critical Terminated in 10s")
		time.Sleep(time.Second)
		expect(t, m, "1h0m1.2s let go")
		m.signs <- false
		expect(t, m, "1h0m2s NodeShutdown: Shutdown manager detected shutdown cancellation", "1h0m2s held")
		stop()
		expect(t, m, "1h0m2s let go")
	})
}

// Without somebody to ask the node goes on without, and tries again; so it does when the connection breaks off.
func TestNobodyToAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.broken, m.delay = true, time.Hour
		_, stop := keep(t, m, shutdown.Settings{Grace: 10 * time.Second})
		time.Sleep(10 * time.Minute)
		expect(t, m)
		m.mu.Lock()
		m.broken = false
		m.mu.Unlock()
		time.Sleep(2 * time.Minute)
		m.mu.Lock()
		got := len(m.log)
		m.mu.Unlock()
		if got != 1 {
			t.Errorf("said %q", m.takeLog())
		}
		m.takeLog()
		close(m.signs)
		m.signs = make(chan bool)
		time.Sleep(time.Minute)
		if got := m.takeLog(); !strings.Contains(got, "let go") || !strings.Contains(got, "held") {
			t.Errorf("said %q", got)
		}
		stop()
	})
}
