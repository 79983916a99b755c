// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func (w *world) group(name string, least, priority int32, change ...func(*schedulingv1beta1.PodGroup)) {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: least}
	g.Spec.Priority = &priority
	for _, c := range change {
		c(g)
	}
	w.v.SetGroup(g)
}

func within(key string) func(*schedulingv1beta1.PodGroup) {
	return func(g *schedulingv1beta1.PodGroup) {
		g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
			Topology: []schedulingv1beta1.TopologyConstraint{{Key: key}},
		}
	}
}

// members adds pods of a group, or of none.
func (w *world) members(group string, n int, cpu string, priority int32) {
	for i := range n {
		p := pod(fmt.Sprintf("%s-%d", group, i), cpu)
		p.Spec.SchedulingGroup, p.Spec.Priority = &corev1.PodSchedulingGroup{PodGroupName: &group}, &priority
		w.add(p)
	}
}

// run lets the scheduler work for a time.
func (w *world) run(t *testing.T, d time.Duration) {
	t.Helper()
	end := w.now.Add(d)
	for range 100_000 {
		_, worked, next := w.v.Step(t.Context())
		switch {
		case worked:
		case next.IsZero() || next.After(end):
			w.now = end
			return
		default:
			w.now = next
		}
	}
	t.Fatal("the scheduler does not come to rest")
}

// on counts the pods of a group that have nodes, by the value of a node's zone.
func (w *world) on(group string) (n int, zones map[string]int) {
	zones = map[string]int{}
	for _, node := range w.v.Snapshot().Nodes {
		for _, p := range node.Pods {
			if g := p.Pod.Spec.SchedulingGroup; g != nil && *g.PodGroupName == group {
				n++
				zones[node.Node.Labels[corev1.LabelTopologyZone]]++
			}
		}
	}
	return n, zones
}

func (w *world) expect(t *testing.T, group string, n int) {
	t.Helper()
	if got, _ := w.on(group); got != n {
		t.Fatalf("%d pods of %s have nodes, want %d; it says %q", got, group, n, w.told["group "+group])
	}
}

func (w *world) says(t *testing.T, about, part string) {
	t.Helper()
	if got := w.told[about]; !strings.Contains(got, part) {
		t.Fatalf("%s says %q, want %q", about, got, part)
	}
}

// A gang is placed once all of it is there and fits, and not before.
func TestAGangIsPlacedWholeOrNotAtAll(t *testing.T) {
	w := newWorld(t, 1)
	w.node("a", "4", "x")
	w.members("g", 6, "1", 0)
	w.run(t, time.Second)
	w.says(t, "g-0", "waiting for pod group default/g, which does not exist")
	w.group("g", 8, 0)
	w.run(t, time.Second)
	w.says(t, "group g", "False gang needs 8 pods, 6 exist")
	for i := range 6 {
		w.says(t, fmt.Sprint("g-", i), "waiting for all of the 8 pods that its gang needs")
	}
	for i := 6; i < 8; i++ {
		p := pod(fmt.Sprintf("g-%d", i), "1")
		p.Spec.SchedulingGroup, p.Spec.Priority = w.pods["g-0"].Spec.SchedulingGroup, w.pods["g-0"].Spec.Priority
		w.add(p)
	}
	w.run(t, time.Second)
	w.expect(t, "g", 0)
	w.says(t, "group g", "False gang needs 8 pods, 4 fit: 0/1 nodes are available: 1 Insufficient cpu.")
	w.says(t, "g-7", "gang needs 8 pods, 4 fit: 0/1 nodes are available: 1 Insufficient cpu.")
	w.add(pod("single", "4")) // a gang that does not fit holds nothing
	w.run(t, time.Second)
	if w.pods["single"].Spec.NodeName != "a" {
		t.Fatal("the gang that does not fit holds the node")
	}
	w.node("b", "4", "y")
	w.run(t, time.Minute)
	w.expect(t, "g", 0)
	w.node("c", "4", "y")
	w.run(t, time.Minute)
	w.expect(t, "g", 8)
	w.says(t, "group g", "True")

	// Who comes later needs no others; one that dies is replaced alone.
	w.node("d", "2", "y")
	for _, name := range []string{"g-8", "g-9"} {
		p := pod(name, "1")
		p.Spec.SchedulingGroup, p.Spec.Priority = w.pods["g-0"].Spec.SchedulingGroup, w.pods["g-0"].Spec.Priority
		w.add(p)
	}
	w.run(t, time.Minute)
	w.expect(t, "g", 10)
}

// A gang that is larger than the cluster blocks nobody, and is not tried again without a reason.
func TestAGangLargerThanTheCluster(t *testing.T) {
	w := newWorld(t, 1)
	for i := range 10 {
		w.node(fmt.Sprint("n", i), "4", "x")
	}
	w.group("big", 100, 100)
	w.members("big", 100, "1", 100)
	w.group("small", 40, 0)
	w.members("small", 40, "1", 0)
	w.run(t, 4*time.Minute)
	w.expect(t, "big", 0)
	w.expect(t, "small", 40)
	w.says(t, "group big", "gang needs 100 pods, 40 fit: ")
	w.node("more", "4", "x")
	w.group("big", 4, 100) // its minCount is lowered
	w.run(t, time.Minute)
	w.expect(t, "big", 4)
}

func TestAGangStaysWithinOneZone(t *testing.T) {
	w := newWorld(t, 1)
	for i, zone := range []string{"x", "x", "y", "y", "y", "z"} {
		w.node(fmt.Sprint("n", i), "4", zone)
	}
	w.group("g", 10, 0, within(corev1.LabelTopologyZone))
	w.members("g", 10, "1", 0)
	w.group("h", 9, 0, within(corev1.LabelTopologyZone))
	w.members("h", 9, "1", 0)
	w.run(t, time.Minute)
	w.expect(t, "g", 10)
	if _, zones := w.on("g"); zones["y"] != 10 {
		t.Errorf("zones %v", zones)
	}
	w.expect(t, "h", 0)
	w.says(t, "group h", "gang needs 9 pods in one topology.kubernetes.io/zone, 8 fit in the best of 3: ")
	// One that dies comes back to the zone of the others.
	w.add(pod("filler", "2"))
	p := w.pods["g-3"]
	w.v.RemovePod(p)
	again := pod("g-again", "1")
	again.Spec.SchedulingGroup, again.Spec.Priority = p.Spec.SchedulingGroup, p.Spec.Priority
	w.add(again)
	w.run(t, time.Minute)
	if n, zones := w.on("g"); n != 10 || len(zones) != 1 {
		t.Errorf("%d pods in zones %v", n, zones)
	}
}

// A gang makes room as one: no more pods go than have to, and none where it would not fit anyway.
func TestAGangPreemptsAsOne(t *testing.T) {
	w := newWorld(t, 1)
	for i := range 4 {
		w.node(fmt.Sprint("n", i), "4", "x")
	}
	for i := range 8 {
		w.add(pod(fmt.Sprint("low-", i), "2"))
	}
	w.run(t, time.Second)
	w.group("huge", 17, 10)
	w.members("huge", 17, "1", 10)
	w.run(t, time.Second)
	w.expect(t, "huge", 0)
	w.says(t, "group huge", "preemption: 16 would fit without all pods of lower priority.")
	if len(w.v.Snapshot().Nodes[0].Pods) != 2 {
		t.Fatal("pods were removed for a gang that does not fit")
	}
	w.group("g", 6, 10)
	w.members("g", 6, "1", 10)
	w.run(t, time.Minute)
	w.expect(t, "g", 6)
	left := 0
	for name := range w.pods {
		if strings.HasPrefix(name, "low-") {
			left++
		}
	}
	if left != 5 {
		t.Errorf("%d pods of low priority are left, want 5", left)
	}
}

// The pods of a group that goes together go together, for a gang and for a single pod.
func TestAGroupIsRemovedAsOne(t *testing.T) {
	together := func(g *schedulingv1beta1.PodGroup) {
		g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
	}
	for name, preemptor := range map[string]func(*world){
		"gang": func(w *world) { w.group("g", 2, 10); w.members("g", 2, "2", 10) },
		"pod": func(w *world) {
			p, priority := pod("important", "2"), int32(10)
			p.Spec.Priority = &priority
			w.add(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			for i := range 3 {
				w.node(fmt.Sprint("n", i), "4", "x")
			}
			w.group("low", 3, 0, together)
			w.members("low", 3, "4", 0)
			w.run(t, time.Second)
			w.expect(t, "low", 3)
			preemptor(w)
			w.run(t, time.Second)
			w.expect(t, "low", 0)
		})
	}
}

// Several pods of a group stand in one pod's way: each of the group is removed once.
func TestAGroupWithSeveralVictimsIsRemovedOnce(t *testing.T) {
	w := newWorld(t, 1)
	for i := range 2 {
		w.node(fmt.Sprint("n", i), "4", "x")
	}
	w.group("low", 4, 0, func(g *schedulingv1beta1.PodGroup) {
		g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
	})
	w.members("low", 4, "2", 0)
	w.run(t, time.Second)
	w.expect(t, "low", 4)
	p, priority := pod("important", "4"), int32(10)
	p.Spec.Priority = &priority
	w.add(p)
	w.run(t, time.Second)
	w.expect(t, "low", 0)
	if deleted := w.deleted; len(deleted) != 4 {
		t.Errorf("deleted: %q; want each of the group once", deleted)
	}
}

// Two gangs that both want what only one can have never hold parts of it, whatever happens
// around them: no pod of a gang has a node while fewer than it needs have.
func TestNoGangIsEverHalfPlaced(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // it is to be repeated
		w := newWorld(t, seed)
		needs := map[string]int{}
		nodes, groups, singles := 0, 0, 0
		for range 40 {
			switch r.IntN(5) {
			case 0:
				w.node(fmt.Sprint("n", nodes), fmt.Sprint(1+r.IntN(4)), fmt.Sprint("z", r.IntN(3)))
				nodes++
			case 1, 2:
				name, n := fmt.Sprint("g", groups), 1+r.IntN(8)
				groups++
				needs[name] = 1 + r.IntN(n)
				priority := int32(0)
				if r.IntN(2) == 0 {
					w.group(name, int32(needs[name]), priority)
				} else {
					w.group(name, int32(needs[name]), priority, within(corev1.LabelTopologyZone))
				}
				w.members(name, n, []string{"300m", "700m", "1", "2"}[r.IntN(4)], priority)
			case 3:
				w.add(pod(fmt.Sprint("s", singles), "500m"))
				singles++
			case 4:
				if p := w.pods[fmt.Sprint("s", r.IntN(singles+1))]; p != nil {
					w.v.RemovePod(p)
					delete(w.pods, p.Name)
				}
			}
			w.run(t, time.Duration(r.IntN(20))*time.Second)
			for name, need := range needs {
				if n, _ := w.on(name); n != 0 && n < need {
					t.Fatalf("seed %d: %d pods of %s have nodes, and it needs %d", seed, n, name, need)
				}
			}
		}
	}
}
