// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// naiveAffinity is what native.PodAffinity has to answer, worked out the long way: it reads
// the terms of every pod, and counts every pod on every node, in each cycle.
type naiveAffinity struct {
	Namespaces corelisters.NamespaceLister
	// hard is what a required affinity term of a running pod weighs for a pod that it speaks of.
	hard            int32
	ignorePreferred bool
}

// Name implements framework.Plugin.
func (naiveAffinity) Name() string { return "InterPodAffinity" }

// term is one affinity term, read for a pod.
type term struct {
	topologyKey string
	selector    labels.Selector
	namespaces  map[string]bool
	inNamespace labels.Selector // nil = none but those named
	weight      int32
}

// newTerm reads a term of pod p.
func newTerm(p *corev1.Pod, t *corev1.PodAffinityTerm, weight int32) (*term, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("read an affinity term's labelSelector: %w", err)
	}
	selector = withOwnLabels(selector, p, t.MatchLabelKeys, t.MismatchLabelKeys)
	out := &term{topologyKey: t.TopologyKey, selector: selector, namespaces: map[string]bool{}, weight: weight}
	for _, ns := range t.Namespaces {
		out.namespaces[ns] = true
	}
	if t.NamespaceSelector != nil {
		if out.inNamespace, err = metav1.LabelSelectorAsSelector(t.NamespaceSelector); err != nil {
			return nil, fmt.Errorf("read an affinity term's namespaceSelector: %w", err)
		}
	} else if len(t.Namespaces) == 0 {
		out.namespaces[p.Namespace] = true
	}
	return out, nil
}

// withOwnLabels adds what matchLabelKeys and mismatchLabelKeys mean for a pod: its
// own values of these labels. The API merges them when a pod is made; one made before that has them yet to come.
func withOwnLabels(s labels.Selector, p *corev1.Pod, match, mismatch []string) labels.Selector {
	add := func(keys []string, op string) {
		for _, key := range keys {
			if v, ok := p.Labels[key]; ok {
				if parsed, err := labels.ParseToRequirements(key + " " + op + " (" + v + ")"); err == nil {
					s = s.Add(parsed...)
				}
			}
		}
	}
	add(match, "in")
	add(mismatch, "notin")
	return s
}

// matches says whether another pod is one that the term speaks of. namespaceLabels
// answers the labels of a namespace.
func (t *term) matches(other *corev1.Pod, namespaceLabels func(string) labels.Set) bool {
	if !t.namespaces[other.Namespace] && (t.inNamespace == nil || !t.inNamespace.Matches(namespaceLabels(other.Namespace))) {
		return false
	}
	return t.selector.Matches(labels.Set(other.Labels))
}

func readTerms(p *corev1.Pod, terms []corev1.PodAffinityTerm) ([]*term, error) {
	var out []*term
	for i := range terms {
		t, err := newTerm(p, &terms[i], 0)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// required are a pod's terms that must hold.
func required(p *corev1.Pod) (affinity, anti []*term, err error) {
	a := p.Spec.Affinity
	if a == nil {
		return nil, nil, nil
	}
	if a.PodAffinity != nil {
		if affinity, err = readTerms(p, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, nil, err
		}
	}
	if a.PodAntiAffinity != nil {
		anti, err = readTerms(p, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return affinity, anti, err
}

// preferred are a pod's terms that weigh, those of anti-affinity negatively.
func preferred(p *corev1.Pod) ([]*term, error) {
	a := p.Spec.Affinity
	if a == nil {
		return nil, nil
	}
	var out []*term
	add := func(terms []corev1.WeightedPodAffinityTerm, sign int32) error {
		for i := range terms {
			t, err := newTerm(p, &terms[i].PodAffinityTerm, sign*terms[i].Weight)
			if err != nil {
				return err
			}
			out = append(out, t)
		}
		return nil
	}
	if a.PodAffinity != nil {
		if err := add(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, 1); err != nil {
			return nil, err
		}
	}
	if a.PodAntiAffinity != nil {
		if err := add(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, -1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// where is one value of a topology key.
type where struct{ key, value string }

// affinityState is what PreFilter found out. Counts change in simulations.
type affinityState struct {
	affinity, anti []*term
	self           bool // the pod matches all of its own affinity terms
	// near: pods that match all affinity terms; away: pods that match an anti-affinity
	// term; refusing: running pods whose anti-affinity matches the pod.
	near, away, refusing map[where]int
	namespaceLabels      func(string) labels.Set
}

// Clone implements framework.Cloner.
func (s *affinityState) Clone() any {
	c := *s
	c.near, c.away, c.refusing = maps.Clone(s.near), maps.Clone(s.away), maps.Clone(s.refusing)
	return &c
}

type affinityKey struct{}

func (pl naiveAffinity) namespaceLabels() func(string) labels.Set {
	known := map[string]labels.Set{}
	return func(name string) labels.Set {
		set, ok := known[name]
		if !ok {
			if ns, err := pl.Namespaces.Get(name); err == nil {
				set = ns.Labels
			}
			known[name] = set
		}
		return set
	}
}

// PreFilter implements framework.PreFilter.
func (pl naiveAffinity) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	snap *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	affinity, anti, err := required(p.Pod)
	if err != nil {
		return nil, framework.NewStatus(framework.Unresolvable, err.Error())
	}
	st := &affinityState{
		affinity: affinity, anti: anti, near: map[where]int{}, away: map[where]int{}, refusing: map[where]int{},
		namespaceLabels: pl.namespaceLabels(),
	}
	st.self = len(affinity) > 0 && all(affinity, p.Pod, st.namespaceLabels)
	for _, n := range snap.Nodes {
		if len(affinity)+len(anti) == 0 && n.AntiAffinity == 0 {
			continue // nobody there asks for anything, nor is anything asked of them
		}
		for _, other := range n.Pods {
			if err := st.count(p.Pod, other.Pod, n.Node, 1); err != nil {
				return nil, framework.AsStatus(err)
			}
		}
	}
	s.Set(snapshotKey{}, snap)
	if len(affinity)+len(anti)+len(st.refusing) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(affinityKey{}, st)
	return nil, nil
}

func all(terms []*term, p *corev1.Pod, namespaceLabels func(string) labels.Set) bool {
	for _, t := range terms {
		if !t.matches(p, namespaceLabels) {
			return false
		}
	}
	return true
}

// count adds a pod of a node to what is known, or takes it away.
func (s *affinityState) count(p, other *corev1.Pod, node *corev1.Node, n int) error {
	at := func(key string, counts map[where]int) {
		if value, ok := node.Labels[key]; ok {
			at := where{key, value}
			if counts[at] += n; counts[at] == 0 {
				delete(counts, at)
			}
		}
	}
	if len(s.affinity) > 0 && all(s.affinity, other, s.namespaceLabels) {
		for _, t := range s.affinity {
			at(t.topologyKey, s.near)
		}
	}
	for _, t := range s.anti {
		if t.matches(other, s.namespaceLabels) {
			at(t.topologyKey, s.away)
		}
	}
	if a := other.Spec.Affinity; a == nil || a.PodAntiAffinity == nil {
		return nil
	}
	_, theirs, err := required(other)
	if err != nil {
		return nil //nolint:nilerr // a running pod's malformed term is nothing that the pod could mend
	}
	for _, t := range theirs {
		if t.matches(p, s.namespaceLabels) {
			at(t.topologyKey, s.refusing)
		}
	}
	return nil
}

// AddPod implements framework.PreFilterExtensions.
func (naiveAffinity) AddPod(_ context.Context, s *framework.State, p, added *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	return recount(s, p, added, n, 1)
}

// RemovePod implements framework.PreFilterExtensions.
func (naiveAffinity) RemovePod(_ context.Context, s *framework.State, p, removed *framework.PodInfo,
	n *framework.NodeInfo,
) *framework.Status {
	return recount(s, p, removed, n, -1)
}

func recount(s *framework.State, p, other *framework.PodInfo, n *framework.NodeInfo, by int) *framework.Status {
	st, ok := s.Get(affinityKey{}).(*affinityState)
	if !ok {
		return nil
	}
	return framework.AsStatus(st.count(p.Pod, other.Pod, n.Node, by))
}

// Filter implements framework.Filter.
func (naiveAffinity) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	st, ok := s.Get(affinityKey{}).(*affinityState)
	if !ok {
		return nil
	}
	if !st.nearEnough(n.Node) {
		return framework.NewStatus(framework.Unresolvable, "node(s) didn't match pod affinity rules")
	}
	for _, t := range st.anti {
		if value, ok := n.Node.Labels[t.topologyKey]; ok && st.away[where{t.topologyKey, value}] > 0 {
			return framework.NewStatus(framework.Unschedulable, "node(s) didn't match pod anti-affinity rules")
		}
	}
	for at := range st.refusing {
		if n.Node.Labels[at.key] == at.value {
			return framework.NewStatus(framework.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules")
		}
	}
	return nil
}

// nearEnough: each affinity term has a matching pod in the node's where. The first
// pod of a group that wants to be together finds none anywhere, and may go where it likes.
func (s *affinityState) nearEnough(node *corev1.Node) bool {
	together := true
	for _, t := range s.affinity {
		value, ok := node.Labels[t.topologyKey]
		if !ok {
			return false
		}
		if s.near[where{t.topologyKey, value}] == 0 {
			together = false
		}
	}
	return together || len(s.near) == 0 && s.self
}

type affinityScoreKey struct{}

// PreScore implements framework.PreScore: the weight of each where.
func (pl naiveAffinity) PreScore(_ context.Context, s *framework.State, p *framework.PodInfo,
	nodes []*framework.NodeInfo,
) *framework.Status {
	own, err := preferred(p.Pod)
	if err != nil {
		return framework.AsStatus(err)
	}
	snap, _ := s.Get(snapshotKey{}).(*framework.Snapshot)
	if snap == nil {
		snap = &framework.Snapshot{Nodes: nodes}
	}
	if pl.ignorePreferred && len(own) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	weights := map[where]int64{}
	namespaceLabels := pl.namespaceLabels()
	for _, n := range snap.Nodes {
		if len(own) == 0 && n.Affinity == 0 {
			continue
		}
		for _, other := range n.Pods {
			pl.weigh(weights, own, p.Pod, other.Pod, n.Node, namespaceLabels)
		}
	}
	if len(weights) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	s.Set(affinityScoreKey{}, weights)
	return nil
}

// weigh adds what the pod thinks of another, and what the other thinks of the pod.
func (pl naiveAffinity) weigh(weights map[where]int64, own []*term, p, other *corev1.Pod, node *corev1.Node,
	namespaceLabels func(string) labels.Set,
) {
	add := func(t *term, weight int32) {
		if value, ok := node.Labels[t.topologyKey]; ok {
			weights[where{t.topologyKey, value}] += int64(weight)
		}
	}
	for _, t := range own {
		if t.matches(other, namespaceLabels) {
			add(t, t.weight)
		}
	}
	if other.Spec.Affinity == nil {
		return
	}
	theirs, err := preferred(other)
	if err != nil {
		return
	}
	for _, t := range theirs {
		if t.matches(p, namespaceLabels) {
			add(t, t.weight)
		}
	}
	near, _, err := required(other)
	if err != nil {
		return
	}
	for _, t := range near {
		if t.matches(p, namespaceLabels) {
			add(t, pl.hard)
		}
	}
}

// Score implements framework.Score.
func (naiveAffinity) Score(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	weights, _ := s.Get(affinityScoreKey{}).(map[where]int64)
	var sum int64
	for at, w := range weights {
		if n.Node.Labels[at.key] == at.value {
			sum += w
		}
	}
	return sum, nil
}

// Normalize implements framework.Normalize: the worst where is 0, the best 100.
func (naiveAffinity) Normalize(_ context.Context, _ *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo,
	scores []int64,
) *framework.Status {
	least, most := scores[0], scores[0]
	for _, v := range scores {
		least, most = min(least, v), max(most, v)
	}
	for i := range scores {
		if most == least {
			scores[i] = 0
			continue
		}
		scores[i] = framework.MaxScore * (scores[i] - least) / (most - least)
	}
	return nil
}

// snapshotKey is where the cycle's snapshot stands for PreScore, which is given
// only the nodes that are left.
type snapshotKey struct{}
