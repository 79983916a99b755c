// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// generationKey is the label by which pods were matched before there were hashes.
const generationKey = "pod-template-generation"

// situation is everything that a plan is made from.
type situation struct {
	set   *appsv1.DaemonSet
	nodes []*corev1.Node
	pods  []*corev1.Pod
	hash  string // of the current template
	// backoff says how long a failed pod on a node stays before it is replaced.
	backoff func(node string) time.Duration
	now     time.Time
}

// plan is what to do.
type plan struct {
	create []string // names of nodes
	remove []*corev1.Pod
	events []event
	wait   time.Duration // look again after this long; 0 = only on changes
}

type event struct{ kind, reason, message string }

type planner struct {
	situation
	tolerations []corev1.Toleration
	affinity    nodeaffinity.RequiredNodeAffinity
	byNode      map[string][]*corev1.Pod
	plan        plan
}

func newPlanner(in situation) *planner {
	p := &planner{
		situation:   in,
		tolerations: tolerations(&in.set.Spec.Template.Spec),
		affinity:    nodeaffinity.NewRequiredNodeAffinity(in.set.Spec.Template.Spec.NodeSelector, in.set.Spec.Template.Spec.Affinity),
		byNode:      map[string][]*corev1.Pod{},
	}
	for _, pod := range in.pods {
		// One that is deleted and has ended doesn't hold its place any more.
		if node := target(pod); node != "" && (pod.DeletionTimestamp == nil || !controllers.PodFinished(pod)) {
			p.byNode[node] = append(p.byNode[node], pod)
		}
	}
	for _, pods := range p.byNode {
		slices.SortFunc(pods, func(a, b *corev1.Pod) int {
			bound := func(x *corev1.Pod) int {
				if x.Spec.NodeName != "" {
					return 0
				}
				return 1
			}
			return cmp.Or(cmp.Compare(bound(a), bound(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
		})
	}
	return p
}

// decide makes the plan: first pods where none is and none where one shouldn't be;
// when all is well, one step of an update.
func decide(in situation) plan {
	p := newPlanner(in)
	for _, node := range in.nodes {
		p.manage(node)
	}
	p.dropStranded()
	if len(p.plan.create)+len(p.plan.remove) == 0 && in.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		p.roll()
	}
	return p.plan
}

// target is the node that a pod is, or is to be, bound to.
func target(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// runs reports whether a node should have a pod, and whether one that is there may stay.
func (p *planner) runs(node *corev1.Node) (should, stays bool) {
	if name := p.set.Spec.Template.Spec.NodeName; name != "" && name != node.Name {
		return false, false
	}
	if fits, err := p.affinity.Match(node); err != nil || !fits {
		return false, false
	}
	untolerated := func(effects ...corev1.TaintEffect) bool {
		_, found := schedulingcorev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, p.tolerations,
			func(t *corev1.Taint) bool { return slices.Contains(effects, t.Effect) }, false)
		return found
	}
	if untolerated(corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule) {
		return false, !untolerated(corev1.TaintEffectNoExecute)
	}
	return true, true
}

// tolerations of the template, and those that let daemons run where others may not.
func tolerations(spec *corev1.PodSpec) []corev1.Toleration {
	all := slices.Clone(spec.Tolerations)
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		for i := range all {
			if all[i].MatchToleration(&t) {
				all[i] = t // without a limit in time
				return
			}
		}
		all = append(all, t)
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if spec.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
	return all
}

func (p *planner) event(kind, reason, format string, args ...any) {
	p.plan.events = append(p.plan.events, event{kind, reason, fmt.Sprintf(format, args...)})
}

func (p *planner) look(after time.Duration) {
	if after > 0 && (p.plan.wait == 0 || after < p.plan.wait) {
		p.plan.wait = after
	}
}

func (p *planner) manage(node *corev1.Node) {
	should, stays := p.runs(node)
	pods := p.byNode[node.Name]
	switch {
	case should && len(pods) == 0:
		p.plan.create = append(p.plan.create, node.Name)
	case stays:
		p.thin(node, pods)
	default:
		for _, pod := range pods {
			if pod.DeletionTimestamp == nil {
				p.plan.remove = append(p.plan.remove, pod)
			}
		}
	}
}

// thin removes pods that have ended and those that are too many.
func (p *planner) thin(node *corev1.Node, pods []*corev1.Pod) {
	var running []*corev1.Pod
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if left := p.backoff(node.Name); left > 0 {
				p.look(left)
				continue
			}
			p.event(corev1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace,
				pod.Name, node.Name)
			p.plan.remove = append(p.plan.remove, pod)
		case pod.Status.Phase == corev1.PodSucceeded:
			p.event(corev1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it",
				pod.Namespace, pod.Name, node.Name)
			p.plan.remove = append(p.plan.remove, pod)
		default:
			running = append(running, pod)
		}
	}
	if len(running) <= 1 {
		return
	}
	if surge, _ := p.limits(1); surge == 0 {
		p.plan.remove = append(p.plan.remove, running[1:]...)
		return
	}
	// While an update surges there are two, one of each generation.
	var current, old *corev1.Pod
	for _, pod := range running {
		which := &old
		if p.isCurrent(pod) {
			which = &current
		}
		if *which == nil {
			*which = pod
		} else {
			p.plan.remove = append(p.plan.remove, pod)
		}
	}
	if current != nil && old != nil && (!controllers.PodReady(old) || p.available(current)) {
		p.plan.remove = append(p.plan.remove, old)
	}
}

// dropStranded removes pods that wait for a node that is gone.
func (p *planner) dropStranded() {
	there := map[string]bool{}
	for _, node := range p.nodes {
		there[node.Name] = true
	}
	for _, node := range slices.Sorted(maps.Keys(p.byNode)) {
		for _, pod := range p.byNode[node] {
			if !there[node] && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				p.plan.remove = append(p.plan.remove, pod)
			}
		}
	}
}

func (p *planner) isCurrent(pod *corev1.Pod) bool {
	if p.hash != "" && pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == p.hash {
		return true
	}
	generation, ok := p.set.Annotations[appsv1.DeprecatedTemplateGeneration]
	return ok && pod.Labels[generationKey] == generation
}

// available also notes when a pod that is ready becomes available.
func (p *planner) available(pod *corev1.Pod) bool {
	ok, wait := controllers.PodAvailable(pod, p.set.Spec.MinReadySeconds, p.now)
	p.look(wait)
	return ok
}

// limits resolves maxSurge and maxUnavailable for so many nodes. With both zero
// nothing would ever move: then one may be unavailable.
func (p *planner) limits(desired int) (surge, unavailable int) {
	r := p.set.Spec.UpdateStrategy.RollingUpdate
	if p.set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || r == nil {
		return 0, 0
	}
	// Validation let only well-formed values through.
	if r.MaxSurge != nil {
		surge, _ = intstr.GetScaledValueFromIntOrPercent(r.MaxSurge, desired, true)
	}
	if r.MaxUnavailable != nil {
		unavailable, _ = intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, desired, true)
	}
	if desired > 0 && surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// generations are the pods of one node: the current one and the old one. ok is
// false while there are more, which is not for an update to sort out.
func (p *planner) generations(pods []*corev1.Pod) (current, old *corev1.Pod, ok bool) {
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		which := &old
		if p.isCurrent(pod) {
			which = &current
		}
		if *which != nil {
			return nil, nil, false
		}
		*which = pod
	}
	return current, old, true
}

// roll replaces some old pods: those that don't work at once, the others as far as
// the limits allow.
func (p *planner) roll() {
	desired := 0
	wanted := map[string]bool{}
	for _, node := range p.nodes {
		if should, _ := p.runs(node); should {
			desired++
			wanted[node.Name] = true
		}
	}
	surge, unavailable := p.limits(desired)
	if surge > 0 {
		p.rollBySurge(surge, desired, wanted)
		return
	}
	var broken, candidates []*corev1.Pod
	down := 0
	for _, node := range p.involved(wanted) {
		current, old, ok := p.generations(p.byNode[node])
		switch {
		case !ok, current == nil && old == nil, current != nil && old != nil:
			down++ // being dealt with
		case current != nil:
			if !p.available(current) {
				down++
			}
		case !p.available(old):
			broken = append(broken, old)
			down++
		default:
			candidates = append(candidates, old)
		}
	}
	p.plan.remove = append(p.plan.remove, broken...)
	p.plan.remove = append(p.plan.remove, candidates[:max(min(unavailable-down, len(candidates)), 0)]...)
}

// involved are all nodes that have or should have a pod, in a stable order.
func (p *planner) involved(wanted map[string]bool) []string {
	names := map[string]bool{}
	maps.Copy(names, wanted)
	for name := range p.byNode {
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// rollBySurge puts the new pod beside the old one, and takes the old one away when
// the new one is available.
func (p *planner) rollBySurge(surge, desired int, wanted map[string]bool) {
	var candidates []string
	var leaving []*corev1.Pod // available, on nodes that shouldn't have one any more
	under, available := 0, 0
	for _, node := range p.involved(wanted) {
		current, old, ok := p.generations(p.byNode[node])
		if !ok {
			under++
			continue
		}
		if (old != nil && p.available(old)) || (old == nil && current != nil && p.available(current)) {
			available++
		}
		switch {
		case old == nil:
		case current != nil && !p.available(current):
			under++
		case current != nil:
			p.plan.remove = append(p.plan.remove, old)
		case !wanted[node] && p.available(old):
			leaving = append(leaving, old)
		case !wanted[node]:
			p.plan.remove = append(p.plan.remove, old)
		case !p.available(old):
			p.plan.create = append(p.plan.create, node) // nothing is lost
		default:
			candidates = append(candidates, node)
		}
	}
	p.plan.remove = append(p.plan.remove, leaving[:max(min(available-desired, len(leaving)), 0)]...)
	p.plan.create = append(p.plan.create, candidates[:max(min(surge-under, len(candidates)), 0)]...)
}

// status counts; wait is when it next changes by time alone.
func status(in situation, observed bool) (appsv1.DaemonSetStatus, time.Duration) {
	p := newPlanner(in)
	s := *in.set.Status.DeepCopy()
	s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberMisscheduled = 0, 0, 0
	s.NumberReady, s.UpdatedNumberScheduled, s.NumberAvailable = 0, 0, 0
	for _, node := range in.nodes {
		should, _ := p.runs(node)
		pods := p.byNode[node.Name]
		if !should {
			if len(pods) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(pods) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		if controllers.PodReady(pods[0]) {
			s.NumberReady++
			if p.available(pods[0]) {
				s.NumberAvailable++
			}
		}
		if p.isCurrent(pods[0]) {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	if observed {
		s.ObservedGeneration = in.set.Generation
	}
	return s, p.plan.wait
}
