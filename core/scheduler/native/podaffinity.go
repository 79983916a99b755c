// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// PodAffinity places pods near to or away from others, as their affinity and
// anti-affinity ask, and keeps them off where pods that run already ask for it. How many
// pods match, by the value of a topology key, it keeps between cycles.
type PodAffinity struct {
	Namespaces corelisters.NamespaceLister
	// HardWeight, 0 to 100, is what a required affinity term of a running pod weighs for a pod that it
	// speaks of; nil: 1.
	HardWeight *int32
	// IgnorePreferred leaves the terms of running pods out of the score of a pod that prefers no place itself.
	IgnorePreferred bool
}

// Name implements framework.Plugin.
func (PodAffinity) Name() string { return "InterPodAffinity" }

// Hints implements framework.Hints.
func (PodAffinity) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.PodBound | framework.PodRemoved | framework.PodChanged
}

// affinityState is what PreFilter found out.
type affinityState struct {
	terms framework.Terms
	self  bool // the pod matches all of its own affinity terms
	// near: pods that match all affinity terms; away: pods that match an anti-affinity
	// term; both by the term. refusing: anti-affinity of running pods that speaks of the pod,
	// by topology key and value.
	near, away      []*tally
	refusing        map[string]map[string]int64
	moved           map[mark]int // what simulations change of these
	movedNear       int
	namespaceLabels func(string) labels.Set
}

// mark is one count of an affinityState.
type mark struct {
	of         markOf
	term       int    // of the pod, for near and away
	key, value string // key for refusing
}

type markOf uint8

const (
	ofNear markOf = iota
	ofAway
	ofRefusing
)

// Clone implements framework.Cloner.
func (s *affinityState) Clone() any {
	c := *s
	c.moved = maps.Clone(s.moved)
	return &c
}

type affinityKey struct{}

func (pl PodAffinity) namespaceLabels() func(string) labels.Set {
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

// subject of a tally: the pods that all of these terms speak of. The namespaces that a
// term's namespaceSelector means today are part of the key, for they may be others tomorrow.
func (pl PodAffinity) subject(terms []*framework.Term, topologyKey string, namespaceLabels func(string) labels.Set) subject {
	var key strings.Builder
	key.WriteString("affinity " + topologyKey)
	for _, t := range terms {
		key.WriteString("\n" + t.Pods)
		if t.InNamespace != nil && !t.InNamespace.Empty() {
			key.WriteString("\n" + pl.selected(t.InNamespace))
		}
	}
	return subject{key: key.String(), topology: topologyKey, pods: func(p *corev1.Pod) bool { return all(terms, p, namespaceLabels) }}
}

// selected are the namespaces that a selector means.
func (pl PodAffinity) selected(s labels.Selector) string {
	list, err := pl.Namespaces.List(s)
	if err != nil { // an informer's lister has no errors
		return ""
	}
	names := make([]string, len(list))
	for i, ns := range list {
		names[i] = ns.Name
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// PreFilter implements framework.PreFilter.
func (pl PodAffinity) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	snap *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	st := &affinityState{namespaceLabels: pl.namespaceLabels()}
	if p.Terms != nil {
		st.terms = *p.Terms
	}
	if st.terms.Err != nil {
		return nil, framework.NewStatus(framework.Unresolvable, st.terms.Err.Error())
	}
	counts := talliesOf(snap)
	for _, t := range st.terms.Affinity {
		st.near = append(st.near, counts.count(pl.subject(st.terms.Affinity, t.TopologyKey, st.namespaceLabels), snap.Nodes))
	}
	for _, t := range st.terms.Anti {
		st.away = append(st.away, counts.count(pl.subject([]*framework.Term{t}, t.TopologyKey, st.namespaceLabels), snap.Nodes))
	}
	st.refusing = wishesOf(snap).against.about(p.Pod, func(t *framework.Term) bool { return t.Speaks(p.Pod, st.namespaceLabels) })
	if len(st.near)+len(st.away)+len(st.refusing) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	st.self = len(st.near) > 0 && all(st.terms.Affinity, p.Pod, st.namespaceLabels)
	s.Set(affinityKey{}, st)
	return nil, nil
}

func all(terms []*framework.Term, p *corev1.Pod, namespaceLabels func(string) labels.Set) bool {
	for _, t := range terms {
		if !t.Speaks(p, namespaceLabels) {
			return false
		}
	}
	return true
}

// AddPod implements framework.PreFilterExtensions.
func (PodAffinity) AddPod(_ context.Context, s *framework.State, p, added *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	recount(s, p, added, n, 1)
	return nil
}

// RemovePod implements framework.PreFilterExtensions.
func (PodAffinity) RemovePod(_ context.Context, s *framework.State, p, removed *framework.PodInfo,
	n *framework.NodeInfo,
) *framework.Status {
	recount(s, p, removed, n, -1)
	return nil
}

func recount(s *framework.State, p, other *framework.PodInfo, n *framework.NodeInfo, by int) {
	st, ok := s.Get(affinityKey{}).(*affinityState)
	if !ok {
		return
	}
	if st.moved == nil {
		st.moved = map[mark]int{}
	}
	if len(st.near) > 0 && all(st.terms.Affinity, other.Pod, st.namespaceLabels) {
		for i, t := range st.terms.Affinity {
			if value, ok := n.Node.Labels[t.TopologyKey]; ok {
				st.moved[mark{ofNear, i, "", value}] += by
				st.movedNear += by
			}
		}
	}
	for i, t := range st.terms.Anti {
		if value, ok := n.Node.Labels[t.TopologyKey]; ok && t.Speaks(other.Pod, st.namespaceLabels) {
			st.moved[mark{ofAway, i, "", value}] += by
		}
	}
	if other.Terms == nil {
		return
	}
	for _, t := range other.Terms.Anti {
		if value, ok := n.Node.Labels[t.TopologyKey]; ok && t.Speaks(p.Pod, st.namespaceLabels) {
			st.moved[mark{ofRefusing, 0, t.TopologyKey, value}] += by
		}
	}
}

// Refusals are said of thousands of nodes in one cycle: they are made once.
var (
	notNear   = refusal(PodAffinity{}, framework.Unresolvable, "node(s) didn't match pod affinity rules")
	notAway   = refusal(PodAffinity{}, framework.Unschedulable, "node(s) didn't match pod anti-affinity rules")
	notWanted = refusal(PodAffinity{}, framework.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules")
)

func refusal(by framework.Plugin, code framework.Code, reason string) *framework.Status {
	return &framework.Status{Code: code, Reasons: []string{reason}, Plugin: by.Name()}
}

// Filter implements framework.Filter.
func (PodAffinity) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	st, ok := s.Get(affinityKey{}).(*affinityState)
	if !ok {
		return nil
	}
	if !st.nearEnough(n.Node) {
		return notNear
	}
	for i, t := range st.terms.Anti {
		if value, ok := n.Node.Labels[t.TopologyKey]; ok && st.away[i].places[value].pods+st.moved[mark{ofAway, i, "", value}] > 0 {
			return notAway
		}
	}
	if st.refused(n.Node) {
		return notWanted
	}
	return nil
}

// refused says whether a pod that runs keeps the pod off.
func (s *affinityState) refused(node *corev1.Node) bool {
	for key, places := range s.refusing {
		if value, ok := node.Labels[key]; ok && places[value]+int64(s.moved[mark{ofRefusing, 0, key, value}]) > 0 {
			return true
		}
	}
	for m, n := range s.moved {
		if value, ok := node.Labels[m.key]; m.of == ofRefusing && ok && value == m.value && s.refusing[m.key][value]+int64(n) > 0 {
			return true
		}
	}
	return false
}

// nearEnough: each affinity term has a matching pod in the node's place. The first
// pod of a group that wants to be together finds none anywhere, and may go where it likes.
func (s *affinityState) nearEnough(node *corev1.Node) bool {
	together, total := true, s.movedNear
	for i, t := range s.terms.Affinity {
		value, ok := node.Labels[t.TopologyKey]
		if !ok {
			return false
		}
		if s.near[i].places[value].pods+s.moved[mark{ofNear, i, "", value}] == 0 {
			together = false
		}
		total += s.near[i].total
	}
	return together || total == 0 && s.self
}

// affinityWeights is what PreScore found out: the weight of each place, by topology key and
// value, that running pods give the pod, and the pod's own terms with their counts.
type affinityWeights struct {
	theirs map[string]map[string]int64
	musts  map[string]map[string]int64 // their required terms, each of which counts 1
	hard   int64                       // what such a term weighs
	terms  []*framework.Term
	counts []*tally
}

type affinityScoreKey struct{}

// PreScore implements framework.PreScore.
func (pl PodAffinity) PreScore(_ context.Context, s *framework.State, p *framework.PodInfo, nodes []*framework.NodeInfo) *framework.Status {
	snap := s.Cluster(nodes)
	w, namespaceLabels := &affinityWeights{hard: 1}, pl.namespaceLabels()
	if pl.HardWeight != nil {
		w.hard = int64(*pl.HardWeight)
	}
	if p.Terms != nil {
		w.terms = p.Terms.Preferred
	}
	if pl.IgnorePreferred && len(w.terms) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	counts := talliesOf(snap)
	for _, t := range w.terms {
		w.counts = append(w.counts, counts.count(pl.subject([]*framework.Term{t}, t.TopologyKey, namespaceLabels), snap.Nodes))
	}
	all, speaks := wishesOf(snap), func(t *framework.Term) bool { return t.Speaks(p.Pod, namespaceLabels) }
	w.theirs = all.rating.about(p.Pod, speaks)
	if w.hard > 0 {
		w.musts = all.musts.about(p.Pod, speaks)
	}
	if len(w.terms)+len(w.theirs)+len(w.musts) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	s.Set(affinityScoreKey{}, w)
	return nil
}

// Score implements framework.Score.
func (PodAffinity) Score(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	w, ok := s.Get(affinityScoreKey{}).(*affinityWeights)
	if !ok {
		return 0, nil
	}
	var sum int64
	for i, t := range w.terms {
		if value, ok := n.Node.Labels[t.TopologyKey]; ok {
			sum += int64(t.Weight) * int64(w.counts[i].places[value].pods)
		}
	}
	for key, places := range w.theirs {
		if value, ok := n.Node.Labels[key]; ok {
			sum += places[value]
		}
	}
	for key, places := range w.musts {
		if value, ok := n.Node.Labels[key]; ok {
			sum += w.hard * places[value]
		}
	}
	return sum, nil
}

// Normalize implements framework.Normalize: the worst place is 0, the best 100.
func (PodAffinity) Normalize(_ context.Context, _ *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo,
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
