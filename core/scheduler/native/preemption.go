// SPDX-License-Identifier: Apache-2.0

package native

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policylisters "k8s.io/client-go/listers/policy/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Preemption makes room for a pod by naming pods of lower priority that would have
// to go. It chooses as upstream's DefaultPreemption does: the node where the fewest
// disruption budgets are violated, then where the most important victim is the least
// important, then by the sum of the victims' priorities, their number, and how
// long the most important one has been running.
type Preemption struct {
	Budgets policylisters.PodDisruptionBudgetLister
	// Percent of the nodes are worked out, and Least at least; nil: 10 and 100.
	Percent, Least *int32
}

// Name implements framework.Plugin.
func (Preemption) Name() string { return "DefaultPreemption" }

// Bounds of the nodes that are worked out: a tenth of the cluster, but this many at least.
const (
	candidatePercent = 10
	candidatesLeast  = 100
)

// PostFilter implements framework.PostFilter.
func (pl Preemption) PostFilter(ctx context.Context, _ *framework.State, p *framework.PodInfo, snap *framework.Snapshot,
	failed map[string]*framework.Status, sim framework.Simulator,
) (*framework.Nomination, *framework.Status) {
	if why := ineligible(p.Pod, snap, failed); why != "" {
		return nil, framework.NewStatus(framework.Unschedulable, "preemption: "+why)
	}
	budgets, err := pl.Budgets.List(labels.Everything())
	if err != nil {
		return nil, framework.AsStatus(fmt.Errorf("list disruption budgets: %w", err))
	}
	enough := pl.candidates(len(snap.Nodes))
	reasons := map[string]int{}
	var found []*candidate
	for _, n := range snap.Nodes {
		st := failed[n.Node.Name]
		if st == nil || st.Code != framework.Unschedulable {
			reasons["Preemption is not helpful for scheduling"]++
			continue
		}
		c, why := pl.victims(ctx, p, n, budgets, sim)
		if ctx.Err() != nil {
			return nil, framework.AsStatus(ctx.Err())
		}
		if c == nil {
			reasons[why]++
			continue
		}
		if found = append(found, c); len(found) >= enough {
			break
		}
	}
	if len(found) == 0 {
		if p.Pod.Status.NominatedNodeName != "" {
			return &framework.Nomination{}, nil // the room that it was promised will not come
		}
		return nil, pl.unhelpful(len(snap.Nodes), reasons)
	}
	if v, ok := sim.(framework.Vetter); ok {
		left, st := vet(ctx, v, found)
		switch {
		case !st.IsSuccess() && st.Code == framework.Error:
			return nil, st
		case len(left) == 0 && p.Pod.Status.NominatedNodeName != "":
			return &framework.Nomination{}, nil
		case len(left) == 0:
			return nil, framework.NewStatus(framework.Unschedulable, "preemption: no candidate node for preemption: "+st.Joined()+".")
		}
		found = left
	}
	best := slices.MinFunc(found, (*candidate).compare)
	return &framework.Nomination{Node: best.node, Victims: best.victims}, nil
}

// vet has the extenders agree to who goes, or choose others.
func vet(ctx context.Context, v framework.Vetter, found []*candidate) ([]*candidate, *framework.Status) {
	ask := make([]framework.Candidate, len(found))
	for i, c := range found {
		ask[i] = framework.Candidate{Node: c.info, Victims: c.victims, Violations: c.violations}
	}
	answer, st := v.Vet(ctx, ask)
	if !st.IsSuccess() {
		return nil, st
	}
	left := make([]*candidate, len(answer))
	for i, a := range answer {
		victims := slices.SortedStableFunc(slices.Values(a.Victims), importance)
		left[i] = &candidate{node: a.Node.Node.Name, info: a.Node, victims: victims, violations: a.Violations}
	}
	return left, nil
}

// candidates is how many nodes of so many are worked out.
func (pl Preemption) candidates(nodes int) int {
	percent, least := candidatePercent, candidatesLeast
	if pl.Percent != nil {
		percent = int(*pl.Percent)
	}
	if pl.Least != nil {
		least = int(*pl.Least)
	}
	return max(nodes*percent/100, least, 1)
}

// unhelpful words why no room can be made: "preemption: 0/3 nodes are available: ...".
func (pl Preemption) unhelpful(nodes int, reasons map[string]int) *framework.Status {
	var parts []string
	for why, n := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", n, why))
	}
	slices.Sort(parts)
	return framework.NewStatus(framework.Unschedulable,
		fmt.Sprintf("preemption: 0/%d nodes are available: %s.", nodes, strings.Join(parts, ", ")))
}

// ineligible says why a pod may not have others removed; "" = it may.
func ineligible(p *corev1.Pod, snap *framework.Snapshot, failed map[string]*framework.Status) string {
	if p.Spec.PreemptionPolicy != nil && *p.Spec.PreemptionPolicy == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	nominated := p.Status.NominatedNodeName
	n := snap.Node(nominated)
	if n == nil {
		return ""
	}
	if st := failed[nominated]; st != nil && st.Code == framework.Unresolvable {
		return "" // the promise is worth nothing any more
	}
	for _, other := range n.Pods {
		if other.Pod.DeletionTimestamp != nil && corev1helpers.PodPriority(other.Pod) < corev1helpers.PodPriority(p) && preempted(other.Pod) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

func preempted(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// candidate is a node with the pods that would have to leave it.
type candidate struct {
	node       string
	info       *framework.NodeInfo
	victims    []*framework.PodInfo // the most important first
	violations int
}

// victims works out the fewest pods that have to leave a node: all of lower
// priority go, and those that can stay come back, the most important first and those
// whose budget would be violated before the others.
func (pl Preemption) victims(ctx context.Context, p *framework.PodInfo, n *framework.NodeInfo, budgets []*policyv1.PodDisruptionBudget,
	sim framework.Simulator,
) (*candidate, string) {
	var lower []*framework.PodInfo
	for _, other := range n.Pods {
		if corev1helpers.PodPriority(other.Pod) < corev1helpers.PodPriority(p.Pod) {
			lower = append(lower, other)
		}
	}
	if len(lower) == 0 {
		return nil, "No preemption victims found for incoming pod"
	}
	if st := sim.Fits(ctx, n, lower); !st.IsSuccess() {
		return nil, strings.Join(st.Reasons, ", ")
	}
	slices.SortStableFunc(lower, importance)
	violating, others := split(lower, budgets)
	gone := lower
	c := &candidate{node: n.Node.Name, info: n}
	reprieve := func(v *framework.PodInfo) bool {
		without := slices.DeleteFunc(slices.Clone(gone), func(o *framework.PodInfo) bool { return o == v })
		if !sim.Fits(ctx, n, without).IsSuccess() {
			return false
		}
		gone = without
		return true
	}
	for _, v := range violating {
		if !reprieve(v) {
			c.violations++
		}
	}
	for _, v := range others {
		reprieve(v)
	}
	c.victims = gone
	if len(gone) == 0 {
		return nil, "No preemption victims found for incoming pod"
	}
	return c, ""
}

// importance orders the most important pod first: by priority, then by how long it runs.
func importance(a, b *framework.PodInfo) int {
	if c := cmp.Compare(corev1helpers.PodPriority(b.Pod), corev1helpers.PodPriority(a.Pod)); c != 0 {
		return c
	}
	return started(a.Pod).Compare(started(b.Pod).Time)
}

func started(p *corev1.Pod) metav1.Time {
	if p.Status.StartTime != nil {
		return *p.Status.StartTime
	}
	return p.CreationTimestamp
}

// split tells pods whose removal violates a disruption budget from those whose
// doesn't. Each removal takes from its budgets.
func split(pods []*framework.PodInfo, budgets []*policyv1.PodDisruptionBudget) (violating, others []*framework.PodInfo) {
	allowed := make([]int32, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
	}
	for _, p := range pods {
		violates := false
		for i, b := range budgets {
			if !covers(b, p.Pod) {
				continue
			}
			// What the budget's status counts as going already is no further disruption.
			if _, counted := b.Status.DisruptedPods[p.Pod.Name]; counted {
				continue
			}
			if allowed[i]--; allowed[i] < 0 {
				violates = true
			}
		}
		if violates {
			violating = append(violating, p)
		} else {
			others = append(others, p)
		}
	}
	return violating, others
}

func covers(b *policyv1.PodDisruptionBudget, p *corev1.Pod) bool {
	if b.Namespace != p.Namespace || len(p.Labels) == 0 {
		return false
	}
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && !s.Empty() && s.Matches(labels.Set(p.Labels))
}

// Protected implements framework.GroupPostFilter: a disruption budget would be violated.
func (pl Preemption) Protected(units [][]*framework.PodInfo) ([]bool, error) {
	budgets, err := pl.Budgets.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list disruption budgets: %w", err)
	}
	var all []*framework.PodInfo
	for _, u := range units {
		all = append(all, u...)
	}
	violating, _ := split(all, budgets)
	violates := map[*framework.PodInfo]bool{}
	for _, p := range violating {
		violates[p] = true
	}
	out := make([]bool, len(units))
	for i, u := range units {
		out[i] = slices.ContainsFunc(u, func(p *framework.PodInfo) bool { return violates[p] })
	}
	return out, nil
}

// compare is negative where c is the better node to choose.
func (c *candidate) compare(o *candidate) int {
	if d := cmp.Compare(c.violations, o.violations); d != 0 {
		return d
	}
	if d := cmp.Compare(corev1helpers.PodPriority(c.victims[0].Pod), corev1helpers.PodPriority(o.victims[0].Pod)); d != 0 {
		return d
	}
	if d := cmp.Compare(c.sum(), o.sum()); d != 0 {
		return d
	}
	if d := cmp.Compare(len(c.victims), len(o.victims)); d != 0 {
		return d
	}
	// The later the most important victims began, the less is lost.
	return -c.earliest().Compare(o.earliest().Time)
}

// sum of the victims' priorities, moved so that negative ones count too.
func (c *candidate) sum() (total int64) {
	for _, v := range c.victims {
		total += int64(corev1helpers.PodPriority(v.Pod)) + 1<<31
	}
	return total
}

// earliest start among the victims of the highest priority.
func (c *candidate) earliest() metav1.Time {
	first := started(c.victims[0].Pod)
	for _, v := range c.victims {
		if t := started(v.Pod); corev1helpers.PodPriority(v.Pod) == corev1helpers.PodPriority(c.victims[0].Pod) && t.Before(&first) {
			first = t
		}
	}
	return first
}
