// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/why/facts"
)

// preemption is the scheduler's own, which besides keeps what it considered.
type preemption struct {
	native.Preemption
	why *considered
}

// considered is what preemption looked at in one decision.
type considered struct {
	never  bool                // the pod may not have others removed
	by     map[string][]string // nodes by the reason against them
	looked int
	chosen *framework.Nomination
}

// PostFilter implements framework.PostFilter.
func (pl preemption) PostFilter(ctx context.Context, s *framework.State, p *framework.PodInfo, snap *framework.Snapshot,
	failed map[string]*framework.Status, sim framework.Simulator,
) (*framework.Nomination, *framework.Status) {
	pl.why.never = p.Pod.Spec.PreemptionPolicy != nil && *p.Pod.Spec.PreemptionPolicy == corev1.PreemptNever
	pl.why.by = map[string][]string{}
	for _, n := range snap.Nodes {
		st := failed[n.Node.Name]
		if st == nil || pl.why.never || pl.why.looked >= mostNodes || ctx.Err() != nil {
			continue
		}
		pl.why.looked++
		if reason := against(ctx, p, n, st, sim); reason != "" {
			pl.why.by[reason] = append(pl.why.by[reason], n.Node.Name)
		}
	}
	nomination, st := pl.Preemption.PostFilter(ctx, s, p, snap, failed, sim)
	if pl.why.chosen = nomination; nomination != nil && nomination.Node == "" {
		pl.why.chosen = nil
	}
	return nomination, st
}

// against is why no pods are removed from a node for this one; "" = they could be.
func against(ctx context.Context, p *framework.PodInfo, n *framework.NodeInfo, st *framework.Status, sim framework.Simulator) string {
	if st.Code != framework.Unschedulable {
		return "no pod that leaves changes that: " + strings.Join(st.Reasons, ", ")
	}
	var lower []*framework.PodInfo
	for _, o := range n.Pods {
		if facts.Priority(o.Pod) < facts.Priority(p.Pod) {
			lower = append(lower, o)
		}
	}
	switch {
	case len(n.Pods) == 0:
		return "there is no pod to remove"
	case len(lower) == 0:
		return fmt.Sprintf("every pod there is as important or more (this one has priority %d)", facts.Priority(p.Pod))
	}
	if st := sim.Fits(ctx, n, lower); !st.IsSuccess() {
		return "not even without the pods of lower priority: " + strings.Join(st.Reasons, ", ")
	}
	return ""
}

// withPreemption is a profile whose preemption keeps what it considered, without others that make
// room; ok is false where the profile has none.
func withPreemption(p scheduler.Profile, keep *considered) (_ scheduler.Profile, ok bool) {
	p.Plugins = slices.Clone(p.Plugins)
	for i, w := range p.Plugins {
		if pl, is := w.Plugin.(native.Preemption); is && !slices.Contains(w.Skip, framework.AtPostFilter) {
			p.Plugins[i].Plugin, ok = preemption{pl, keep}, true
			continue
		}
		p.Plugins[i].Skip = append(slices.Clone(w.Skip), framework.AtPostFilter)
	}
	return p, ok
}

// withoutPreemption is a profile in which nobody makes room.
func withoutPreemption(p scheduler.Profile) scheduler.Profile {
	p.Plugins = slices.Clone(p.Plugins)
	for i, w := range p.Plugins {
		p.Plugins[i].Skip = append(slices.Clone(w.Skip), framework.AtPostFilter)
	}
	return p
}

// Preemption is what was considered in the last decision, and why it removed nobody: in sentences, or by nodes.
func (t *Trial) Preemption() (sentence string, refused []Refusal) {
	switch {
	case !t.preemption:
		return "preemption is switched off in profile " + t.profile, nil
	case t.kept.never:
		return "preemption: it may not have other pods removed (preemptionPolicy: Never)", nil
	case t.kept.chosen != nil:
		return fmt.Sprintf("preemption: %s would have to leave node %s for it", t.victims(t.kept.chosen.Victims), t.kept.chosen.Node), nil
	}
	for reason, nodes := range t.kept.by {
		slices.Sort(nodes)
		refused = append(refused, Refusal{Reason: reason, Nodes: nodes})
	}
	slices.SortFunc(refused, func(x, y Refusal) int {
		return cmp.Or(len(y.Nodes)-len(x.Nodes), strings.Compare(x.Reason, y.Reason))
	})
	return "", refused
}

// victims names pods, with the disruption budgets that protect them.
func (t *Trial) victims(pods []*framework.PodInfo) string {
	var names []string
	for _, v := range pods {
		name := "pod " + v.Pod.Namespace + "/" + v.Pod.Name
		for _, b := range t.Budgets {
			if b.Status.DisruptionsAllowed > 0 || b.Namespace != v.Pod.Namespace {
				continue
			}
			if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && !s.Empty() && s.Matches(labels.Set(v.Pod.Labels)) {
				name += " (which disruption budget " + b.Name + " protects)"
			}
		}
		names = append(names, name)
	}
	return facts.Some(names)
}

// mostClasses bounds how many priorities are tried.
const mostClasses = 20

// important gives the pod a higher priority: pods of lower priority then make room for it.
func (t *Trial) important(p *corev1.Pod, _ *scheduler.Decision) (Change, bool) {
	if !t.preemption || t.kept.never || t.kept.chosen != nil {
		return Change{}, false
	}
	classes := slices.Clone(t.Priorities)
	slices.SortFunc(classes, func(a, b *schedulingv1.PriorityClass) int {
		return cmp.Or(cmp.Compare(a.Value, b.Value), strings.Compare(a.Name, b.Name))
	})
	tried := 0
	for _, c := range classes {
		if c.Value <= facts.Priority(p) || strings.HasPrefix(c.Name, "system-") || tried >= mostClasses || t.ctx.Err() != nil {
			continue
		}
		tried++
		raised := p.DeepCopy()
		raised.Spec.Priority, raised.Spec.PriorityClassName = &c.Value, c.Name
		if t.Decide(raised); t.kept.chosen == nil {
			continue
		}
		command, ok := t.classCommand(p, c.Name)
		return Change{
			What:    fmt.Sprintf("make it more important: %s then has to leave node %s", t.victims(t.kept.chosen.Victims), t.kept.chosen.Node),
			Command: command,
		}, ok
	}
	return Change{}, false
}

// classCommand gives the pod's workload, or the pod, a priority class.
func (t *Trial) classCommand(p *corev1.Pod, class string) (string, bool) {
	owner := t.Owner(p)
	if owner == "pod/"+p.Name {
		return facts.Command(`kubectl get pod %s -n %s -o yaml | sed -e '/^  priority:/d' -e '/^  priorityClassName:/d' -e 's/^spec:$/&\n  priorityClassName: %s/' | kubectl replace --force -f -`,
			p.Name, p.Namespace, class)
	}
	return facts.Command(`kubectl patch %s -n %s --type=merge -p '{"spec":{"template":{"spec":{"priorityClassName":"%s"}}}}'`, owner, p.Namespace, class)
}
