// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// teams is a random cluster: pods of several teams, which their namespaces name, some of them in gangs.
type teams struct {
	r    *rand.Rand
	snap *framework.Snapshot
	n    int
}

func newTeams(r *rand.Rand) *teams {
	c := &teams{r: r, snap: &framework.Snapshot{Index: map[string]int{}}}
	for i := range 1 + r.IntN(6) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
		info := framework.NewNodeInfo(n)
		info.Allocatable = framework.Resources{MilliCPU: int64(2 + r.IntN(7)), Pods: 100}
		for info.Requested.MilliCPU < info.Allocatable.MilliCPU && r.IntN(8) > 0 {
			p := c.pod(fmt.Sprint("team-", r.IntN(3)), int64(1+r.IntN(3)))
			if info.Requested.MilliCPU+p.Requests.MilliCPU <= info.Allocatable.MilliCPU {
				if p.Pod.DeletionTimestamp == nil && r.IntN(12) == 0 {
					now := metav1.NewTime(time.Unix(5000, 0))
					p.Pod.DeletionTimestamp = &now
				}
				info = info.WithPod(p)
			}
		}
		c.snap.Index[n.Name] = len(c.snap.Nodes)
		c.snap.Nodes = append(c.snap.Nodes, info)
	}
	return c
}

func (c *teams) pod(team string, cpu int64) *framework.PodInfo {
	c.n++
	priority := int32(c.r.IntN(3))
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprint("p", c.n), Namespace: team, UID: types.UID(fmt.Sprint("u", c.n)),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(c.n), 0)),
	}}
	p.Spec.Priority = &priority
	if c.r.IntN(3) == 0 {
		name := fmt.Sprint("gang-", c.r.IntN(2))
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
	}
	return &framework.PodInfo{Pod: p, Requests: framework.Resources{MilliCPU: cpu, Pods: 1}}
}

// TestReclaimTakesNoMoreThanItHasTo, over random clusters: the room is enough, no pod could stay in its
// place, gangs go whole, no team loses what is within its share, and where nothing is found nothing would have helped.
func TestReclaimTakesNoMoreThanItHasTo(t *testing.T) {
	placed, refused := 0, 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 7))
		c := newTeams(r)
		share := int64(r.IntN(8))
		claim := &Claim{
			GroupOf: func(p *corev1.Pod) string { return p.Namespace },
			Whole:   func(p *corev1.Pod) bool { return p.Spec.SchedulingGroup != nil },
		}
		for i := range 2 { // nobody takes anything from the third team
			claim.Allowed = append(claim.Allowed, framework.Allowance{
				Group: fmt.Sprint("team-", i), Keep: map[corev1.ResourceName]int64{corev1.ResourceCPU: share}, Highest: 2,
			})
		}
		units, err := claim.Units(c.snap)
		if err != nil {
			t.Fatal(err)
		}
		p := Problem{Need: 1 + r.IntN(3), Snapshot: c.snap}
		for range p.Need {
			p.Members = append(p.Members, c.pod("owner", int64(1+r.IntN(3))))
		}
		cycle := &toy{r: r, members: p.Members, reserved: map[int]string{}, t: t}
		plan, victims := Reclaim(t.Context(), p, cycle, units)
		gone := map[types.UID]bool{}
		for _, u := range victims {
			for _, v := range u {
				gone[v.Pod.Pod.UID] = true
			}
		}
		c.keepsShares(t, seed, share, gone)
		if plan.Placed {
			placed++
			c.enough(t, seed, &p, &plan, gone)
			for _, u := range victims {
				c.needed(t, seed, &p, &plan, gone, u)
			}
		} else if refused++; len(victims) > 0 {
			t.Errorf("seed %d: %d units go for nothing", seed, len(victims))
		}
		if !plan.Placed && p.Need == 1 {
			c.hopeless(t, seed, p.Members[0], units)
		}
	}
	if placed < 500 || refused < 500 {
		t.Errorf("%d placed, %d not: the clusters say little", placed, refused)
	}
}

// keepsShares works out, in another way, who is within its team's share.
func (c *teams) keepsShares(t *testing.T, seed uint64, share int64, gone map[types.UID]bool) {
	for _, team := range []string{"team-0", "team-1", "team-2"} {
		byUnit := map[string][]*corev1.Pod{}
		cpu := map[string]int64{}
		for _, n := range c.snap.Nodes {
			for _, p := range n.Pods {
				if p.Pod.Namespace != team || p.Pod.DeletionTimestamp != nil {
					continue
				}
				key := p.Pod.Name
				if g := p.Pod.Spec.SchedulingGroup; g != nil {
					key = *g.PodGroupName
				}
				byUnit[key] = append(byUnit[key], p.Pod)
				cpu[key] += p.Requests.MilliCPU
			}
		}
		var order []string
		for key, pods := range byUnit {
			order = append(order, key)
			dead := 0
			for _, p := range pods {
				if gone[p.UID] {
					dead++
				}
			}
			if dead != 0 && dead != len(pods) {
				t.Errorf("seed %d: %d of the %d pods of %s go", seed, dead, len(pods), key)
			}
			if dead != 0 && team == "team-2" {
				t.Errorf("seed %d: a pod of a team goes that was not asked for", seed)
			}
		}
		most := func(key string) (priority int32, oldest int64) {
			for i, p := range byUnit[key] {
				if at := p.CreationTimestamp.Unix(); i == 0 || at < oldest {
					oldest = at
				}
				priority = max(priority, *p.Spec.Priority)
			}
			return priority, oldest
		}
		slices.SortFunc(order, func(a, b string) int {
			pa, oa := most(a)
			pb, ob := most(b)
			if pa != pb {
				return int(pb - pa)
			}
			return int(oa - ob)
		})
		left := share
		for _, key := range order {
			if cpu[key] > left {
				continue
			}
			left -= cpu[key]
			if gone[byUnit[key][0].UID] {
				t.Errorf("seed %d: %s of %s goes, which is within its share", seed, key, team)
			}
		}
	}
}

// load of a node without those who go, and with the members that get it.
func (c *teams) load(p *Problem, plan *Plan, node *framework.NodeInfo, gone map[types.UID]bool) (load int64, hosts bool) {
	for _, o := range node.Pods {
		if !gone[o.Pod.UID] {
			load += o.Requests.MilliCPU
		}
	}
	for i, name := range plan.Nodes {
		if name == node.Node.Name {
			load, hosts = load+p.Members[i].Requests.MilliCPU, true
		}
	}
	return load, hosts
}

func (c *teams) enough(t *testing.T, seed uint64, p *Problem, plan *Plan, gone map[types.UID]bool) {
	for _, n := range c.snap.Nodes {
		if load, hosts := c.load(p, plan, n, gone); hosts && load > n.Allocatable.MilliCPU {
			t.Errorf("seed %d: node %s would have %d of %d", seed, n.Node.Name, load, n.Allocatable.MilliCPU)
		}
	}
}

// needed says that a unit could not have stayed.
func (c *teams) needed(t *testing.T, seed uint64, p *Problem, plan *Plan, gone map[types.UID]bool, u Unit) {
	for _, v := range u {
		delete(gone, v.Pod.Pod.UID)
	}
	over := false
	for _, v := range u {
		n := c.snap.Node(v.Node)
		load, hosts := c.load(p, plan, n, gone)
		over = over || hosts && load > n.Allocatable.MilliCPU
	}
	if !over {
		t.Errorf("seed %d: %s could have stayed", seed, u[0].Pod.Pod.Name)
	}
	for _, v := range u {
		gone[v.Pod.Pod.UID] = true
	}
}

// hopeless says that one pod would not fit even without all that may go.
func (c *teams) hopeless(t *testing.T, seed uint64, p *framework.PodInfo, units []Unit) {
	free := map[string]int64{}
	for _, n := range c.snap.Nodes {
		free[n.Node.Name] = n.Allocatable.MilliCPU - n.Requested.MilliCPU
	}
	for _, u := range units {
		for _, v := range u {
			free[v.Node] += v.Pod.Requests.MilliCPU
		}
	}
	for name, cpu := range free {
		if cpu >= p.Requests.MilliCPU {
			t.Errorf("seed %d: node %s could have %d, the pod asks for %d", seed, name, cpu, p.Requests.MilliCPU)
		}
	}
}
