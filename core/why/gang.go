// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"

	"github.com/wasmplane/wasmplane/core/scheduler/gang"
	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
	"github.com/wasmplane/wasmplane/core/why/trial"
)

// podGroup: pods that are placed together.
func (e *explainer) podGroup(name string) *Answer {
	g, ok := facts.Find(e.Groups, e.in, name)
	if !ok {
		return nil
	}
	waiting, placed := e.membersOf(g)
	switch {
	case len(waiting) > 0:
		return e.explainPod(waiting[0])
	case len(placed) == 0:
		return reply.Stuck("it has no pods: none names it in spec.schedulingGroup.podGroupName")
	}
	return reply.Well("all of its %d pods have nodes", len(placed))
}

// membersOf a group: those without a node, and those with one.
func (e *explainer) membersOf(g *schedulingv1beta1.PodGroup) (waiting, placed []*corev1.Pod) {
	for _, p := range e.Pods {
		key, member := gang.KeyOf(p)
		switch {
		case !member || key.Namespace != g.Namespace || key.Name != g.Name:
		case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case p.Spec.NodeName != "":
			placed = append(placed, p)
		case p.DeletionTimestamp == nil && len(p.Spec.SchedulingGates) == 0:
			waiting = append(waiting, p)
		}
	}
	return waiting, placed
}

// gang: a pod that waits with others; nil where it waits for itself alone.
func (e *explainer) gang(p *corev1.Pod, scheduled corev1.PodCondition) *Answer {
	key, member := gang.KeyOf(p)
	if !member {
		return nil
	}
	g, ok := facts.Find(e.Groups, key.Namespace, key.Name)
	if !ok {
		return reply.Stuck("the pod group %s that it names does not exist", key.Name).
			Or("see which ones there are", "kubectl get podgroups -n %s", key.Namespace)
	}
	policy := g.Spec.SchedulingPolicy.Gang
	if policy == nil {
		return nil
	}
	need := int(policy.MinCount)
	waiting, placed := e.membersOf(g)
	fewer := func(a *Answer, n int, tried bool) *Answer {
		a.Or("let the gang begin with fewer pods",
			`kubectl patch podgroup %s -n %s --type=merge -p '{"spec":{"schedulingPolicy":{"gang":{"minCount":%d}}}}'`, g.Name, g.Namespace, n)
		a.Changes[len(a.Changes)-1].Tried = tried
		return a
	}
	if have := len(waiting) + len(placed); have < need {
		return fewer(reply.Stuck("its gang %s needs %d pods, and %d exist", g.Name, need, have), have, false)
	}
	a := reply.Stuck("its gang %s does not fit: %s", g.Name, strings.TrimSuffix(scheduled.Message, "."))
	if scheduled.Message == "" {
		a = reply.Stuck("its gang %s has not been scheduled yet, and nothing says why", g.Name)
	}
	if e.Partial || g.Spec.SchedulingConstraints != nil {
		a.Unknown = append(a.Unknown, "what would let the gang in: that takes all nodes and pods, and a gang without a topology")
		return a
	}
	t, err := trial.New(e.ctx, e.Cluster, p)
	if err != nil {
		a.Unknown = append(a.Unknown, "what would let the gang in: "+err.Error())
		return a
	}
	plan := t.Gang(waiting, max(1, need-len(placed)))
	switch {
	case plan.Placed:
		return reply.Stuck("its gang %s has not been scheduled yet; %d nodes would take it", g.Name, len(plan.Nodes))
	case len(placed)+plan.Fit > 0:
		fewer(a, len(placed)+plan.Fit, true)
	}
	if plan.Failed >= 0 && plan.Fit == 0 {
		alone := e.tried(t, waiting[plan.Failed], scheduled)
		a.Refused, a.Changes = alone.Refused, append(a.Changes, alone.Changes...)
	}
	return a.Or("join one more machine", "wasmplane token create")
}
