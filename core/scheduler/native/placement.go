// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// NodeName refuses every node but the one that the pod names.
type NodeName struct{}

// Name implements framework.Plugin.
func (NodeName) Name() string { return "NodeName" }

// Hints implements framework.Hints.
func (NodeName) Hints() framework.ClusterEvent { return framework.NodeAdded }

// PreFilter implements framework.PreFilter.
func (NodeName) PreFilter(_ context.Context, _ *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	if p.Pod.Spec.NodeName == "" {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

// Filter implements framework.Filter.
func (NodeName) Filter(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	if want := p.Pod.Spec.NodeName; want == "" || want == n.Node.Name {
		return nil
	}
	return framework.NewStatus(framework.Unresolvable, "node(s) didn't match the requested node name")
}

// Unschedulable refuses cordoned nodes.
type Unschedulable struct{}

// Name implements framework.Plugin.
func (Unschedulable) Name() string { return "NodeUnschedulable" }

// Hints implements framework.Hints.
func (Unschedulable) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.NodeTaintsChanged | framework.PodChanged
}

// Filter implements framework.Filter.
func (Unschedulable) Filter(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	if !n.Node.Spec.Unschedulable {
		return nil
	}
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if tolerated(p.Pod.Spec.Tolerations, &cordon) {
		return nil
	}
	return framework.NewStatus(framework.Unresolvable, "node(s) were unschedulable")
}

func tolerated(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range tolerations {
		t := &tolerations[i]
		if (t.Effect == "" || t.Effect == taint.Effect) && (t.Key == "" || t.Key == taint.Key) && tolerates(t, taint) {
			return true
		}
	}
	return false
}

func tolerates(t *corev1.Toleration, taint *corev1.Taint) bool {
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpEqual, "":
		// Equal compares the values of one key. A toleration without a key works with Exists only.
		return t.Key != "" && t.Value == taint.Value
	default: // Lt and Gt are behind a feature gate that is off: validation lets none through
		return false
	}
}

// Taints refuses nodes with taints that the pod does not tolerate, and prefers
// those with few soft ones.
type Taints struct{}

// Name implements framework.Plugin.
func (Taints) Name() string { return "TaintToleration" }

// Hints implements framework.Hints.
func (Taints) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.NodeTaintsChanged | framework.PodChanged
}

// Filter implements framework.Filter.
func (Taints) Filter(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	for i := range n.Node.Spec.Taints {
		t := &n.Node.Spec.Taints[i]
		if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !tolerated(p.Pod.Spec.Tolerations, t) {
			return framework.NewStatus(framework.Unresolvable, fmt.Sprintf("node(s) had untolerated taint {%s: %s}", t.Key, t.Value))
		}
	}
	return nil
}

// Score implements framework.Score: the number of soft taints that are not tolerated.
func (Taints) Score(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	var count int64
	for i := range n.Node.Spec.Taints {
		if t := &n.Node.Spec.Taints[i]; t.Effect == corev1.TaintEffectPreferNoSchedule && !tolerated(p.Pod.Spec.Tolerations, t) {
			count++
		}
	}
	return count, nil
}

// Normalize implements framework.Normalize: fewer are better.
func (Taints) Normalize(_ context.Context, _ *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo,
	scores []int64,
) *framework.Status {
	scale(scores, true)
	return nil
}

// scale stretches scores to 0..MaxScore by their maximum, optionally turned around.
func scale(scores []int64, reverse bool) {
	var top int64
	for _, s := range scores {
		top = max(top, s)
	}
	for i := range scores {
		if top > 0 {
			scores[i] = scores[i] * framework.MaxScore / top
		}
		if reverse {
			scores[i] = framework.MaxScore - scores[i]
		}
	}
}

// Affinity refuses nodes that the pod's nodeSelector or required node affinity
// leaves out, and prefers those that its preferred terms name.
type Affinity struct {
	// Required and Preferred are what every pod has besides; nil = nothing.
	Required  *nodeaffinity.NodeSelector
	Preferred *nodeaffinity.PreferredSchedulingTerms
}

// Name implements framework.Plugin.
func (Affinity) Name() string { return "NodeAffinity" }

// Hints implements framework.Hints.
func (Affinity) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.PodChanged
}

type (
	requiredKey  struct{}
	preferredKey struct{}
)

// PreFilter implements framework.PreFilter. A term that names nodes narrows the
// search to them: that is how pods of a DaemonSet find theirs.
func (pl Affinity) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	a := p.Pod.Spec.Affinity
	required := a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
	if !required && len(p.Pod.Spec.NodeSelector) == 0 {
		if pl.Required != nil {
			return nil, nil
		}
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(requiredKey{}, nodeaffinity.GetRequiredNodeAffinity(p.Pod))
	if !required {
		return nil, nil
	}
	return namedNodes(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms), nil
}

// namedNodes is nil unless every term names its nodes.
func namedNodes(terms []corev1.NodeSelectorTerm) map[string]bool {
	var all map[string]bool
	for i := range terms {
		named := false
		for _, f := range terms[i].MatchFields {
			if f.Key == "metadata.name" && f.Operator == corev1.NodeSelectorOpIn {
				named = true
				for _, name := range f.Values {
					if all == nil {
						all = map[string]bool{}
					}
					all[name] = true
				}
			}
		}
		if !named {
			return nil
		}
	}
	return all
}

var notSelected = refusal(Affinity{}, framework.Unresolvable, "node(s) didn't match Pod's node affinity/selector")

var notEnforced = refusal(Affinity{}, framework.Unresolvable, "node(s) didn't match scheduler-enforced node affinity")

// Filter implements framework.Filter.
func (pl Affinity) Filter(_ context.Context, s *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	if pl.Required != nil && !pl.Required.Match(n.Node) {
		return notEnforced
	}
	required, ok := s.Get(requiredKey{}).(nodeaffinity.RequiredNodeAffinity)
	if !ok {
		required = nodeaffinity.GetRequiredNodeAffinity(p.Pod)
	}
	if match, _ := required.Match(n.Node); match { // a malformed term matches no node
		return nil
	}
	return notSelected
}

// PreScore implements framework.PreScore.
func (pl Affinity) PreScore(_ context.Context, s *framework.State, p *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	a := p.Pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		if pl.Preferred != nil {
			return nil
		}
		return framework.NewStatus(framework.Skip)
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return framework.AsStatus(fmt.Errorf("read preferred node affinity: %w", err))
	}
	s.Set(preferredKey{}, terms)
	return nil
}

// Score implements framework.Score: the sum of the weights of matching terms.
func (pl Affinity) Score(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	var sum int64
	if pl.Preferred != nil {
		sum = pl.Preferred.Score(n.Node)
	}
	if terms, ok := s.Get(preferredKey{}).(*nodeaffinity.PreferredSchedulingTerms); ok {
		sum += terms.Score(n.Node)
	}
	return sum, nil
}

// Normalize implements framework.Normalize.
func (Affinity) Normalize(_ context.Context, _ *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo,
	scores []int64,
) *framework.Status {
	scale(scores, false)
	return nil
}
