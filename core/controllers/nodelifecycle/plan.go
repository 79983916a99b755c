// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// reported are the conditions that a kubelet reports and that become Unknown when
// it falls silent; Ready is first.
var reported = [...]corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// conditionTaints are the taints that stand for a condition in a status.
func conditionTaint(kind corev1.NodeConditionType, status corev1.ConditionStatus) string {
	switch {
	case kind == corev1.NodeReady && status == corev1.ConditionFalse:
		return corev1.TaintNodeNotReady
	case kind == corev1.NodeReady && status == corev1.ConditionUnknown:
		return corev1.TaintNodeUnreachable
	case status != corev1.ConditionTrue:
		return ""
	case kind == corev1.NodeMemoryPressure:
		return corev1.TaintNodeMemoryPressure
	case kind == corev1.NodeDiskPressure:
		return corev1.TaintNodeDiskPressure
	case kind == corev1.NodePIDPressure:
		return corev1.TaintNodePIDPressure
	case kind == corev1.NodeNetworkUnavailable:
		return corev1.TaintNodeNetworkUnavailable
	}
	return ""
}

// ours reports whether a taint is one that this controller puts on and takes off.
func ours(t corev1.Taint) bool {
	switch t.Effect {
	case corev1.TaintEffectNoSchedule:
		switch t.Key {
		case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
			corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable:
			return true
		}
	case corev1.TaintEffectNoExecute:
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	default: // somebody else's
	}
	return false
}

// taints are all taints that the node should have: those of others as they are,
// NoSchedule for each bad condition, and NoExecute for a node that isn't ready.
// A node without NoExecute so far gets it only if evict allows; wantsEviction tells
// that it is held back.
func taints(node *corev1.Node, evict bool, now time.Time) (all []corev1.Taint, wantsEviction bool) {
	all = slices.DeleteFunc(slices.Clone(node.Spec.Taints), ours)
	add := func(key string, effect corev1.TaintEffect) {
		for _, t := range node.Spec.Taints {
			if t.Key == key && t.Effect == effect {
				all = append(all, t) // with its time
				return
			}
		}
		stamp := metav1.NewTime(now)
		all = append(all, corev1.Taint{Key: key, Effect: effect, TimeAdded: &stamp})
	}
	for _, c := range node.Status.Conditions {
		if key := conditionTaint(c.Type, c.Status); key != "" {
			add(key, corev1.TaintEffectNoSchedule)
		}
	}
	if node.Spec.Unschedulable {
		add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	}
	if c := condition(node, corev1.NodeReady); c != nil && c.Status != corev1.ConditionTrue {
		switch {
		case evict || evicting(node):
			add(conditionTaint(corev1.NodeReady, c.Status), corev1.TaintEffectNoExecute)
		default:
			wantsEviction = true
		}
	}
	return all, wantsEviction
}

// evicting reports whether the node has one of our NoExecute taints.
func evicting(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute && ours(t) })
}

func sameTaints(a, b []corev1.Taint) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		if !slices.ContainsFunc(b, func(y corev1.Taint) bool { return x.Key == y.Key && x.Effect == y.Effect && x.Value == y.Value }) {
			return false
		}
	}
	return true
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	_, c := nodeutil.GetNodeCondition(&node.Status, kind)
	return c
}

// silence sets the conditions of a node whose kubelet is silent, in place.
func silence(node *corev1.Node, now time.Time) (changed bool) {
	stamp := metav1.NewTime(now)
	for _, kind := range reported {
		c := condition(node, kind)
		switch {
		case c == nil:
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: stamp,
			})
			changed = true
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = stamp
			changed = true
		}
	}
	return changed
}

// labels that were once beta are kept equal to their stable ones, for the
// workloads that still select by them.
func betaLabels(node *corev1.Node) map[string]string {
	changed := map[string]string{}
	for stable, beta := range map[string]string{
		corev1.LabelOSStable:   "beta.kubernetes.io/os",
		corev1.LabelArchStable: "beta.kubernetes.io/arch",
	} {
		if v := node.Labels[stable]; v != "" && node.Labels[beta] != v {
			changed[beta] = v
		}
	}
	return changed
}

func zone(node *corev1.Node) string {
	return node.Labels[corev1.LabelTopologyRegion] + "/" + node.Labels[corev1.LabelTopologyZone]
}

// disruption says how fast nodes of a zone may begin to be evicted.
type disruption struct {
	total, notReady int
}

// interval between two nodes of the zone that begin to be evicted; never = not now.
// When most of a zone is gone it is likelier that the network to it is, than that
// all its machines died; in a small zone evictions would then overload what is left.
func (d disruption) interval() (interval time.Duration, never bool) {
	switch {
	case d.notReady > 2 && float64(d.notReady)/float64(d.total) >= unhealthyZoneShare && d.notReady < d.total:
		return secondaryEvictionInterval, d.total <= largeZone
	default:
		return evictionInterval, false
	}
}

// everywhere reports that no node of any zone is ready: then it is rather us who
// cannot see, and nobody is evicted.
func everywhere(zones map[string]*disruption) bool {
	for _, d := range zones {
		if d.notReady < d.total {
			return false
		}
	}
	return true
}

func survey(nodes []*corev1.Node) map[string]*disruption {
	zones := map[string]*disruption{}
	for _, node := range nodes {
		if _, excluded := node.Labels["node.kubernetes.io/exclude-disruption"]; excluded {
			continue
		}
		d := zones[zone(node)]
		if d == nil {
			d = &disruption{}
			zones[zone(node)] = d
		}
		d.total++
		if !controllers.NodeReady(node) {
			d.notReady++
		}
	}
	return zones
}
