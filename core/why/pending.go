// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/native/nodefeatures"
	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
	"github.com/wasmplane/wasmplane/core/why/trial"
)

// pending: a pod that has no node.
func (e *explainer) pending(p *corev1.Pod) *Answer {
	if len(p.Spec.SchedulingGates) > 0 {
		var gates []string
		for _, g := range p.Spec.SchedulingGates {
			gates = append(gates, g.Name)
		}
		return reply.Stuck("it is held back by its scheduling gates %s, until whoever set them takes them off", strings.Join(gates, ", ")).
			Or("take the gates off", `kubectl patch pod %s -n %s --type=json -p '[{"op":"remove","path":"/spec/schedulingGates"}]'`, p.Name, p.Namespace)
	}
	if a := e.podClaims(p); a != nil {
		return a
	}
	if a := e.podDevices(p); a != nil {
		return a
	}
	scheduled := condition(p, corev1.PodScheduled)
	if e.Profiles == nil && scheduled.Status == "" && p.Spec.SchedulerName != corev1.DefaultSchedulerName && e.Last("Pod", p.Namespace, p.Name,
		"FailedScheduling") == nil {
		return e.nobodysPod(p)
	}
	if a := e.promised(p); a != nil {
		return a
	}
	if a := e.gang(p, scheduled); a != nil {
		return a
	}
	if e.Partial {
		a := reply.Stuck("no node takes it, says the scheduler: %s", strings.TrimSuffix(scheduled.Message, "."))
		if scheduled.Message == "" {
			a = reply.Stuck("it has not been scheduled yet, and nothing says why")
		}
		a.Unknown = append(a.Unknown, "what would let it in: that takes all nodes and pods")
		return a
	}
	t, err := trial.New(e.ctx, e.Cluster, p)
	if errors.Is(err, trial.ErrNoProfile) {
		return e.nobodysPod(p)
	}
	if err != nil {
		a := reply.Stuck("it has no node: %s", scheduled.Message)
		a.Unknown = append(a.Unknown, "what would let it in: "+err.Error())
		return a
	}
	return e.tried(t, p, scheduled)
}

// nobodysPod asks for a scheduler that there is not.
func (e *explainer) nobodysPod(p *corev1.Pod) *Answer {
	a := reply.Stuck("no scheduler has looked at it: it asks for the scheduler %q, and none of that name answers", p.Spec.SchedulerName)
	if metav1.GetControllerOfNoCopy(p) == nil {
		a.Or("make it anew for the default scheduler", "kubectl get pod %s -n %s -o yaml | sed '/schedulerName:/d' | kubectl replace --force -f -", p.Name, p.Namespace)
	}
	return a
}

// tried is what the scheduler would decide now, and after which change it would decide otherwise.
func (e *explainer) tried(t *trial.Trial, p *corev1.Pod, scheduled corev1.PodCondition) *Answer {
	if len(e.Nodes) == 0 {
		return reply.Stuck("there is no node in the cluster").
			Or("join a machine", "wasmplane token create")
	}
	if st := t.Gate(p); st != nil {
		return reply.Stuck("plugin %s does not let it be tried yet: %s", st.Plugin, st.Joined())
	}
	d := t.Decide(p)
	switch {
	case e.ctx.Err() != nil:
		a := reply.Stuck("it has no node: %s", cmp.Or(scheduled.Message, "nothing says why"))
		a.Unknown = append(a.Unknown, "why no node takes it, and what would let it in: the time for one question ended before the scheduler had decided")
		return a
	case d.Node != "" && e.whole():
		return reply.Stuck("it has not been scheduled yet; node %s would take it now", d.Node)
	case d.Node != "":
		return e.notNative(p, d.Node, scheduled)
	case d.Fatal() != nil:
		return reply.Stuck("a plugin of the scheduler fails: %s", d.Fatal().Joined())
	}
	refused := t.Refusals(d)
	if len(refused) == 0 {
		return reply.Stuck("no node is looked at: %s", strings.TrimSuffix(d.Message(), "."))
	}
	first := refused[0]
	a := reply.Stuck("no node takes it: %s on %d of %d nodes (%s)", first.Reason, len(first.Nodes), len(e.Nodes), first.Plugin)
	a.Refused = refused
	for _, r := range refused[1:] {
		a.Cause += fmt.Sprintf(", %s on %d (%s)", r.Reason, len(r.Nodes), r.Plugin)
	}
	e.lackedFeatures(a, p)
	sentence, kept := t.Preemption()
	if a.Preemption = kept; sentence != "" {
		a.More("%s", sentence)
	}
	a.Changes = t.Changes(p, d)
	switch {
	case e.ctx.Err() != nil:
		a.Unknown = append(a.Unknown, "which other changes would let it in: the time for one question ended before all were tried")
	case len(a.Changes) == 0:
		a.Unknown = append(a.Unknown, "which single change would let it in: no taint off, label, smaller request, pod less, higher priority or node more does")
	}
	return a
}

// lackedFeatures names what the pod needs of its node's kubelet, and who has it.
func (e *explainer) lackedFeatures(a *Answer, p *corev1.Pod) {
	if !slices.ContainsFunc(a.Refused, func(r trial.Refusal) bool { return r.Plugin == nodefeatures.Name }) {
		return
	}
	needs, err := nodefeatures.Needs(p)
	if err != nil {
		return
	}
	has := "no node declares all of that"
	for _, n := range e.Nodes {
		if !slices.ContainsFunc(needs, func(f string) bool { return !slices.Contains(n.Status.DeclaredFeatures, f) }) {
			has = "node " + n.Name + " declares that"
			break
		}
	}
	a.More("its spec needs a kubelet with %s; %s", strings.Join(needs, ", "), has)
}

// whole says whether every plugin of the scheduler is asked in a trial.
func (e *explainer) whole() bool { return e.Profiles != nil && len(e.Untried) == 0 }

// notNative: the native filters leave the pod a node, and yet it has none.
func (e *explainer) notNative(p *corev1.Pod, node string, scheduled corev1.PodCondition) *Answer {
	if scheduled.Status != corev1.ConditionFalse {
		return reply.Stuck("it has not been scheduled yet; node %s would take it", node)
	}
	var a *Answer
	for _, reason := range slices.Sorted(maps.Keys(e.Refusals)) {
		if plugin := e.Refusals[reason]; strings.Contains(scheduled.Message, reason) {
			a = reply.Stuck("plugin %s refuses it: %s", plugin, reason)
			a.Or("see what the plugin said of which node", "wasmplane trace pod/%s -n %s", p.Name, p.Namespace)
			break
		}
	}
	if a == nil {
		a = reply.Stuck("the scheduler refused it when it last tried: %s", strings.TrimSuffix(scheduled.Message, "."))
		a.Or("see which plugin said what of which node", "wasmplane trace pod/%s -n %s", p.Name, p.Namespace)
	}
	a.More("the other filters would let it onto node %s", node)
	unasked := "a plugin in Wasm: it runs in the scheduler, not here"
	if len(e.Untried) > 0 {
		unasked = strings.Join(e.Untried, ", ") + ", whose ABI allows no trials"
	}
	a.Unknown = append(a.Unknown, "what would be thought of another cluster by "+unasked)
	return a
}

// promised is what a pod waits for whose room is being made; nil = it was promised none.
func (e *explainer) promised(p *corev1.Pod) *Answer {
	node := p.Status.NominatedNodeName
	if node == "" {
		return nil
	}
	var going []*corev1.Pod
	for _, o := range e.Pods {
		if o.Spec.NodeName == node && o.DeletionTimestamp != nil && facts.Priority(o) < facts.Priority(p) {
			going = append(going, o)
		}
	}
	if len(going) == 0 {
		return nil
	}
	o := going[0]
	a := reply.Stuck("it gets node %s as soon as pods that are less important have left it: %s/%s has until %s", node, o.Namespace, o.Name,
		o.DeletionTimestamp.UTC().Format("15:04:05")).Publicly("it gets node %s as soon as pods that are less important have left it", node)
	for _, o := range going[:min(len(going), 5)] {
		a.Or("forget pod "+o.Name+" now; its containers may still run", "kubectl delete pod %s -n %s --grace-period=0 --force", o.Name,
			o.Namespace)
	}
	return a
}
