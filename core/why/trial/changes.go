// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/why/facts"
)

// Bounds of what is tried: how many nodes are altered for one kind of change, and how many
// pods are taken from one.
const (
	mostNodes = 50
	mostPods  = 30
)

// change has a command with words of objects in it; ok is false if there is no such command.
func change(what, format string, words ...any) (c Change, ok bool) {
	command, ok := facts.Command(format, words...)
	return Change{What: what, Command: command}, ok
}

// Changes that let the pod in, each tried.
func (t *Trial) Changes(p *corev1.Pod, d *scheduler.Decision) []Change {
	var out []Change
	for _, try := range []func(*corev1.Pod, *scheduler.Decision) (Change, bool){
		t.uncordon, t.untaint, t.label, t.smaller, t.evict, t.important,
		t.elsewhere, t.oneMore,
	} {
		if c, ok := try(p, d); ok && t.ctx.Err() == nil {
			c.Tried = true
			out = append(out, c)
		}
	}
	return out
}

// refusedBy are the nodes that a plugin refuses, by name, as many as are tried.
func (t *Trial) refusedBy(d *scheduler.Decision, plugin string) []*framework.NodeInfo {
	var out []*framework.NodeInfo
	for _, n := range t.snap.Nodes {
		if st := d.Statuses[n.Node.Name]; st != nil && st.Plugin == plugin && len(out) < mostNodes {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *framework.NodeInfo) int { return cmp.Compare(a.Node.Name, b.Node.Name) })
	return out
}

// altering is the cluster with another node in the place of one of its own. Plugins in Wasm keep a
// table of the nodes, which goes by generations.
func (t *Trial) altering(n *framework.NodeInfo) *framework.Snapshot {
	c, changed := *t.snap, *n
	changed.Generation = framework.Simulated()
	c.Nodes, c.Memo, c.Generation = slices.Clone(t.snap.Nodes), nil, changed.Generation
	c.Nodes[c.Index[n.Node.Name]] = &changed
	return &c
}

// altered is a node with a changed object.
func altered(n *framework.NodeInfo, change func(*corev1.Node)) *framework.NodeInfo {
	node := n.Node.DeepCopy()
	change(node)
	return n.WithNode(node)
}

func cordoned(node *corev1.Node) {
	node.Spec.Unschedulable = false
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable })
}

func (t *Trial) uncordon(p *corev1.Pod, d *scheduler.Decision) (Change, bool) {
	for _, n := range t.refusedBy(d, "NodeUnschedulable") {
		if t.fits(p, t.altering(altered(n, cordoned))) {
			return change("use node "+n.Node.Name+" again", "kubectl uncordon %s", n.Node.Name)
		}
	}
	return Change{}, false
}

// byOperators says whether a taint was set by hand: the others say what state a node is in,
// and go when that does.
func byOperators(t corev1.Taint) bool {
	return !strings.HasPrefix(t.Key, "node.kubernetes.io/") && t.Effect != corev1.TaintEffectPreferNoSchedule
}

func (t *Trial) untaint(p *corev1.Pod, d *scheduler.Decision) (Change, bool) {
	for _, n := range t.refusedBy(d, "TaintToleration") {
		var off []string
		for _, taint := range n.Node.Spec.Taints {
			if byOperators(taint) && !slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool {
				return (o.Key == "" || o.Key == taint.Key) && (o.Effect == "" || o.Effect == taint.Effect) &&
					(o.Operator == corev1.TolerationOpExists || o.Value == taint.Value)
			}) {
				off = append(off, taint.Key+":"+string(taint.Effect)+"-")
			}
		}
		without := altered(n, func(node *corev1.Node) {
			node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
				return slices.Contains(off, taint.Key+":"+string(taint.Effect)+"-")
			})
		})
		if len(off) > 0 && t.fits(p, t.altering(without)) {
			return change("take the taint off node "+n.Node.Name, "kubectl taint node %s %s", n.Node.Name, facts.Join(off, " "))
		}
	}
	return Change{}, false
}

// label gives a node what the pod selects.
func (t *Trial) label(p *corev1.Pod, d *scheduler.Decision) (Change, bool) {
	want := selected(p)
	if len(want) == 0 {
		return Change{}, false
	}
	for _, n := range t.refusedBy(d, "NodeAffinity") {
		labelled := altered(n, func(node *corev1.Node) {
			if node.Labels == nil {
				node.Labels = map[string]string{}
			}
			maps.Copy(node.Labels, want)
		})
		if !t.fits(p, t.altering(labelled)) {
			continue
		}
		var pairs []string
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if was, ok := n.Node.Labels[k]; !ok || was != want[k] {
				pairs = append(pairs, k+"="+want[k])
			}
		}
		return change("give node "+n.Node.Name+" the labels that the pod selects", "kubectl label node %s --overwrite %s", n.Node.Name,
			facts.Join(pairs, " "))
	}
	return Change{}, false
}

// selected are labels that a node has to have for the pod's nodeSelector and the first term
// of its required node affinity.
func selected(p *corev1.Pod) map[string]string {
	want := maps.Clone(p.Spec.NodeSelector)
	if want == nil {
		want = map[string]string{}
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return want
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[:1] {
		for _, r := range term.MatchExpressions {
			switch {
			case r.Operator == corev1.NodeSelectorOpIn && len(r.Values) > 0:
				want[r.Key] = r.Values[0]
			case r.Operator == corev1.NodeSelectorOpExists:
				want[r.Key] = "true"
			}
		}
	}
	return want
}

// smaller halves what the pod asks of the resources that are short, again and again.
func (t *Trial) smaller(p *corev1.Pod, d *scheduler.Decision) (Change, bool) {
	short := map[corev1.ResourceName]bool{}
	for _, st := range d.Statuses {
		for _, r := range st.Reasons {
			if name, ok := strings.CutPrefix(r, "Insufficient "); ok && st.Plugin == "NodeResourcesFit" {
				short[corev1.ResourceName(name)] = true
			}
		}
	}
	if len(short) == 0 {
		return Change{}, false
	}
	less := p.DeepCopy()
	for range 8 {
		halved := false
		for i := range less.Spec.Containers {
			requests := less.Spec.Containers[i].Resources.Requests
			for name := range short {
				if q, ok := requests[name]; ok && q.MilliValue() > 1 {
					requests[name], halved = half(name, q), true
				}
			}
		}
		if !halved {
			return Change{}, false
		}
		if t.fits(less, t.snap) {
			command, ok := t.resources(p, less, short)
			return Change{What: "ask for less", Command: command}, ok
		}
	}
	return Change{}, false
}

func half(name corev1.ResourceName, q resource.Quantity) resource.Quantity {
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(q.MilliValue()/2, q.Format)
	}
	return *resource.NewQuantity(q.Value()/2, q.Format)
}

// resources is the command that sets the requests of the pod's workload, or of the pod.
func (t *Trial) resources(p, less *corev1.Pod, short map[corev1.ResourceName]bool) (string, bool) {
	owner := t.Owner(p)
	var commands, patches, parts []string
	for i, c := range less.Spec.Containers {
		var set, patch []string
		for _, name := range slices.Sorted(maps.Keys(short)) {
			now, ok := c.Resources.Requests[name]
			was := p.Spec.Containers[i].Resources.Requests[name]
			if ok && now.Cmp(was) != 0 {
				set, patch = append(set, string(name)+"="+now.String()), append(patch, fmt.Sprintf("%q:%q", name, now.String()))
				parts = append(parts, owner, c.Name, string(name))
			}
		}
		if len(set) > 0 {
			commands = append(commands, fmt.Sprintf("kubectl set resources %s -n %s -c %s --requests=%s", owner, p.Namespace, c.Name,
				strings.Join(set, ",")))
			patches = append(patches, fmt.Sprintf(`{"name":%q,"resources":{"requests":{%s}}}`, c.Name, strings.Join(patch, ",")))
		}
	}
	if owner == "pod/"+p.Name {
		return fmt.Sprintf(`kubectl patch pod %s -n %s --subresource resize -p '{"spec":{"containers":[%s]}}'`, p.Name, p.Namespace,
			strings.Join(patches, ",")), facts.Join(parts, " ") != ""
	}
	return strings.Join(commands, " && "), facts.Join(parts, " ") != ""
}

// evict takes as few pods as possible from one node, none of them more important than this.
func (t *Trial) evict(p *corev1.Pod, d *scheduler.Decision) (Change, bool) {
	var best []*framework.PodInfo
	on, tried := "", 0
	for _, n := range t.snap.Nodes {
		st := d.Statuses[n.Node.Name]
		if st == nil || st.Code != framework.Unschedulable || len(n.Pods) == 0 {
			continue
		}
		if tried++; tried > mostNodes {
			break
		}
		if gone := t.room(p, n); gone != nil && (best == nil || len(gone) < len(best)) {
			best, on = gone, n.Node.Name
		}
		if len(best) == 1 {
			break
		}
	}
	if best == nil {
		return Change{}, false
	}
	var commands []string
	for _, g := range best {
		commands = append(commands, fmt.Sprintf("kubectl delete pod %s -n %s", g.Pod.Name, g.Pod.Namespace))
	}
	return Change{What: fmt.Sprintf("make room on node %s; a controller makes its pods again, which then wait behind this one", on), Command: strings.Join(commands, " && ")}, true
}

// room is which pods have to leave a node; nil = not even all of them help.
func (t *Trial) room(p *corev1.Pod, n *framework.NodeInfo) []*framework.PodInfo {
	var others []*framework.PodInfo
	for _, o := range n.Pods {
		if facts.Priority(o.Pod) <= facts.Priority(p) && o.Pod.DeletionTimestamp == nil {
			others = append(others, o)
		}
	}
	slices.SortStableFunc(others, func(a, b *framework.PodInfo) int { return cmp.Compare(facts.Priority(a.Pod), facts.Priority(b.Pod)) })
	others = others[:min(len(others), mostPods)]
	for _, o := range others {
		if t.fits(p, t.altering(n.WithoutPod(o))) {
			return []*framework.PodInfo{o}
		}
	}
	slices.SortStableFunc(others, func(a, b *framework.PodInfo) int { return cmp.Compare(b.Requests.MilliCPU, a.Requests.MilliCPU) })
	for i, o := range others {
		if n = n.WithoutPod(o); t.fits(p, t.altering(n)) {
			return others[:i+1]
		}
	}
	return nil
}

// oneMore tries an empty node of each shape that there is.
func (t *Trial) oneMore(p *corev1.Pod, _ *scheduler.Decision) (Change, bool) {
	tried := map[string]bool{}
	for _, n := range t.snap.Nodes {
		node := n.Node.DeepCopy()
		node.Spec.Unschedulable, node.Spec.Taints = false, slices.DeleteFunc(node.Spec.Taints,
			func(t corev1.Taint) bool { return !byOperators(t) })
		node.Name = "one-more"
		if _, ok := node.Labels[corev1.LabelHostname]; ok {
			node.Labels[corev1.LabelHostname] = node.Name
		}
		a := framework.NewResources(node.Status.Allocatable)
		shape := fmt.Sprint(a, node.Labels, node.Spec.Taints)
		if tried[shape] || len(tried) > mostNodes {
			continue
		}
		tried[shape] = true
		c, another := *t.snap, framework.NewNodeInfo(node)
		another.Generation = framework.Simulated()
		c.Generation, c.NodesGeneration = another.Generation, another.Generation
		c.Nodes, c.Index, c.Memo = append(slices.Clone(t.snap.Nodes), another), maps.Clone(t.snap.Index), nil
		c.Index[node.Name] = len(c.Nodes) - 1
		if t.fits(p, &c) {
			return Change{
				What: fmt.Sprintf("join one more machine like %s (%s cpu, %s memory)", n.Node.Name, n.Node.Status.Allocatable.Cpu(),
					n.Node.Status.Allocatable.Memory()),
				Command: "wasmplane token create",
			}, true
		}
	}
	return Change{}, false
}
