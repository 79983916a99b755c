// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// guard has a say about bindings: at Permit and at PreBind.
type guard struct {
	permit, preBind func(pod string) (*framework.Status, time.Duration)
}

func (guard) Name() string { return "guard" }

func (g guard) Permit(_ context.Context, _ *framework.State, p *framework.PodInfo, _ string) (*framework.Status, time.Duration) {
	if g.permit == nil {
		return nil, 0
	}
	return g.permit(p.Pod.Name)
}

func (g guard) PreBind(_ context.Context, _ *framework.State, p *framework.PodInfo, _ string) *framework.Status {
	if g.preBind == nil {
		return nil
	}
	st, _ := g.preBind(p.Pod.Name)
	return st
}

// once refuses one pod the first time that it comes.
func once(name string, st *framework.Status) func(string) (*framework.Status, time.Duration) {
	done := false
	return func(pod string) (*framework.Status, time.Duration) {
		if pod != name || done {
			return nil, 0
		}
		done = true
		return st, 0
	}
}

// A member that the API refuses to bind is tried again alone: the others keep their nodes, as upstream has it.
func TestABindingOfAGangThatFailsLeavesTheOthers(t *testing.T) {
	w := newWorld(t, 1)
	w.node("a", "4", "x")
	w.node("b", "2", "x")
	failures := 0
	w.fails = func(pod string) error {
		if pod != "g-2" || failures == 2 {
			return nil
		}
		failures++
		return errors.New("the store is busy")
	}
	w.group("g", 6, 0)
	w.members("g", 6, "1", 0)
	w.run(t, 0)
	w.expect(t, "g", 5)
	if len(w.bound) != 5 {
		t.Fatalf("bound are %v", w.bound)
	}
	w.says(t, "g-2", "the store is busy")
	w.says(t, "group g", "True")
	w.run(t, time.Minute)
	w.expect(t, "g", 6)
	if len(w.bound) != 6 || failures != 2 {
		t.Errorf("bound are %v after %d failures", w.bound, failures)
	}
}

// A member that a Permit or PreBind plugin refuses is missing before anything is bound: where the gang needs it, none is
// bound, and all are tried again together. Where the gang does not need it, the others are bound.
func TestAMemberThatIsRefusedBeforeTheBinding(t *testing.T) {
	refusals := map[string]*framework.Status{
		"rejects": framework.NewStatus(framework.Unschedulable, "not now"),
		"fails":   framework.AsStatus(errors.New("out of order")),
	}
	for what, st := range refusals {
		for _, point := range []string{"Permit", "PreBind"} {
			for need, atOnce := range map[int32]int{6: 0, 5: 5} {
				t.Run(fmt.Sprint(point, " ", what, " of ", need), func(t *testing.T) {
					g := guard{permit: once("g-3", st)}
					if point == "PreBind" {
						g = guard{preBind: once("g-3", st)}
					}
					w := newWorld(t, 1, scheduler.Weighted{Plugin: g})
					w.node("a", "4", "x")
					w.node("b", "2", "x")
					w.group("g", need, 0)
					w.members("g", 6, "1", 0)
					for range 7 { // one decision, and one step for each that waits
						w.v.Step(t.Context())
					}
					if len(w.bound) != atOnce {
						t.Fatalf("bound are %v, want %d", w.bound, atOnce)
					}
					w.run(t, 10*time.Minute)
					w.expect(t, "g", 6)
				})
			}
		}
	}
}

// A Permit plugin that has one member wait has all of those wait that the gang needs with it; they hold their room.
func TestAGangWaitsForPermission(t *testing.T) {
	may := false
	w := newWorld(t, 1, scheduler.Weighted{Plugin: guard{permit: func(pod string) (*framework.Status, time.Duration) {
		if pod == "g-1" && !may {
			return framework.NewStatus(framework.Wait), time.Second
		}
		return nil, 0
	}}})
	w.node("a", "4", "x")
	w.group("g", 4, 0)
	w.members("g", 4, "1", 0)
	w.run(t, time.Minute)
	w.add(pod("single", "1"))
	w.run(t, time.Minute)
	if len(w.bound) != 0 {
		t.Fatalf("bound are %v while g-1 waits", w.bound)
	}
	may = true
	w.run(t, time.Minute)
	w.expect(t, "g", 4)
	if w.pods["single"].Spec.NodeName != "" {
		t.Error("the room of the gang was given away while it waited")
	}
}

// A member that waits for permission and is deleted takes the gang with it, if that needs it; its room comes free.
func TestAWaitingMemberIsDeleted(t *testing.T) {
	w := newWorld(t, 1, scheduler.Weighted{Plugin: guard{permit: func(pod string) (*framework.Status, time.Duration) {
		if pod == "g-1" {
			return framework.NewStatus(framework.Wait), time.Second
		}
		return nil, 0
	}}})
	w.node("a", "4", "x")
	w.group("g", 4, 0)
	w.members("g", 4, "1", 0)
	w.run(t, time.Minute)
	if err := w.Delete(t.Context(), w.pods["g-1"]); err != nil {
		t.Fatal(err)
	}
	w.add(pod("single", "4"))
	w.run(t, time.Minute)
	w.expect(t, "g", 0)
	w.says(t, "group g", "gang needs 4 pods, 3 exist")
	if w.pods["single"].Spec.NodeName != "a" {
		t.Error("the gang that can not be bound holds the node")
	}
}

// A scheduler that ends in the middle of a gang's binding leaves a part of it bound. The next one counts those, and
// places the others beside them, in the same zone, however many the group needs.
func TestARestartInTheMiddleOfAGangsBinding(t *testing.T) {
	for _, gone := range []int{0, 1, 3, 5, 6} {
		t.Run(fmt.Sprint(gone, " bound"), func(t *testing.T) {
			w := newWorld(t, 1)
			w.fails = func(string) error {
				if len(w.bound) == gone {
					return context.Canceled // the process ends: nothing is bound any more
				}
				return nil
			}
			build := func(w *world) {
				for i, zone := range []string{"x", "x", "y", "y"} {
					w.node(fmt.Sprint("n", i), "4", zone)
				}
				w.group("g", 6, 0, within(corev1.LabelTopologyZone))
			}
			build(w)
			w.members("g", 6, "1", 0)
			w.run(t, 0)
			w.expect(t, "g", gone)

			next := newWorld(t, 2)
			build(next)
			for i := range 6 {
				next.add(w.pods[fmt.Sprint("g-", i)])
			}
			next.run(t, time.Minute)
			if n, zones := next.on("g"); n != 6 || len(zones) != 1 {
				t.Errorf("%d pods have nodes, in zones %v", n, zones)
			}
			if len(next.bound) != 6-gone {
				t.Errorf("bound again are %v", next.bound)
			}
		})
	}
}
