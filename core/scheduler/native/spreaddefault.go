// SPDX-License-Identifier: Apache-2.0

package native

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// SpreadDefaults are the constraints of pods that have none of their own: they are
// spread with the pods of the same Services and of the same ReplicaSet, StatefulSet
// or ReplicationController.
type SpreadDefaults struct {
	// Constraints without labelSelectors. Nil: SystemSpread.
	Constraints []corev1.TopologySpreadConstraint

	Services     corelisters.ServiceLister
	Controllers  corelisters.ReplicationControllerLister
	ReplicaSets  appslisters.ReplicaSetLister
	StatefulSets appslisters.StatefulSetLister

	tallies tallies
}

// SystemSpread are upstream's default constraints: rather on another node, and, less
// so, in another zone. Clusters without zones are spread over nodes all the same.
func SystemSpread() []corev1.TopologySpreadConstraint {
	return []corev1.TopologySpreadConstraint{
		{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
		{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
	}
}

// system says whether the constraints are SystemSpread, which do without their keys.
func (d *SpreadDefaults) system() bool { return d != nil && d.Constraints == nil }

// constraints for a pod; none where nothing says which pods are its like.
func (d *SpreadDefaults) constraints(p *corev1.Pod, when corev1.UnsatisfiableConstraintAction) []constraint {
	if d == nil {
		return nil
	}
	all := d.Constraints
	if all == nil {
		all = SystemSpread()
	}
	var out []constraint
	for i := range all {
		if all[i].WhenUnsatisfiable == when {
			out = append(out, constraint{TopologySpreadConstraint: &all[i]})
		}
	}
	if len(out) == 0 {
		return nil
	}
	selector := d.selector(p)
	if selector.Empty() {
		return nil
	}
	for i := range out {
		out[i].selector = selector
		if selector.Matches(labels.Set(p.Labels)) {
			out[i].self = 1
		}
	}
	return out
}

// selector of the pods that are a pod's like: what its Services and its controller
// select, all of it together. Empty where it has neither. A controller that is not
// there yet, or whose selector cannot be read, says nothing.
func (d *SpreadDefaults) selector(p *corev1.Pod) labels.Selector {
	set := d.served(p)
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil {
		return of(set)
	}
	switch owner.APIVersion + "/" + owner.Kind {
	case "v1/ReplicationController":
		if rc, err := d.Controllers.ReplicationControllers(p.Namespace).Get(owner.Name); err == nil {
			set = labels.Merge(set, rc.Spec.Selector)
		}
	case "apps/v1/ReplicaSet":
		if rs, err := d.ReplicaSets.ReplicaSets(p.Namespace).Get(owner.Name); err == nil {
			return and(of(set), rs.Spec.Selector)
		}
	case "apps/v1/StatefulSet":
		if ss, err := d.StatefulSets.StatefulSets(p.Namespace).Get(owner.Name); err == nil {
			return and(of(set), ss.Spec.Selector)
		}
	}
	return of(set)
}

// served are the selectors of the pod's Services in one.
func (d *SpreadDefaults) served(p *corev1.Pod) labels.Set {
	services, err := d.Services.Services(p.Namespace).List(labels.Everything())
	if err != nil { // an informer's lister has no errors
		return nil
	}
	var set labels.Set
	for _, s := range services {
		// A Service without a selector has endpoints that somebody else chooses.
		if len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(p.Labels)) {
			set = labels.Merge(set, s.Spec.Selector)
		}
	}
	return set
}

// of is the selector of a set; of an empty one, which would match every pod, the
// selector that says nothing.
func of(set labels.Set) labels.Selector {
	if len(set) == 0 {
		return labels.NewSelector()
	}
	return set.AsSelector()
}

func and(s labels.Selector, more *metav1.LabelSelector) labels.Selector {
	other, err := metav1.LabelSelectorAsSelector(more)
	if err != nil {
		return s
	}
	if requirements, ok := other.Requirements(); ok {
		return s.Add(requirements...)
	}
	return s
}

// tallies keep the counts of default constraints from one cycle to the next. Nearly
// every pod has them, and counting all pods of a large cluster for each would cost
// more than all other plugins together; between two cycles few nodes change. They
// belong to one scheduler, which decides about one pod at a time.
type tallies struct {
	all   map[tallyKey]*tally
	clock int64
}

type tallyKey struct{ namespace, selector, topology string }

// mostTallies bounds the memory: a tally of 5000 nodes has about half a megabyte.
const mostTallies = 64

// tally is how many pods a selector matches, by node and by place.
type tally struct {
	used   int64
	nodes  []*framework.NodeInfo // as they were counted
	on     []int                 // by node
	places map[string]int        // by the topology key's value
}

// count the pods of a constraint by place. The map is good until the next call.
func (t *tallies) count(p *corev1.Pod, c *constraint, nodes []*framework.NodeInfo) map[string]int {
	key := tallyKey{p.Namespace, c.selector.String(), c.TopologyKey}
	t.clock++
	one, ok := t.all[key]
	if !ok {
		t.makeRoom()
		one = &tally{}
		t.all[key] = one
	}
	one.used = t.clock
	if !one.follow(p, c, nodes) {
		one.begin(p, c, nodes)
	}
	return one.places
}

func (t *tallies) makeRoom() {
	if t.all == nil {
		t.all = map[tallyKey]*tally{}
	}
	if len(t.all) < mostTallies {
		return
	}
	var oldest tallyKey
	least := t.clock
	for key, one := range t.all {
		if one.used < least {
			oldest, least = key, one.used
		}
	}
	delete(t.all, oldest)
}

// begin counts everything.
func (t *tally) begin(p *corev1.Pod, c *constraint, nodes []*framework.NodeInfo) {
	t.nodes, t.on, t.places = append(t.nodes[:0], nodes...), make([]int, len(nodes)), map[string]int{}
	for i, n := range nodes {
		if place, ok := n.Node.Labels[c.TopologyKey]; ok {
			t.on[i] = c.countOn(p, n)
			t.places[place] += t.on[i]
		}
	}
}

// follow counts the nodes anew that have changed; it is false where places may have
// come or gone.
func (t *tally) follow(p *corev1.Pod, c *constraint, nodes []*framework.NodeInfo) bool {
	if len(nodes) != len(t.nodes) {
		return false
	}
	for i, n := range nodes {
		was := t.nodes[i]
		if was == n {
			continue
		}
		place, ok := n.Node.Labels[c.TopologyKey]
		before, had := was.Node.Labels[c.TopologyKey]
		if was.Node.Name != n.Node.Name || ok != had || place != before {
			return false
		}
		t.nodes[i] = n
		if ok {
			now := c.countOn(p, n)
			t.places[place] += now - t.on[i]
			t.on[i] = now
		}
	}
	return true
}

// anyNode says whether a pod asks nothing of its nodes, so that all of them count.
func anyNode(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	return len(p.Spec.NodeSelector) == 0 && (a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil)
}

// count the pods of default constraints that only rate nodes.
func (d *SpreadDefaults) count(p *corev1.Pod, all []constraint, nodes []*framework.NodeInfo) []map[string]int {
	if !d.system() || !anyNode(p) {
		return countPlaces(p, all, nodes, !d.system())
	}
	counts := make([]map[string]int, len(all))
	for i := range all {
		counts[i] = d.tallies.count(p, &all[i], nodes)
	}
	return counts
}
