// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

const zone = "zone"

// toy decides by cpu alone, for any node that has enough.
type toy struct {
	r        *rand.Rand
	members  []*framework.PodInfo
	reserved map[int]string
	t        *testing.T
}

func (c *toy) Template(i int) string { return fmt.Sprint(c.members[i].Requests.MilliCPU) }

func (c *toy) Decide(_ context.Context, i int, snap *framework.Snapshot, where Where) Answer {
	for _, at := range c.r.Perm(len(snap.Nodes)) {
		n := snap.Nodes[at]
		if where.Only != nil && !slices.Contains(where.Only, at) {
			continue
		}
		if n.Requested.MilliCPU+c.members[i].Requests.MilliCPU <= n.Allocatable.MilliCPU {
			return Answer{Node: n.Node.Name}
		}
	}
	return Answer{}
}

func (c *toy) Reserve(_ context.Context, i int, node string) *framework.Status {
	if c.reserved[i] != "" {
		c.t.Errorf("member %d is reserved twice", i)
	}
	c.reserved[i] = node
	return nil
}

func (c *toy) Unreserve(_ context.Context, i int, node string) {
	if c.reserved[i] != node {
		c.t.Errorf("member %d is given back from %s and was on %s", i, node, c.reserved[i])
	}
	delete(c.reserved, i)
}

func aPod(name string, cpu int64, priority int32, group string) *framework.PodInfo {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
	p.Spec.Priority = &priority
	if group != "" {
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	}
	return &framework.PodInfo{Pod: p, Requests: framework.Resources{MilliCPU: cpu, Pods: 1}}
}

// cluster makes nodes in zones, some of them with pods of lower priority.
func cluster(r *rand.Rand) *framework.Snapshot {
	snap := &framework.Snapshot{Index: map[string]int{}}
	for i := range 1 + r.IntN(4) {
		n := &framework.NodeInfo{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("n", i), Labels: map[string]string{zone: fmt.Sprint("z", r.IntN(2))},
		}}}
		n.Allocatable.MilliCPU = int64(1 + r.IntN(6))
		for j := range r.IntN(3) {
			p := aPod(fmt.Sprintf("low-%d-%d", i, j), int64(1+r.IntN(3)), 0, "")
			if n.Requested.MilliCPU+p.Requests.MilliCPU <= n.Allocatable.MilliCPU {
				n = n.WithPod(p)
			}
		}
		snap.Index[n.Node.Name], snap.Nodes = len(snap.Nodes), append(snap.Nodes, n)
	}
	return snap
}

func gangOf(r *rand.Rand, like bool) []*framework.PodInfo {
	var out []*framework.PodInfo
	size := int64(1 + r.IntN(4))
	for i := range 1 + r.IntN(5) {
		if !like {
			size = int64(1 + r.IntN(4))
		}
		out = append(out, aPod(fmt.Sprint("m", i), size, 10, "g"))
	}
	return out
}

// most is how many members fit at all: every one is tried on every node, and left out.
func most(members []*framework.PodInfo, free []int64) int {
	if len(members) == 0 {
		return 0
	}
	best := most(members[1:], free)
	for i := range free {
		if need := members[0].Requests.MilliCPU; free[i] >= need {
			free[i] -= need
			best = max(best, 1+most(members[1:], free))
			free[i] += need
		}
	}
	return best
}

// fits is what is true of the problem. empty: as if no other pod were there.
func fits(p *Problem, empty bool) bool {
	free := map[string][]int64{}
	for _, n := range p.Snapshot.Nodes {
		value := ""
		if p.Topology != "" {
			value = n.Node.Labels[p.Topology]
		}
		room := n.Allocatable.MilliCPU
		if !empty {
			room -= n.Requested.MilliCPU
		}
		free[value] = append(free[value], room)
	}
	for _, nodes := range free {
		if most(p.Members, nodes) >= p.Need {
			return true
		}
	}
	return false
}

// check holds a plan to what it promises, on a cluster without some pods.
func check(t *testing.T, p *Problem, plan *Plan, gone map[types.UID]bool) {
	t.Helper()
	used, zones, placed := map[string]int64{}, map[string]bool{}, 0
	for i, node := range plan.Nodes {
		if node != "" {
			placed++
			used[node] += p.Members[i].Requests.MilliCPU
			zones[p.Snapshot.Node(node).Node.Labels[zone]] = true
		}
	}
	if !plan.Placed && placed > 0 || plan.Placed && placed < p.Need {
		t.Errorf("placed: %v, and %d of %d have nodes", plan.Placed, placed, p.Need)
	}
	if p.Topology != "" && len(zones) > 1 {
		t.Errorf("the gang is in %d zones", len(zones))
	}
	for _, n := range p.Snapshot.Nodes {
		for _, o := range n.Pods {
			if !gone[o.Pod.UID] {
				used[n.Node.Name] += o.Requests.MilliCPU
			}
		}
		if used[n.Node.Name] > n.Allocatable.MilliCPU {
			t.Errorf("%d of %d are used on node %s", used[n.Node.Name], n.Allocatable.MilliCPU, n.Node.Name)
		}
	}
}

// What is placed is placed whole and where it fits; what cannot be placed is not, and holds
// nothing; pods that are alike are placed wherever that is possible.
func TestDecisionsAreTrue(t *testing.T) {
	placed, refused := 0, 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // it is to be repeated
		like := r.IntN(2) == 0
		p := Problem{Snapshot: cluster(r), Members: gangOf(r, like)}
		p.Need = 1 + r.IntN(len(p.Members))
		if r.IntN(2) == 0 {
			p.Topology = zone
		}
		before := fmt.Sprint(p.Snapshot.Nodes)
		c := &toy{r, p.Members, map[int]string{}, t}
		plan := Decide(t.Context(), p, c)
		check(t, &p, &plan, nil)
		possible := fits(&p, false)
		if plan.Placed && !possible || like && possible && !plan.Placed {
			t.Errorf("placed: %v, possible: %v", plan.Placed, possible)
		}
		for i, node := range plan.Nodes {
			if c.reserved[i] != node {
				t.Errorf("member %d is to be on %q, and reserved on %q", i, node, c.reserved[i])
			}
		}
		if fmt.Sprint(p.Snapshot.Nodes) != before {
			t.Error("the snapshot was changed")
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if plan.Placed {
			placed++
		} else {
			refused++
		}
	}
	if placed < 500 || refused < 500 {
		t.Errorf("%d placed and %d refused: the clusters show nothing", placed, refused)
	}
}

// Where pods go, those that stay and the gang fit together, and none of those that go could stay
// beside it. Where the gang does not fit without them either, none goes.
func TestNoPodGoesInVain(t *testing.T) {
	helped := 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it is to be repeated
		p := Problem{Snapshot: cluster(r), Members: gangOf(r, true)}
		p.Need = 1 + r.IntN(len(p.Members))
		if fits(&p, false) {
			continue
		}
		units, err := Units(p.Snapshot, nil, 10, func(u [][]*framework.PodInfo) ([]bool, error) { return make([]bool, len(u)), nil })
		if err != nil {
			t.Fatal(err)
		}
		c := &toy{r, p.Members, map[int]string{}, t}
		plan, victims := Preempt(t.Context(), p, c, units)
		if len(c.reserved) > 0 {
			t.Errorf("%v is reserved for a gang that waits", c.reserved)
		}
		if plan.Placed != fits(&p, true) || plan.Placed != (len(victims) > 0) {
			t.Errorf("placed: %v, possible: %v, with %d victims", plan.Placed, fits(&p, true), len(victims))
		}
		gone := map[types.UID]bool{}
		for _, u := range victims {
			for _, v := range u {
				gone[v.Pod.Pod.UID] = true
			}
		}
		check(t, &p, &plan, gone)
		used := map[string]int64{}
		for i, node := range plan.Nodes {
			used[node] += p.Members[i].Requests.MilliCPU
		}
		for _, n := range p.Snapshot.Nodes {
			free := n.Allocatable.MilliCPU - used[n.Node.Name]
			for _, o := range n.Pods {
				if !gone[o.Pod.UID] {
					free -= o.Requests.MilliCPU
				}
			}
			for _, o := range n.Pods {
				if gone[o.Pod.UID] && o.Requests.MilliCPU <= free {
					t.Errorf("%s goes from %s, which has %d left", o.Pod.Name, n.Node.Name, free)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if plan.Placed {
			helped++
		}
	}
	if helped < 200 {
		t.Errorf("%d gangs were helped: the clusters show nothing", helped)
	}
}

// As soon as enough of them may be bound all are, and none where too few ever will.
func TestABarrierDecidesOnce(t *testing.T) {
	for _, c := range []struct {
		need  int
		votes []bool
		open  bool
	}{
		{2, []bool{true, false, true}, true},
		{2, []bool{false, true, false}, false},
		{3, []bool{true, true, false}, false},
		{1, []bool{false, false, true}, true},
	} {
		opened := 0
		b := NewBarrier(3, c.need, func() { opened++ })
		for _, v := range c.votes {
			b.Vote(v)
		}
		if !b.Decided() || b.Open() != c.open || c.open != (opened == 1) {
			t.Errorf("%+v: decided %v, open %v, %d times", c, b.Decided(), b.Open(), opened)
		}
	}
	b := NewBarrier(2, 2, nil)
	b.Vote(true)
	b.Withdraw() // the pod was deleted while it waited for the other one
	if !b.Decided() || b.Open() {
		t.Error("one of two was withdrawn")
	}
	b.Vote(true)
	if b.Open() {
		t.Error("what was decided changes")
	}
}
