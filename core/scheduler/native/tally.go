// SPDX-License-Identifier: Apache-2.0

package native

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// tallies are counts over all pods of a cluster, kept from one cycle to the next: between
// two cycles few nodes change, and only their pods are counted again. Counting all pods
// of a large cluster in every cycle would cost more than everything else together.
type tallies struct {
	all   map[string]*tally
	clock int64
}

type talliesKey struct{}

func talliesOf(snap *framework.Snapshot) *tallies {
	return framework.Kept(snap, talliesKey{}, func() *tallies { return &tallies{all: map[string]*tally{}} })
}

// Bounds of the memory: tallies times nodes, about 70 MB, and how many counts ago a tally was
// last asked for. One that nobody asks for holds on to nodes and pods that are long gone.
const (
	mostCounted = 1 << 20
	longestIdle = 1 << 10
)

// subject is what a tally counts. What has the same key is the same.
type subject struct {
	key      string
	topology string // the label by whose value pods are counted
	pods     func(*corev1.Pod) bool
	nodes    func(*corev1.Node) bool // nil: every node that has the label
}

// tally is how many pods there are in each place, a value of the topology key. It is
// good until the next cycle.
type tally struct {
	used   int64
	nodes  []*framework.NodeInfo // as they were counted
	on     []int                 // pods by node; outside = the node doesn't count
	places map[string]place
	levels map[int]int // how many places have so many pods
	total  int
}

type place struct{ nodes, pods int }

const outside = -1

// count follows the nodes.
func (t *tallies) count(s subject, nodes []*framework.NodeInfo) *tally {
	if t.clock++; t.clock%longestIdle == 0 {
		maps.DeleteFunc(t.all, func(_ string, one *tally) bool { return t.clock-one.used > longestIdle })
	}
	one, ok := t.all[s.key]
	if !ok {
		t.makeRoom(len(nodes))
		one = &tally{places: map[string]place{}, levels: map[int]int{}}
		t.all[s.key] = one
	}
	one.used = t.clock
	one.follow(&s, nodes)
	return one
}

func (t *tallies) makeRoom(nodes int) {
	if len(t.all) == 0 || (len(t.all)+1)*nodes <= mostCounted {
		return
	}
	oldest, least := "", t.clock
	for key, one := range t.all {
		if one.used < least {
			oldest, least = key, one.used
		}
	}
	delete(t.all, oldest)
}

// follow counts what has changed since the last cycle in which somebody asked.
func (t *tally) follow(s *subject, nodes []*framework.NodeInfo) {
	for len(t.nodes) > len(nodes) {
		last := len(t.nodes) - 1
		t.replace(s, last, nil)
		t.nodes, t.on = t.nodes[:last], t.on[:last]
	}
	for i, n := range nodes {
		if i == len(t.nodes) {
			t.nodes, t.on = append(t.nodes, nil), append(t.on, outside)
		}
		if t.nodes[i] != n {
			t.replace(s, i, n)
		}
	}
}

// replace counts node n instead of the one that stood at i.
func (t *tally) replace(s *subject, i int, n *framework.NodeInfo) {
	was, before, now := t.nodes[i], t.on[i], outside
	t.nodes[i] = n
	switch {
	case n == nil:
	case was != nil && was.Node == n.Node:
		if before == outside {
			return
		}
		gone, come := differing(was.Pods, n.Pods)
		now = before - s.among(gone) + s.among(come)
	case s.includes(n.Node):
		now = s.among(n.Pods)
	}
	t.on[i] = now
	if before != outside {
		t.change(was.Node.Labels[s.topology], -1, -before)
	}
	if now != outside {
		t.change(n.Node.Labels[s.topology], 1, now)
	}
}

func (s *subject) includes(n *corev1.Node) bool {
	_, ok := n.Labels[s.topology]
	return ok && (s.nodes == nil || s.nodes(n))
}

func (s *subject) among(pods []*framework.PodInfo) (count int) {
	for _, p := range pods {
		if s.pods(p.Pod) {
			count++
		}
	}
	return count
}

// differing leaves out what both lists begin and end with: the pods of one node differ by
// one or two from cycle to cycle.
func differing(was, now []*framework.PodInfo) (gone, come []*framework.PodInfo) {
	for len(was) > 0 && len(now) > 0 && was[0] == now[0] {
		was, now = was[1:], now[1:]
	}
	for len(was) > 0 && len(now) > 0 && was[len(was)-1] == now[len(now)-1] {
		was, now = was[:len(was)-1], now[:len(now)-1]
	}
	return was, now
}

func (t *tally) change(where string, nodes, pods int) {
	p, known := t.places[where]
	if known {
		relevel(t.levels, p.pods, -1)
	}
	p.nodes, p.pods, t.total = p.nodes+nodes, p.pods+pods, t.total+pods
	if p.nodes == 0 {
		delete(t.places, where)
		return
	}
	relevel(t.levels, p.pods, 1)
	t.places[where] = p
}

func relevel(levels map[int]int, at, by int) {
	if levels[at] += by; levels[at] == 0 {
		delete(levels, at)
	}
}

// wishes are the terms of the pods that run, those that mean the same together: what
// they have against a pod, and what they think of it, costs a look at the terms that may
// speak of it and not at all pods.
type wishes struct {
	nodes []*framework.NodeInfo // as they were counted
	// against are required anti-affinity terms, rating those that weigh, musts required affinity.
	against, rating, musts book
}

type wishesKey struct{}

func wishesOf(snap *framework.Snapshot) *wishes {
	w := framework.Kept(snap, wishesKey{}, func() *wishes { return &wishes{} })
	w.follow(snap.Nodes)
	return w
}

func (w *wishes) follow(nodes []*framework.NodeInfo) {
	for i := len(nodes); i < len(w.nodes); i++ {
		w.add(w.nodes[i], w.nodes[i].Pods, -1)
	}
	w.nodes = w.nodes[:min(len(w.nodes), len(nodes))]
	for i, n := range nodes {
		if i == len(w.nodes) {
			w.nodes = append(w.nodes, n)
			w.add(n, n.Pods, 1)
			continue
		}
		was := w.nodes[i]
		if was == n {
			continue
		}
		w.nodes[i] = n
		gone, come := was.Pods, n.Pods
		if was.Node == n.Node || maps.Equal(was.Node.Labels, n.Node.Labels) {
			gone, come = differing(gone, come)
		}
		w.add(was, gone, -1)
		w.add(n, come, 1)
	}
}

func (w *wishes) add(n *framework.NodeInfo, pods []*framework.PodInfo, by int64) {
	if n.Affinity == 0 {
		return
	}
	for _, p := range pods {
		if p.Terms == nil {
			continue
		}
		for _, t := range p.Terms.Anti {
			w.against.add(t, n.Node, by)
		}
		for _, t := range p.Terms.Preferred {
			w.rating.add(t, n.Node, by*int64(t.Weight))
		}
		for _, t := range p.Terms.Affinity {
			w.musts.add(t, n.Node, by)
		}
	}
}

// book keeps terms by a label that the pods which they speak of have.
type book struct{ anchored map[string]map[wish]*group }

// wish tells terms apart that do not mean the same.
type wish struct{ pods, topologyKey string }

// group is one meaning: a term of those that share it, and what they sum up to by place.
type group struct {
	term   *framework.Term
	places map[string]int64
}

func (b *book) add(t *framework.Term, n *corev1.Node, by int64) {
	value, ok := n.Labels[t.TopologyKey]
	if !ok {
		return
	}
	if b.anchored == nil {
		b.anchored = map[string]map[wish]*group{}
	}
	groups := b.anchored[t.Anchor]
	if groups == nil {
		groups = map[wish]*group{}
		b.anchored[t.Anchor] = groups
	}
	w := wish{t.Pods, t.TopologyKey}
	g := groups[w]
	if g == nil {
		g = &group{t, map[string]int64{}}
		groups[w] = g
	}
	if g.places[value] += by; g.places[value] != 0 {
		return
	}
	delete(g.places, value)
	if len(g.places) > 0 {
		return
	}
	if delete(groups, w); len(groups) == 0 {
		delete(b.anchored, t.Anchor)
	}
}

// about sums up, by topology key and value, the terms that speak of a pod. Nobody changes
// what it returns.
func (b *book) about(p *corev1.Pod, speaks func(*framework.Term) bool) map[string]map[string]int64 {
	var out map[string]map[string]int64
	merged := map[string]bool{}
	from := func(anchor string) {
		for _, g := range b.anchored[anchor] {
			key := g.term.TopologyKey
			if !speaks(g.term) {
				continue
			}
			if out == nil {
				out = map[string]map[string]int64{}
			}
			if out[key] == nil {
				out[key] = g.places
				continue
			}
			if !merged[key] {
				out[key], merged[key] = maps.Clone(out[key]), true
			}
			for value, n := range g.places {
				out[key][value] += n
			}
		}
	}
	from("")
	for k, v := range p.Labels {
		from(k + "=" + v)
	}
	return out
}
