// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Spread keeps pods of a kind evenly over zones, nodes or whatever else a label
// tells apart, as topologySpreadConstraints ask: a constraint that must hold filters
// nodes, one that should hold rates them.
type Spread struct {
	// Defaults for pods without constraints; nil: they are not spread.
	Defaults *SpreadDefaults
}

// Name implements framework.Plugin.
func (Spread) Name() string { return "PodTopologySpread" }

// Hints implements framework.Hints.
func (Spread) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.NodeRemoved | framework.NodeLabelsChanged | framework.NodeTaintsChanged |
		framework.PodBound | framework.PodRemoved | framework.PodChanged
}

// Helped implements framework.Attentive: a node that goes takes a place with it, maybe that with the fewest pods, or
// one that a place too few was counted for. A node that no constraint looks at does not.
func (sp Spread) Helped(p *framework.PodInfo, old, _ runtime.Object) bool {
	n, ok := old.(*corev1.Node)
	if !ok {
		return true
	}
	hard, err := sp.constraints(p.Pod, corev1.DoNotSchedule)
	if err != nil || !hasKeys(n, hard) {
		return false
	}
	fits := fitting(p.Pod)
	return slices.ContainsFunc(hard, func(c constraint) bool { return c.includes(p.Pod, n, fits) })
}

// constraint is one topologySpreadConstraint, read for a pod.
type constraint struct {
	*corev1.TopologySpreadConstraint
	selector labels.Selector
	self     int // 1 where the pod itself is one of those that are counted
}

// constraints of a pod: its own, or, where it has none, the defaults.
func (sp Spread) constraints(p *corev1.Pod, when corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
	if len(p.Spec.TopologySpreadConstraints) == 0 {
		return sp.Defaults.constraints(p, when), nil
	}
	return ownConstraints(p, when)
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
		s = framework.WithOwnLabels(s, p, c.MatchLabelKeys, nil)
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

func (c *constraint) honoursAffinity() bool {
	return c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
}

func (c *constraint) honoursTaints() bool {
	return c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
}

// anyNode says whether a pod asks nothing of its nodes, so that all of them count.
func anyNode(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	return len(p.Spec.NodeSelector) == 0 &&
		(a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil)
}

// includes says whether the constraint looks at a node at all.
func (c *constraint) includes(p *corev1.Pod, n *corev1.Node, fits func(*corev1.Node) bool) bool {
	if c.honoursAffinity() && !fits(n) {
		return false
	}
	if c.honoursTaints() {
		for i := range n.Spec.Taints {
			t := &n.Spec.Taints[i]
			if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !tolerated(p.Spec.Tolerations, t) {
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
	counts      []*tally
	optional    bool // a node that lacks a key is judged by the others
	// moved is what simulations change of the counts; levels of the counts are copied
	// before the first change.
	moved  map[spot]int
	levels []map[int]int
}

// spot is one count of a spreadState.
type spot struct {
	constraint int
	place      string
}

// Clone implements framework.Cloner.
func (s *spreadState) Clone() any {
	c := *s
	c.moved, c.levels = maps.Clone(s.moved), nil
	for _, l := range s.levels {
		c.levels = append(c.levels, maps.Clone(l))
	}
	return &c
}

type spreadKey struct{}

// PreFilter implements framework.PreFilter.
func (sp Spread) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	snap *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	hard, err := sp.constraints(p.Pod, corev1.DoNotSchedule)
	if err != nil {
		return nil, framework.NewStatus(framework.Unresolvable, err.Error())
	}
	if len(hard) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(spreadKey{}, &spreadState{constraints: hard, counts: countPlaces(p.Pod, hard, snap, true)})
	return nil, nil
}

// countPlaces counts the pods of each constraint by place. A node counts if it has
// the constraint's key and, with every, those of all others; a place without pods is
// there with 0.
func countPlaces(p *corev1.Pod, constraints []constraint, snap *framework.Snapshot, every bool) []*tally {
	var counts []*tally
	kept, fits := talliesOf(snap), fitting(p)
	for i := range constraints {
		c := &constraints[i]
		counts = append(counts, kept.count(subject{
			key:      c.key(p, constraints, every),
			topology: c.TopologyKey,
			pods:     func(other *corev1.Pod) bool { return c.counts(p, other) },
			nodes: func(n *corev1.Node) bool {
				return (!every || hasKeys(n, constraints)) && c.includes(p, n, fits)
			},
		}, snap.Nodes))
	}
	return counts
}

// key names what a constraint of a pod counts: which pods, on which nodes.
func (c *constraint) key(p *corev1.Pod, constraints []constraint, every bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "spread %s\n%s\n", p.Namespace, c.TopologyKey)
	if _, selectable := c.selector.Requirements(); !selectable { // it selects nothing, and prints as the selector of everything
		b.WriteString("!")
	}
	b.WriteString(c.selector.String())
	if every && len(constraints) > 1 {
		for i := range constraints {
			b.WriteString("\n" + constraints[i].TopologyKey)
		}
	}
	if c.honoursAffinity() && !anyNode(p) {
		fmt.Fprintf(&b, "\nselector %v", p.Spec.NodeSelector) // maps print in the order of their keys
		if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			b.WriteString("\naffinity " + a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.String())
		}
	}
	if c.honoursTaints() {
		b.WriteString("\ntaints")
		for i := range p.Spec.Tolerations {
			b.WriteString("\ntoleration " + p.Spec.Tolerations[i].String())
		}
	}
	return b.String()
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
func (Spread) AddPod(_ context.Context, s *framework.State, p, added *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	respread(s, p, added, n, 1)
	return nil
}

// RemovePod implements framework.PreFilterExtensions.
func (Spread) RemovePod(_ context.Context, s *framework.State, p, removed *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
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
			st.move(i, n.Node.Labels[c.TopologyKey], by)
		}
	}
}

// move changes a count for a simulation.
func (s *spreadState) move(i int, place string, by int) {
	if s.moved == nil {
		s.moved = map[spot]int{}
		for _, t := range s.counts {
			s.levels = append(s.levels, maps.Clone(t.levels))
		}
	}
	relevel(s.levels[i], s.pods(i, place), -1)
	s.moved[spot{i, place}] += by
	relevel(s.levels[i], s.pods(i, place), 1)
}

// pods of a constraint in a place.
func (s *spreadState) pods(i int, place string) int {
	return s.counts[i].places[place].pods + s.moved[spot{i, place}]
}

var (
	notLabelled = refusal(Spread{}, framework.Unresolvable, "node(s) didn't match pod topology spread constraints (missing required label)")
	notEven     = refusal(Spread{}, framework.Unschedulable, "node(s) didn't match pod topology spread constraints")
)

// Filter implements framework.Filter.
func (Spread) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	st, ok := s.Get(spreadKey{}).(*spreadState)
	if !ok {
		return nil
	}
	for i := range st.constraints {
		c := &st.constraints[i]
		value, ok := n.Node.Labels[c.TopologyKey]
		if !ok {
			return notLabelled
		}
		if skew := st.pods(i, value) + c.self - st.least(i); skew > int(c.MaxSkew) {
			return notEven
		}
	}
	return nil
}

// least is the fewest pods in any place; 0 while there are fewer places than asked for.
func (s *spreadState) least(i int) int {
	c, t := &s.constraints[i], s.counts[i]
	if c.MinDomains != nil && len(t.places) < int(*c.MinDomains) {
		return 0
	}
	levels := t.levels
	if s.levels != nil {
		levels = s.levels[i]
	}
	least := math.MaxInt
	for n := range levels {
		least = min(least, n)
	}
	if least == math.MaxInt {
		return 0
	}
	return least
}

type spreadScoreKey struct{}

// PreScore implements framework.PreScore.
func (sp Spread) PreScore(_ context.Context, s *framework.State, p *framework.PodInfo, nodes []*framework.NodeInfo) *framework.Status {
	soft, err := sp.constraints(p.Pod, corev1.ScheduleAnyway)
	if err != nil {
		return framework.AsStatus(err)
	}
	if len(soft) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	snap := s.Cluster(nodes)
	st := &spreadState{constraints: soft, optional: len(p.Pod.Spec.TopologySpreadConstraints) == 0 && sp.Defaults.system()}
	st.counts = countPlaces(p.Pod, soft, snap, !st.optional)
	s.Set(spreadScoreKey{}, st)
	return nil
}

// lacksKey is the score of a node without the constraints' keys, before Normalize.
const lacksKey = math.MaxInt64

// Score implements framework.Score: how many pods are in the node's places, weighed
// so that a key with many values counts as much as one with few. More is worse.
func (Spread) Score(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	st, ok := s.Get(spreadScoreKey{}).(*spreadState)
	if !ok {
		return 0, nil
	}
	if !st.optional && !hasKeys(n.Node, st.constraints) {
		return lacksKey, nil
	}
	var sum float64
	for i := range st.constraints {
		c := &st.constraints[i]
		place, ok := n.Node.Labels[c.TopologyKey]
		if !ok {
			continue
		}
		places := st.counts[i].places
		weight := math.Log(float64(len(places) + 2))
		sum += float64(places[place].pods)*weight + float64(c.MaxSkew-1)
	}
	return int64(math.Round(sum)), nil
}

// Normalize implements framework.Normalize: the emptiest place is best.
func (Spread) Normalize(_ context.Context, _ *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo,
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
