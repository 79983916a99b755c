// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
)

// What is kept from cycle to cycle gives the answers that counting everything anew gives:
// over random clusters, whatever happens to their nodes, pods and namespaces, and in
// simulations too.
func TestWhatIsKeptAnswersAsCountingAnewDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &randomCluster{T: t, cache: nodecache.New(), namespaces: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
		lister := corelisters.NewNamespaceLister(c.namespaces)
		for _, ns := range randomNamespaces {
			c.namespace(ns)
		}
		for range 4 {
			c.node()
		}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			c.happen()
			p := framework.NewPodInfo(c.pod())
			kept, anew := native.PodAffinity{Namespaces: lister}, naiveAffinity{Namespaces: lister, hard: 1}
			if c.chance("configured") { // profiles with other arguments share what is kept
				anew.hard, anew.ignorePreferred = rapid.Int32Range(0, 3).Draw(t, "hard weight"), c.chance("ignores")
				kept.HardWeight, kept.IgnorePreferred = &anew.hard, anew.ignorePreferred
			}
			c.compare("affinity", kept, anew, p)
			c.compare("spread", native.Spread{}, naiveSpread{}, p)
		}
	})
}

var randomNamespaces = []string{"default", "other", "third"}

type randomCluster struct {
	*rapid.T
	cache      *nodecache.Cache
	namespaces cache.Indexer
	made       int
	nodes      []string
	running    []*corev1.Pod
}

func (c *randomCluster) pick(what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(c.T, what)
}

func (c *randomCluster) chance(what string) bool { return rapid.IntRange(0, 2).Draw(c.T, what) == 0 }

// happen is one event.
func (c *randomCluster) happen() {
	switch c.pick("event", "pod", "pod", "pod", "pod", "gone", "changed", "node", "labels", "no node", "namespace") {
	case "pod":
		if len(c.nodes) > 0 {
			p := c.pod()
			p.Spec.NodeName = c.pick("on", c.nodes...)
			c.running = append(c.running, p)
			c.cache.SetPod(p)
		}
	case "gone":
		if len(c.running) > 0 {
			i := rapid.IntRange(0, len(c.running)-1).Draw(c.T, "which")
			c.cache.RemovePod(c.running[i].UID)
			c.running = slices.Delete(c.running, i, i+1)
		}
	case "changed": // its labels, or that it is being deleted
		if len(c.running) > 0 {
			i := rapid.IntRange(0, len(c.running)-1).Draw(c.T, "which")
			p := c.running[i].DeepCopy()
			p.Labels["app"] = c.pick("app", "a", "b")
			if c.chance("deleted") {
				now := metav1.Now()
				p.DeletionTimestamp = &now
			}
			c.running[i] = p
			c.cache.SetPod(p)
		}
	case "node":
		c.node()
	case "labels":
		if len(c.nodes) > 0 {
			c.cache.SetNode(c.labelled(c.pick("node", c.nodes...)))
		}
	case "no node":
		if len(c.nodes) > 0 {
			i := rapid.IntRange(0, len(c.nodes)-1).Draw(c.T, "which")
			c.cache.RemoveNode(c.nodes[i])
			c.nodes = slices.Delete(c.nodes, i, i+1)
		}
	case "namespace":
		c.namespace(c.pick("namespace", randomNamespaces...))
	}
}

func (c *randomCluster) namespace(name string) {
	if err := c.namespaces.Update(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{"team": c.pick("team", "red", "blue")},
	}}); err != nil {
		c.Fatal(err)
	}
}

func (c *randomCluster) node() {
	c.made++
	name := fmt.Sprint("n", c.made)
	c.nodes = append(c.nodes, name)
	c.cache.SetNode(c.labelled(name))
}

func (c *randomCluster) labelled(name string) *corev1.Node {
	n := node(name, nil)
	if !c.chance("no zone") {
		n.Labels["zone"] = c.pick("zone", "east", "west")
	}
	if c.chance("disk") {
		n.Labels["disk"] = "ssd"
	}
	if c.chance("tainted") {
		n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "red", Effect: corev1.TaintEffectNoSchedule}}
	}
	return n
}

func (c *randomCluster) pod() *corev1.Pod {
	c.made++
	p := pod(fmt.Sprint("p", c.made), nil)
	p.UID, p.Namespace = types.UID(p.Name), c.pick("namespace", randomNamespaces...)
	p.Labels = map[string]string{"app": c.pick("app", "a", "b"), "tier": c.pick("tier", "x", "y")}
	if c.chance("selects nodes") {
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	if c.chance("tolerates") {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "team", Value: "red"}}
	}
	a := &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{}}
	for range rapid.IntRange(0, 2).Draw(c.T, "terms") {
		t := c.term()
		switch c.pick("kind", "near", "away", "rather near", "rather away") {
		case "near":
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
		case "away":
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
				a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
		case "rather near":
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				c.weighted(t))
		default:
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
				a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, c.weighted(t))
		}
		p.Spec.Affinity = a
	}
	for range rapid.IntRange(0, 2).Draw(c.T, "constraints") {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c.constraint())
	}
	return p
}

func (c *randomCluster) weighted(t corev1.PodAffinityTerm) corev1.WeightedPodAffinityTerm {
	return corev1.WeightedPodAffinityTerm{Weight: rapid.Int32Range(1, 3).Draw(c.T, "weight"), PodAffinityTerm: t}
}

func (c *randomCluster) selector() *metav1.LabelSelector {
	switch c.pick("selector", "label", "label", "expression", "all", "none") {
	case "label":
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": c.pick("app", "a", "b")}}
	case "expression":
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "tier", Operator: metav1.LabelSelectorOpNotIn,
			Values: []string{"x"},
		}}}
	case "all":
		return &metav1.LabelSelector{}
	default:
		return nil
	}
}

func (c *randomCluster) term() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{LabelSelector: c.selector(), TopologyKey: c.pick("key", "zone", corev1.LabelHostname)}
	if c.chance("named") {
		t.Namespaces = []string{c.pick("in", randomNamespaces...)}
	}
	switch c.pick("by", "nothing", "nothing", "label", "all") {
	case "label":
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}}
	case "all":
		t.NamespaceSelector = &metav1.LabelSelector{}
	}
	if t.LabelSelector != nil && c.chance("own labels") {
		t.MatchLabelKeys = []string{"tier"}
	}
	return t
}

func (c *randomCluster) constraint() corev1.TopologySpreadConstraint {
	out := corev1.TopologySpreadConstraint{
		MaxSkew: rapid.Int32Range(1, 2).Draw(c.T, "skew"), TopologyKey: c.pick("key", "zone", corev1.LabelHostname), LabelSelector: c.selector(),
		WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(c.pick("when", "DoNotSchedule", "ScheduleAnyway")),
	}
	policies := []corev1.NodeInclusionPolicy{corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore}
	if c.chance("policies") {
		out.NodeAffinityPolicy = &policies[rapid.IntRange(0, 1).Draw(c.T, "affinity policy")]
		out.NodeTaintsPolicy = &policies[rapid.IntRange(0, 1).Draw(c.T, "taints policy")]
	}
	if c.chance("domains") && out.WhenUnsatisfiable == corev1.DoNotSchedule {
		two := int32(2)
		out.MinDomains = &two
	}
	return out
}

// compare asks both about a pod, on the picture as it is and on one in which pods have moved.
func (c *randomCluster) compare(what string, kept, anew framework.Plugin, p *framework.PodInfo) {
	snap := c.cache.Snapshot()
	a, b := newCycle(c.T, kept, p, snap), newCycle(c.T, anew, p, snap)
	same := func(when string) {
		for _, n := range snap.Nodes {
			if got, want := a.filter(n), b.filter(n); got != want {
				c.Fatalf("%s: %s: node %s: %q, counted anew %q", what, when, n.Node.Name, got, want)
			}
		}
	}
	same("now")
	if got, want := a.scores(), b.scores(); !slices.Equal(got, want) {
		c.Fatalf("%s: scores %v, counted anew %v", what, got, want)
	}
	if a.skipped != b.skipped {
		c.Fatalf("%s: skipped is %v, counted anew %v", what, a.skipped, b.skipped)
	}
	if len(snap.Nodes) == 0 {
		return
	}
	before := a.state
	a.state, b.state = a.state.Clone(), b.state.Clone()
	for range rapid.IntRange(1, 3).Draw(c.T, "moves") {
		i := rapid.IntRange(0, len(snap.Nodes)-1).Draw(c.T, "node")
		n := snap.Nodes[i]
		if len(n.Pods) > 0 && c.chance("leaves") {
			gone := n.Pods[0]
			snap = withNode(snap, i, n.WithoutPod(gone))
			a.ext.RemovePod(c.Context(), a.state, p, gone, snap.Nodes[i])
			b.ext.RemovePod(c.Context(), b.state, p, gone, snap.Nodes[i])
			continue
		}
		come := framework.NewPodInfo(c.pod())
		snap = withNode(snap, i, n.WithPod(come))
		a.ext.AddPod(c.Context(), a.state, p, come, snap.Nodes[i])
		b.ext.AddPod(c.Context(), b.state, p, come, snap.Nodes[i])
	}
	same("simulated")
	a.state, b = before, newCycle(c.T, anew, p, c.cache.Snapshot())
	snap = c.cache.Snapshot()
	same("after the simulation")
}

func withNode(snap *framework.Snapshot, i int, n *framework.NodeInfo) *framework.Snapshot {
	c := *snap
	c.Nodes, c.Memo = slices.Clone(snap.Nodes), nil
	c.Nodes[i] = n
	return &c
}

// cycle is a plugin in one cycle.
type cycle struct {
	t       *rapid.T
	plugin  framework.Plugin
	ext     framework.PreFilterExtensions
	p       *framework.PodInfo
	snap    *framework.Snapshot
	state   *framework.State
	skipped bool
}

func newCycle(t *rapid.T, plugin framework.Plugin, p *framework.PodInfo, snap *framework.Snapshot) *cycle {
	c := &cycle{t: t, plugin: plugin, ext: plugin.(framework.PreFilterExtensions), p: p, snap: snap, state: framework.NewState()}
	c.state.Accompany(framework.Company{Snapshot: snap})
	_, st := plugin.(framework.PreFilter).PreFilter(t.Context(), c.state, p, snap)
	c.skipped = st != nil && st.Code == framework.Skip
	if !st.IsSuccess() && !c.skipped {
		t.Fatal(st.Reasons)
	}
	return c
}

func (c *cycle) filter(n *framework.NodeInfo) string {
	st := c.plugin.(framework.Filter).Filter(c.t.Context(), c.state, c.p, n)
	if st.IsSuccess() {
		return ""
	}
	return fmt.Sprint(st.Code, st.Reasons)
}

// scores of all nodes; 0 where the plugin has none to give.
func (c *cycle) scores() []int64 {
	scores := make([]int64, len(c.snap.Nodes))
	st := c.plugin.(framework.PreScore).PreScore(c.t.Context(), c.state, c.p, c.snap.Nodes)
	if st != nil && st.Code == framework.Skip || len(scores) == 0 {
		return scores
	}
	if !st.IsSuccess() {
		c.t.Fatal(st.Reasons)
	}
	for i, n := range c.snap.Nodes {
		score, st := c.plugin.(framework.Score).Score(c.t.Context(), c.state, c.p, n)
		if !st.IsSuccess() {
			c.t.Fatal(st.Reasons)
		}
		scores[i] = score
	}
	if st := c.plugin.(framework.Normalize).Normalize(c.t.Context(), c.state, c.p, c.snap.Nodes, scores); !st.IsSuccess() {
		c.t.Fatal(st.Reasons)
	}
	return scores
}
