// SPDX-License-Identifier: Apache-2.0

package native

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
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
