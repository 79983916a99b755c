// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// laborious finds no node for some pods, after a long time.
type laborious struct {
	world *world
	takes time.Duration
	tried int
}

func (*laborious) Name() string { return "Laborious" }

func (l *laborious) PreFilter(_ context.Context, _ *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	if !strings.HasPrefix(p.Pod.Name, "dear") {
		return nil, nil
	}
	l.tried++
	l.world.now = l.world.now.Add(l.takes)
	return nil, framework.NewStatus(framework.Error, "that took long")
}

// TestPodsThatTakeLongHoldUpTheirNamespaceAlone: gangs, and pods with claims, that are tried for as long as they may
// be have a tenth of the scheduler's time, however many there are of them.
func TestPodsThatTakeLongHoldUpTheirNamespaceAlone(t *testing.T) {
	for what, dear := range map[string]func(w *world, name string){
		"gangs": func(w *world, name string) {
			w.members(name, 1, "1", 0)
			w.group(name, 1, 0, func(*schedulingv1beta1.PodGroup) {})
		},
		"claims": func(w *world, name string) {
			p, none := pod(name, "1"), "none"
			// The template's claim was intentionally not made, so that there is nothing to look for.
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &none}}
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
			w.add(p)
		},
	} {
		t.Run(what, func(t *testing.T) {
			l := &laborious{takes: 10 * time.Second}
			w := newWorld(t, 1, scheduler.Weighted{Plugin: l})
			l.world = w
			w.node("a", "4", "x")
			for _, name := range []string{"dear-1", "dear-2", "dear-3", "dear-4"} {
				dear(w, name)
			}
			w.run(t, 10*time.Minute)
			if spent := time.Duration(l.tried) * l.takes; spent > 100*time.Second || spent < 50*time.Second {
				t.Errorf("of ten minutes they had %s", spent)
			}
			other := pod("other", "1")
			w.add(other)
			w.run(t, time.Second)
			if w.pods["other"].Spec.NodeName != "a" {
				t.Error("a pod of the namespace that is not of their kind waits for them")
			}
		})
	}
}

// TestWhatIsUsualIsNoDebt: pods that are quickly decided about are tried again and again.
func TestWhatIsUsualIsNoDebt(t *testing.T) {
	l := &laborious{takes: 20 * time.Millisecond}
	w := newWorld(t, 1, scheduler.Weighted{Plugin: l})
	l.world = w
	w.node("a", "4", "x")
	w.members("dear", 1, "1", 0)
	w.group("dear", 1, 0)
	w.run(t, 10*time.Minute)
	if l.tried < 50 {
		t.Errorf("a pod that backs off for ten seconds at most was tried %d times in ten minutes", l.tried)
	}
}

// late is a plugin in whose n-th call the time of a gang is over.
type late struct {
	n, called int
	end       context.CancelCauseFunc
	why       error
}

func (*late) Name() string { return "Late" }

func (l *late) PreFilter(_ context.Context, _ *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	if !strings.HasPrefix(p.Pod.Name, "dear") {
		return nil, nil
	}
	if l.called++; l.called == l.n {
		l.end(l.why)
	}
	return nil, nil
}

// TestALookForAGangsPlaceEnds: wherever it is when its time is over, it says so, and no pod goes of which it is not
// known that it has to.
func TestALookForAGangsPlaceEnds(t *testing.T) {
	for n := 1; ; n++ {
		l := &late{n: n}
		w := newWorld(t, 1, scheduler.Weighted{Plugin: l})
		w.node("a", "4", "x")
		for _, name := range []string{"low-0", "low-1", "low-2", "low-3"} {
			w.add(pod(name, "1"))
		}
		w.run(t, time.Second)
		w.v.BoundGang(func(ctx context.Context, why error) (context.Context, context.CancelFunc) {
			bounded, end := context.WithCancelCause(ctx)
			l.end, l.why = end, why
			return bounded, func() { end(nil) }
		})
		w.members("dear", 1, "1", 10)
		w.group("dear", 1, 10)
		w.v.Step(t.Context())
		gone := 5 - len(w.pods)
		if l.called < n { // it was done before
			if gone != 1 || n < 5 {
				t.Errorf("%d pods went for one, after %d calls", gone, l.called)
			}
			return
		}
		if gone != 0 {
			t.Errorf("%d pods went for a gang whose time was over at step %d", gone, n)
		}
		if got := w.told["group dear"]; !strings.Contains(got, "takes longer than 10s to place") {
			t.Errorf("at step %d the group is told %q", n, got)
		}
	}
}
