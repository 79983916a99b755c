// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
)

// pending: a pod that has no node.
func (e *explainer) pending(p *corev1.Pod) *Answer {
	if len(p.Spec.SchedulingGates) > 0 {
		var gates []string
		for _, g := range p.Spec.SchedulingGates {
			gates = append(gates, g.Name)
		}
		return stuck("it is held back by its scheduling gates %s, until whoever set them takes them off", strings.Join(gates, ", ")).
			or("take the gates off", `kubectl patch pod %s -n %s --type=json -p '[{"op":"remove","path":"/spec/schedulingGates"}]'`, p.Name, p.Namespace)
	}
	if a := e.podClaims(p); a != nil {
		return a
	}
	if a := e.podDevices(p); a != nil {
		return a
	}
	scheduled := condition(p, corev1.PodScheduled)
	if scheduled.Status == "" && p.Spec.SchedulerName != corev1.DefaultSchedulerName && e.last("Pod", p.Namespace, p.Name,
		"FailedScheduling") == nil {
		a := stuck("no scheduler has looked at it: it asks for the scheduler %q, and none of that name answers", p.Spec.SchedulerName)
		if metav1.GetControllerOfNoCopy(p) == nil {
			a.or("make it anew for the default scheduler", "kubectl get pod %s -n %s -o yaml | sed '/schedulerName:/d' | kubectl replace --force -f -", p.Name, p.Namespace)
		}
		return a
	}
	if a := e.gang(p, scheduled); a != nil {
		return a
	}
	if e.Partial {
		a := stuck("no node takes it, says the scheduler: %s", strings.TrimSuffix(scheduled.Message, "."))
		if scheduled.Message == "" {
			a = stuck("it has not been scheduled yet, and nothing says why")
		}
		a.Unknown = append(a.Unknown, "what would let it in: that takes all nodes and pods")
		return a
	}
	t, err := newTrial(e)
	if err != nil {
		a := stuck("it has no node: %s", scheduled.Message)
		a.Unknown = append(a.Unknown, "what would let it in: "+err.Error())
		return a
	}
	return t.explain(p, scheduled)
}

// trial has the scheduler decide about a pod on copies of the cluster.
type trial struct {
	*explainer
	native *scheduler.Trial
	snap   *framework.Snapshot
}

func newTrial(e *explainer) (*trial, error) {
	inf := informers.NewSharedInformerFactory(nil, 0) // never started: it holds what is put into it
	core, apps, storage, devices := inf.Core().V1(), inf.Apps().V1(), inf.Storage().V1(), inf.Resource().V1()
	for _, fill := range []func() error{
		func() error { return put(core.Nodes().Informer(), e.Nodes) },
		func() error { return put(core.Namespaces().Informer(), e.Namespaces) },
		func() error { return put(core.PersistentVolumeClaims().Informer(), e.Claims) },
		func() error { return put(core.PersistentVolumes().Informer(), e.Volumes) },
		func() error { return put(core.Services().Informer(), e.Services) },
		func() error { return put(core.ReplicationControllers().Informer(), e.Controllers) },
		func() error { return put(apps.ReplicaSets().Informer(), e.ReplicaSets) },
		func() error { return put(apps.StatefulSets().Informer(), e.StatefulSets) },
		func() error { return put(storage.StorageClasses().Informer(), e.Classes) },
		func() error { return put(storage.CSIDrivers().Informer(), e.Drivers) },
		func() error { return put(storage.CSINodes().Informer(), e.DriverNodes) },
		func() error { return put(storage.CSIStorageCapacities().Informer(), e.Room) },
		func() error { return put(devices.ResourceClaims().Informer(), e.DeviceClaims) },
		func() error { return put(devices.DeviceClasses().Informer(), e.DeviceClasses) },
		func() error { return put(devices.ResourceSlices().Informer(), e.DeviceSlices) },
		func() error { return put(devices.DeviceTaintRules().Informer(), e.DeviceTaints) },
		func() error { return put(inf.Policy().V1().PodDisruptionBudgets().Informer(), e.Budgets) },
	} {
		if err := fill(); err != nil {
			return nil, err
		}
	}
	profile := scheduler.Profile{Name: "why", Plugins: native.Default(native.Config{Informers: inf})}
	// Who would be removed is what the changes say: those that are tried.
	decide, err := scheduler.NewTrial(profile.Without([]string{native.Preemption{}.Name()}))
	if err != nil {
		return nil, err
	}
	picture := nodecache.New()
	for _, n := range e.Nodes {
		picture.SetNode(n)
	}
	for _, p := range e.Pods {
		if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			picture.SetPod(p)
		}
	}
	return &trial{e, decide, picture.Snapshot()}, nil
}

func put[T runtime.Object](inf cache.SharedIndexInformer, all []T) error {
	for _, o := range all {
		if err := inf.GetIndexer().Add(o); err != nil {
			return fmt.Errorf("hold %T: %w", o, err)
		}
	}
	return nil
}

func (t *trial) decide(p *corev1.Pod, snap *framework.Snapshot) *scheduler.Decision {
	return t.native.Decide(t.ctx, framework.NewPodInfo(p), snap, 1)
}

// fits says whether the pod has a node in an altered cluster.
func (t *trial) fits(p *corev1.Pod, snap *framework.Snapshot) bool {
	return t.decide(p, snap).Node != ""
}

func (t *trial) explain(p *corev1.Pod, scheduled corev1.PodCondition) *Answer {
	if len(t.Nodes) == 0 {
		return stuck("there is no node in the cluster").
			or("join a machine", "wasmplane token create")
	}
	d := t.decide(p, t.snap)
	if d.Node != "" {
		return t.notNative(p, d.Node, scheduled)
	}
	refused := refusals(d, t.snap)
	if len(refused) == 0 {
		return stuck("no node is looked at: %s", strings.TrimSuffix(d.Message(), "."))
	}
	first := refused[0]
	a := stuck("no node takes it: %s on %d of %d nodes (%s)", first.Reason, len(first.Nodes), len(t.Nodes), first.Plugin)
	a.Refused = refused
	for _, r := range refused[1:] {
		a.Cause += fmt.Sprintf(", %s on %d (%s)", r.Reason, len(r.Nodes), r.Plugin)
	}
	a.Changes = t.changes(p, d)
	if len(a.Changes) == 0 {
		a.Unknown = append(a.Unknown, "which single change would let it in: no taint off, label, smaller request, pod less or node more does")
	}
	return a
}

// notNative: the native filters leave the pod a node, and yet it has none.
func (t *trial) notNative(p *corev1.Pod, node string, scheduled corev1.PodCondition) *Answer {
	if scheduled.Status != corev1.ConditionFalse {
		return stuck("it has not been scheduled yet; node %s would take it", node)
	}
	var a *Answer
	for _, reason := range slices.Sorted(maps.Keys(t.Refusals)) {
		if plugin := t.Refusals[reason]; strings.Contains(scheduled.Message, reason) {
			a = stuck("plugin %s refuses it: %s", plugin, reason)
			a.or("see what the plugin said of which node", "wasmplane trace pod/%s -n %s", p.Name, p.Namespace)
			break
		}
	}
	if a == nil {
		a = stuck("the scheduler refused it when it last tried: %s", strings.TrimSuffix(scheduled.Message, "."))
		a.or("see which plugin said what of which node", "wasmplane trace pod/%s -n %s", p.Name, p.Namespace)
	}
	a.because("the native filters would let it onto node %s", node)
	a.Unknown = append(a.Unknown, "what a plugin in Wasm would think of another cluster: it runs in the scheduler, not here")
	return a
}

// refusals groups the nodes by reason, the reason of most nodes first.
func refusals(d *scheduler.Decision, snap *framework.Snapshot) []Refusal {
	if d.Whole != nil {
		var all []string
		for _, n := range snap.Nodes {
			all = append(all, n.Node.Name)
		}
		return []Refusal{{d.Whole.Plugin, strings.Join(d.Whole.Reasons, ", "), all}}
	}
	by := map[[2]string][]string{}
	for name, st := range d.Statuses {
		key := [2]string{st.Plugin, strings.Join(st.Reasons, ", ")}
		by[key] = append(by[key], name)
	}
	var out []Refusal
	for key, nodes := range by {
		slices.Sort(nodes)
		out = append(out, Refusal{key[0], key[1], nodes})
	}
	slices.SortFunc(out, func(a, b Refusal) int {
		return cmp.Or(len(b.Nodes)-len(a.Nodes), strings.Compare(a.Reason, b.Reason), strings.Compare(a.Plugin, b.Plugin))
	})
	return out
}
