// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"context"
	"fmt"
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// naiveSpread is what native.Spread has to answer for pods with constraints of their own,
// worked out the long way: it counts every pod on every node in each cycle.
type naiveSpread struct{}

// Name implements framework.Plugin.
func (naiveSpread) Name() string { return "PodTopologySpread" }

// constraint is one topologySpreadConstraint, read for a pod.
type constraint struct {
	*corev1.TopologySpreadConstraint
	selector labels.Selector
	self     int // 1 where the pod itself is one of those that are counted
}

func ownConstraints(p *corev1.Pod, when corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
	var out []constraint
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable != when {
			continue
		}
		s, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("read the labelSelector of a topology spread constraint: %w", err)
		}
		s = withOwnLabels(s, p, c.MatchLabelKeys, nil)
		one := constraint{c, s, 0}
		if s.Matches(labels.Set(p.Labels)) {
			one.self = 1
		}
		out = append(out, one)
	}
	return out, nil
}

// counts says whether a pod is one that the constraint spreads. Those that are going count no more.
func (c *constraint) counts(p, other *corev1.Pod) bool {
	return other.Namespace == p.Namespace && other.DeletionTimestamp == nil && c.selector.Matches(labels.Set(other.Labels))
}

// countOn is how many such pods a node has.
func (c *constraint) countOn(p *corev1.Pod, n *framework.NodeInfo) int {
	count := 0
	for _, other := range n.Pods {
		if c.counts(p, other.Pod) {
			count++
		}
	}
	return count
}

// includes says whether the constraint looks at a node at all.
func (c *constraint) includes(p *corev1.Pod, n *corev1.Node, fits func(*corev1.Node) bool) bool {
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if !fits(n) {
			return false
		}
	}
	if c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
		for i := range n.Spec.Taints {
			t := &n.Spec.Taints[i]
			if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !tolerated(p, t) {
				return false
			}
		}
	}
	return true
}

// fitting answers whether a node is one that the pod's nodeSelector and required node affinity allow.
func fitting(p *corev1.Pod) func(*corev1.Node) bool {
	required := nodeaffinity.GetRequiredNodeAffinity(p)
	return func(n *corev1.Node) bool {
		match, _ := required.Match(n) // a malformed term matches no node
		return match
	}
}

// spreadState is what PreFilter counted: pods by place, for each constraint.
type spreadState struct {
	constraints []constraint
	counts      []map[string]int // by the topology key's value
}

// Clone implements framework.Cloner.
func (s *spreadState) Clone() any {
	c := &spreadState{constraints: s.constraints}
	for _, m := range s.counts {
		c.counts = append(c.counts, maps.Clone(m))
	}
	return c
}

type spreadKey struct{}

// PreFilter implements framework.PreFilter.
func (naiveSpread) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	snap *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	s.Set(snapshotKey{}, snap)
	hard, err := ownConstraints(p.Pod, corev1.DoNotSchedule)
	if err != nil {
		return nil, framework.NewStatus(framework.Unresolvable, err.Error())
	}
	if len(hard) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(spreadKey{}, &spreadState{constraints: hard, counts: countPlaces(p.Pod, hard, snap.Nodes, true)})
	return nil, nil
}

// countPlaces counts the pods of each constraint by place. A node counts if it has
// the constraint's key and, with every, those of all others; a place without pods is
// there with 0.
func countPlaces(p *corev1.Pod, all []constraint, nodes []*framework.NodeInfo, every bool) []map[string]int {
	counts := make([]map[string]int, len(all))
	for i := range counts {
		counts[i] = map[string]int{}
	}
	fits := fitting(p)
	for _, n := range nodes {
		if every && !hasKeys(n.Node, all) {
			continue
		}
		for i := range all {
			c := &all[i]
			if place, ok := n.Node.Labels[c.TopologyKey]; ok && c.includes(p, n.Node, fits) {
				counts[i][place] += c.countOn(p, n)
			}
		}
	}
	return counts
}

func hasKeys(n *corev1.Node, all []constraint) bool {
	for i := range all {
		if _, ok := n.Labels[all[i].TopologyKey]; !ok {
			return false
		}
	}
	return true
}

// AddPod implements framework.PreFilterExtensions.
func (naiveSpread) AddPod(_ context.Context, s *framework.State, p, added *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	respread(s, p, added, n, 1)
	return nil
}

// RemovePod implements framework.PreFilterExtensions.
func (naiveSpread) RemovePod(_ context.Context, s *framework.State, p, removed *framework.PodInfo,
	n *framework.NodeInfo,
) *framework.Status {
	respread(s, p, removed, n, -1)
	return nil
}

func respread(s *framework.State, p, other *framework.PodInfo, n *framework.NodeInfo, by int) {
	st, ok := s.Get(spreadKey{}).(*spreadState)
	if !ok || !hasKeys(n.Node, st.constraints) {
		return
	}
	fits := fitting(p.Pod)
	for i := range st.constraints {
		c := &st.constraints[i]
		if c.includes(p.Pod, n.Node, fits) && c.counts(p.Pod, other.Pod) {
			st.counts[i][n.Node.Labels[c.TopologyKey]] += by
		}
	}
}

// Filter implements framework.Filter.
func (naiveSpread) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	st, ok := s.Get(spreadKey{}).(*spreadState)
	if !ok {
		return nil
	}
	for i := range st.constraints {
		c := &st.constraints[i]
		value, ok := n.Node.Labels[c.TopologyKey]
		if !ok {
			return framework.NewStatus(framework.Unresolvable, "node(s) didn't match pod topology spread constraints (missing required label)")
		}
		if skew := st.counts[i][value] + c.self - st.least(i); skew > int(c.MaxSkew) {
			return framework.NewStatus(framework.Unschedulable, "node(s) didn't match pod topology spread constraints")
		}
	}
	return nil
}

// least is the fewest pods in any place; 0 while there are fewer places than asked for.
func (s *spreadState) least(i int) int {
	c := &s.constraints[i]
	if c.MinDomains != nil && len(s.counts[i]) < int(*c.MinDomains) {
		return 0
	}
	least := math.MaxInt
	for _, n := range s.counts[i] {
		least = min(least, n)
	}
	if least == math.MaxInt {
		return 0
	}
	return least
}

type spreadScoreKey struct{}

// PreScore implements framework.PreScore.
func (naiveSpread) PreScore(_ context.Context, s *framework.State, p *framework.PodInfo, nodes []*framework.NodeInfo) *framework.Status {
	soft, err := ownConstraints(p.Pod, corev1.ScheduleAnyway)
	if err != nil {
		return framework.AsStatus(err)
	}
	if len(soft) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	everywhere := nodes
	if snap, ok := s.Get(snapshotKey{}).(*framework.Snapshot); ok {
		everywhere = snap.Nodes
	}
	st := &spreadState{constraints: soft}
	st.counts = countPlaces(p.Pod, soft, everywhere, true)
	s.Set(spreadScoreKey{}, st)
	return nil
}

// lacksKey is the score of a node without the constraints' keys, before Normalize.
const lacksKey = math.MaxInt64

// Score implements framework.Score: how many pods are in the node's places, weighed
// so that a key with many values counts as much as one with few. More is worse.
func (naiveSpread) Score(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	st, ok := s.Get(spreadScoreKey{}).(*spreadState)
	if !ok {
		return 0, nil
	}
	if !hasKeys(n.Node, st.constraints) {
		return lacksKey, nil
	}
	var sum float64
	for i := range st.constraints {
		c := &st.constraints[i]
		place, ok := n.Node.Labels[c.TopologyKey]
		if !ok {
			continue
		}
		weight := math.Log(float64(len(st.counts[i]) + 2))
		sum += float64(st.counts[i][place])*weight + float64(c.MaxSkew-1)
	}
	return int64(math.Round(sum)), nil
}

// Normalize implements framework.Normalize: the emptiest place is best.
func (naiveSpread) Normalize(_ context.Context, _ *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo,
	scores []int64,
) *framework.Status {
	least, most := int64(math.MaxInt64), int64(0)
	for _, v := range scores {
		if v != lacksKey {
			least, most = min(least, v), max(most, v)
		}
	}
	for i, v := range scores {
		switch {
		case v == lacksKey:
			scores[i] = 0
		case most == 0:
			scores[i] = framework.MaxScore
		default:
			scores[i] = framework.MaxScore * (most + least - v) / most
		}
	}
	return nil
}

func tolerated(p *corev1.Pod, taint *corev1.Taint) bool {
	for i := range p.Spec.Tolerations {
		if t := &p.Spec.Tolerations[i]; t.Key == taint.Key && (t.Operator == corev1.TolerationOpExists || t.Value == taint.Value) {
			return true
		}
	}
	return false
}
