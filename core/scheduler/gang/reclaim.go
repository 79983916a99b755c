// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Claim is who makes room for a pod or a gang, by groups of pods: what a framework.Reclaimer says.
type Claim struct {
	// Allowed groups; the pods of the first ones rather stay.
	Allowed []framework.Allowance
	GroupOf func(*corev1.Pod) string
	// Whole says of a pod whether all of its PodGroup go together; nil = none do.
	Whole func(*corev1.Pod) bool
	// Protected says whether the removal of units violates a rule; nil = of none.
	Protected func([][]*framework.PodInfo) ([]bool, error)
}

// Units are the pods that may make room, as Preempt takes them: the ones that may rather
// stay come first. What leaves already comes last, whoever it belongs to: its room costs nobody anything.
func (c *Claim) Units(snap *framework.Snapshot) ([]Unit, error) {
	groups, leaving := c.collect(snap)
	var may []Unit
	for i := range c.Allowed {
		a := &c.Allowed[i]
		units := groups[a.Group]
		slices.SortStableFunc(units, rank)
		may = append(may, borrowed(units, a)...)
	}
	may, err := protectedFirst(may, c.Protected)
	return append(may, leaving...), err
}

// collect the units of each allowed group, in the order of the nodes, and the pods that leave.
func (c *Claim) collect(snap *framework.Snapshot) (groups map[string][]Unit, leaving []Unit) {
	groups = map[string][]Unit{}
	for i := range c.Allowed {
		groups[c.Allowed[i].Group] = nil
	}
	whole := map[string]map[Key]int{}
	for _, n := range snap.Nodes {
		for _, p := range n.Pods {
			v := Victim{p, n.Node.Name}
			if p.Pod.DeletionTimestamp != nil {
				leaving = append(leaving, Unit{v})
				continue
			}
			group := c.GroupOf(p.Pod)
			units, allowed := groups[group]
			if !allowed {
				continue
			}
			key, member := KeyOf(p.Pod)
			if !member || c.Whole == nil || !c.Whole(p.Pod) {
				groups[group] = append(units, Unit{v})
				continue
			}
			if whole[group] == nil {
				whole[group] = map[Key]int{}
			}
			if at, known := whole[group][key]; known {
				units[at] = append(units[at], v)
				continue
			}
			whole[group][key] = len(units)
			groups[group] = append(units, Unit{v})
		}
	}
	return groups, leaving
}

// borrowed are the units of a group that may go. A unit keeps its place if it fits into what the
// group keeps beside all that are more important and keep theirs.
func borrowed(units []Unit, a *framework.Allowance) (may []Unit) {
	left := maps.Clone(a.Keep)
	for _, u := range units {
		priority, stays := u.priority(), u.fits(left)
		if stays {
			for _, v := range u {
				for name := range left {
					left[name] -= v.Pod.Requests.Of(name)
				}
			}
		}
		if priority <= a.Highest && (!stays || a.Below != nil && priority < *a.Below) {
			may = append(may, u)
		}
	}
	return may
}

func (u Unit) fits(left map[corev1.ResourceName]int64) bool {
	for name, n := range left {
		var asks int64
		for _, v := range u {
			asks += v.Pod.Requests.Of(name)
		}
		if asks > 0 && asks > n {
			return false
		}
	}
	return true
}

// priority of the most important pod.
func (u Unit) priority() int32 {
	highest := corev1helpers.PodPriority(u[0].Pod.Pod)
	for _, v := range u[1:] {
		highest = max(highest, corev1helpers.PodPriority(v.Pod.Pod))
	}
	return highest
}

// rank orders the units of a group, the most important first: by priority, then by how long they run.
func rank(a, b Unit) int {
	return cmp.Or(cmp.Compare(b.priority(), a.priority()), a.started().Compare(b.started()))
}

// Reclaim is Preempt that tries with few of the units first: of a large cluster with a great many that may go,
// mostly a few have to.
func Reclaim(ctx context.Context, p Problem, c Cycle, units []Unit) (Plan, []Unit) {
	for n := firstTail; n < len(units); n *= tailGrowth {
		plan, victims := Preempt(ctx, p, c, units[len(units)-n:])
		if plan.Placed || plan.Err != nil {
			return plan, victims
		}
	}
	return Preempt(ctx, p, c, units)
}

// The last units are tried: so many first, then so many times as many.
const (
	firstTail  = 16
	tailGrowth = 8
)
