// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Victim is a pod that may be removed, with the node that it is on.
type Victim struct {
	Pod  *framework.PodInfo
	Node string
}

// Unit is pods that are removed together or not at all.
type Unit []Victim

// Preempt finds nodes for the members where these units may go, the last ones rather than the
// first. It returns those that have to. Nothing stays reserved.
func Preempt(ctx context.Context, p Problem, c Cycle, units []Unit) (Plan, []Unit) {
	plan, t := without(ctx, p, c, units)
	if !plan.Placed {
		return plan, nil
	}
	// The first that may stay with all before it is found by halves: beside those that stay the
	// members are placed where fewer have to go.
	low, high := 0, len(units) // without all from low on they fit, without those from high on they don't
	for high-low > 1 && len(p.Members) <= mostByHalves {
		middle := (low + high) / 2
		if tried, on := without(ctx, p, c, units[middle:]); tried.Placed {
			plan, t, low = tried, on, middle
		} else {
			high = middle
		}
	}
	units = units[low:]
	s := &sparing{Problem: &p, cycle: c, trial: t, plan: &plan, on: map[string][]int{}}
	for i, node := range plan.Nodes {
		if node != "" {
			t.place(p.Members[i], node)
			s.on[node] = append(s.on[node], i)
		}
	}
	var victims []Unit
	for _, u := range units {
		if !s.spare(ctx, u) {
			victims = append(victims, u)
		}
	}
	// Those who stay were judged where they are; what they have against members elsewhere is seen here.
	for node := range s.on {
		if !s.fits(ctx, node) {
			return plan, units
		}
	}
	return plan, victims
}

// mostByHalves bounds the gangs that are placed several times to find who has to go.
const mostByHalves = 2000

// without places the members as if units were gone, and reserves nothing: they are placed again
// once the room is there.
func without(ctx context.Context, p Problem, c Cycle, units []Unit) (Plan, *trial) {
	t := newTrial(p.Snapshot)
	for _, u := range units {
		t.take(u)
	}
	p.Snapshot = &t.snap
	plan := Decide(ctx, p, c)
	for i, node := range plan.Nodes {
		if node != "" {
			c.Unreserve(ctx, i, node)
		}
	}
	return plan, t
}

// Units are the pods of lower priority, those together that go together: the ones that may
// rather stay come first. Of these, those whose removal violates a rule come before the others.
func Units(snap *framework.Snapshot, groups *Groups, priority int32,
	protected func([][]*framework.PodInfo) ([]bool, error),
) ([]Unit, error) {
	whole := map[Key]int{}
	var units []Unit
	for _, n := range snap.Nodes {
		for _, p := range n.Pods {
			if corev1helpers.PodPriority(p.Pod) >= priority {
				continue
			}
			v := Victim{p, n.Node.Name}
			key, member := KeyOf(p.Pod)
			if !member || !groups.together(key) {
				units = append(units, Unit{v})
				continue
			}
			at, known := whole[key]
			if !known {
				at, units = len(units), append(units, nil)
				whole[key] = at
			}
			units[at] = append(units[at], v)
		}
	}
	slices.SortStableFunc(units, importance)
	return protectedFirst(units, protected)
}

// protectedFirst puts units first whose removal violates a rule; protected is nil where there are no rules.
func protectedFirst(units []Unit, protected func([][]*framework.PodInfo) ([]bool, error)) ([]Unit, error) {
	if protected == nil {
		return units, nil
	}
	pods := make([][]*framework.PodInfo, len(units))
	for i, u := range units {
		for _, v := range u {
			pods[i] = append(pods[i], v.Pod)
		}
	}
	violates, err := protected(pods)
	if err != nil {
		return nil, err
	}
	var first, others []Unit
	for i, u := range units {
		if violates[i] {
			first = append(first, u)
		} else {
			others = append(others, u)
		}
	}
	return append(first, others...), nil
}

// importance orders the most important unit first: by priority, whole groups before pods, then by
// how long they run.
func importance(a, b Unit) int {
	return cmp.Or(cmp.Compare(corev1helpers.PodPriority(b[0].Pod.Pod), corev1helpers.PodPriority(a[0].Pod.Pod)),
		cmp.Compare(min(len(b), 2), min(len(a), 2)),
		a.started().Compare(b.started()))
}

func (u Unit) started() (first time.Time) {
	for _, v := range u {
		at := v.Pod.Pod.CreationTimestamp.Time
		if s := v.Pod.Pod.Status.StartTime; s != nil {
			at = s.Time
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// Awaited are the nodes that members are promised, while pods that were removed for them are
// still there; nil where nothing is waited for.
func Awaited(snap *framework.Snapshot, members []*framework.PodInfo, promised func(types.UID) string) map[int]string {
	out, going := map[int]string{}, false
	for i, m := range members {
		node := promised(m.Pod.UID)
		n := snap.Node(node)
		if n == nil {
			continue
		}
		out[i] = node
		for _, o := range n.Pods {
			going = going || corev1helpers.PodPriority(o.Pod) < corev1helpers.PodPriority(m.Pod) && preempted(o.Pod)
		}
	}
	if !going {
		return nil
	}
	return out
}

// preempted says whether a pod is going because somebody needed its room.
func preempted(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// sparing lets units stay beside the members that were placed without them.
type sparing struct {
	*Problem
	cycle Cycle
	trial *trial
	plan  *Plan
	on    map[string][]int // members by node
}

func (s *sparing) spare(ctx context.Context, u Unit) bool {
	for _, v := range u {
		s.trial.place(v.Pod, v.Node)
	}
	for _, v := range u {
		if !s.fits(ctx, v.Node) {
			s.trial.take(u)
			return false
		}
	}
	return true
}

// fits says whether the members on a node have room there now.
func (s *sparing) fits(ctx context.Context, node string) bool {
	for _, i := range s.on[node] {
		s.trial.remove(s.Members[i], node)
		a := s.cycle.Decide(ctx, i, &s.trial.snap, Where{Only: []int{s.trial.snap.Index[node]}, First: node})
		s.trial.place(s.Members[i], node)
		if a.Node != node {
			return false
		}
	}
	return true
}

func (t *trial) take(u Unit) {
	for _, v := range u {
		t.remove(v.Pod, v.Node)
	}
}
