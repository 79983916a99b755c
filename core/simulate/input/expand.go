// SPDX-License-Identifier: Apache-2.0

package input

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/core/simulate/arrivals"
)

// Annotations of an object, or of its pods' template, that say when its pods come.
const (
	arrivesKey = arrivals.ArrivesKey
	everyKey   = "simulate.wasmplane.dev/every" // between one pod and the next
	lastsKey   = arrivals.LastsKey
)

// most pods of one simulation: more would not end in a reasonable time, or fit into memory.
const mostPods = arrivals.MostPods

// maker makes pods of objects.
type maker struct {
	*reader
	in      *Input
	rand    *rand.Rand
	volumes int // pods whose claims are left out
	devices int // pods whose resource claims are
	spaces  map[string]bool
}

// put everything together.
func (r *reader) put(ctx context.Context, q Request) (*Input, error) {
	m := &maker{reader: r, in: &Input{}, rand: rand.New(rand.NewPCG(q.Seed, 2)), spaces: map[string]bool{}} //nolint:gosec // it is to be repeated
	if err := m.nodes(q); err != nil {
		return nil, err
	}
	for _, d := range r.all {
		if err := m.make(d); err != nil {
			return nil, err
		}
	}
	for _, d := range r.own {
		if err := m.workload(ctx, d); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.spaces)) {
		if r.names["Namespace /"+name] == nil {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
			m.in.Cluster.Objects = append(m.in.Cluster.Objects, ns)
		}
	}
	slices.SortStableFunc(m.in.Arrivals, func(a, b simulate.Arrival) int { return cmp.Compare(a.At, b.At) })
	m.in.Notes = r.remarks()
	if m.volumes > 0 {
		m.in.Notes = append(m.in.Notes, fmt.Sprintf("%d pods have claims: volumes are not simulated, and where they are does not matter", m.volumes))
	}
	if m.devices > 0 {
		m.in.Notes = append(m.in.Notes, fmt.Sprintf("%d pods have resource claims: devices are not simulated, and where they are does not matter", m.devices))
	}
	return m.in, nil
}

// make the pods of an object.
func (m *maker) make(d *document) error {
	switch o := d.object.(type) {
	case *corev1.Pod:
		return m.pod(d, o)
	case *appsv1.Deployment:
		return m.deployment(d, o)
	case *appsv1.ReplicaSet:
		return m.replicaSet(d, o)
	case *corev1.ReplicationController:
		m.hold(o)
		if !d.cluster && o.Spec.Template != nil {
			return m.several(d, "ReplicationController", o, o.Spec.Template, count(o.Spec.Replicas), simulate.GoesOn)
		}
	case *appsv1.StatefulSet:
		m.hold(o)
		if !d.cluster {
			return m.several(d, "StatefulSet", o, &o.Spec.Template, count(o.Spec.Replicas), simulate.GoesOn)
		}
	case *appsv1.DaemonSet:
		return m.daemonSet(d, o)
	case *batchv1.Job:
		return m.job(d, o)
	case *schedulingv1beta1.PodGroup:
		spec := corev1.PodSpec{Priority: o.Spec.Priority, PriorityClassName: o.Spec.PriorityClassName}
		if err := m.priority(d, "spec.", &spec); err != nil {
			return err
		}
		o.Spec.Priority = spec.Priority
		m.in.Cluster.Groups = append(m.in.Cluster.Groups, o)
	case *corev1.Service, *policyv1.PodDisruptionBudget, *corev1.Namespace:
		m.hold(o)
	}
	return nil
}

func (m *maker) hold(o runtime.Object) { m.in.Cluster.Objects = append(m.in.Cluster.Objects, o) }

func count(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

func (m *maker) deployment(d *document, o *appsv1.Deployment) error {
	if d.cluster {
		return nil
	}
	// Plugins look for the ReplicaSet of a pod, not for the Deployment.
	set := &appsv1.ReplicaSet{
		ObjectMeta: *o.ObjectMeta.DeepCopy(),
		Spec:       appsv1.ReplicaSetSpec{Selector: o.Spec.Selector, Template: o.Spec.Template},
	}
	set.Name += "-simulated"
	m.hold(set)
	return m.several(d, "ReplicaSet", set, &o.Spec.Template, count(o.Spec.Replicas), simulate.GoesOn)
}

func (m *maker) replicaSet(d *document, o *appsv1.ReplicaSet) error {
	m.hold(o)
	if d.cluster {
		return nil
	}
	return m.several(d, "ReplicaSet", o, &o.Spec.Template, count(o.Spec.Replicas), simulate.GoesOn)
}

// daemonSet has a pod for each node, bound to it as upstream's controller does.
func (m *maker) daemonSet(d *document, o *appsv1.DaemonSet) error {
	if d.cluster {
		return nil
	}
	first := len(m.in.Arrivals)
	if err := m.several(d, "DaemonSet", o, &o.Spec.Template, len(m.in.Cluster.Nodes), simulate.GoesOn); err != nil {
		return err
	}
	for i, n := range m.in.Cluster.Nodes {
		spec := &m.in.Arrivals[first+i].Pod.Spec
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{n.Name}}}},
			},
		}}}
		for _, key := range []string{corev1.TaintNodeUnschedulable, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
	}
	return nil
}

// job has as many pods as completions; of those at work at once, the next come when the
// ones before are over.
func (m *maker) job(d *document, o *batchv1.Job) error {
	if d.cluster {
		return nil
	}
	atOnce, all := count(o.Spec.Parallelism), count(o.Spec.Completions)
	if o.Spec.Completions == nil {
		all = atOnce
	}
	first := len(m.in.Arrivals)
	if err := m.several(d, "Job", o, &o.Spec.Template, all, simulate.Restart); err != nil {
		return err
	}
	for i := range m.in.Arrivals[first:] {
		a := &m.in.Arrivals[first+i]
		if a.Lasts == 0 {
			a.Lasts = time.Hour
		}
		if atOnce > 0 {
			a.At += time.Duration(i/atOnce) * a.Lasts
		}
	}
	return nil
}

// times are what annotations say.
type times struct{ arrives, every, lasts time.Duration }

func (d *document) times(of ...map[string]string) (t times, err error) {
	for key, into := range map[string]*time.Duration{arrivesKey: &t.arrives, everyKey: &t.every, lastsKey: &t.lasts} {
		for i, annotations := range of {
			text, ok := annotations[key]
			if !ok {
				continue
			}
			path := []string{"metadata.annotations", "spec.template.metadata.annotations"}[i]
			if *into, err = time.ParseDuration(text); err != nil || *into < 0 {
				return t, d.wrong(path, "%s: expected a duration such as 90s or 2h30m, found %q", key, text)
			}
		}
	}
	return t, nil
}

// pod is one that runs, or one that comes.
func (m *maker) pod(d *document, p *corev1.Pod) error {
	if p.Name == "" {
		p.Name = p.GenerateName + "x"
	}
	p.UID = cmp.Or(p.UID, types.UID(p.Namespace+"/"+p.Name))
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	if p.Spec.NodeName != "" {
		if !slices.ContainsFunc(m.in.Cluster.Nodes, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName }) {
			return d.wrong("spec.nodeName", "there is no node %q", p.Spec.NodeName)
		}
		m.spaces[p.Namespace] = true
		m.in.Cluster.Running = append(m.in.Cluster.Running, p)
		return nil
	}
	t, err := d.times(p.Annotations)
	if err != nil {
		return err
	}
	if err := m.priority(d, "spec.", &p.Spec); err != nil {
		return err
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	comeback := simulate.Never
	if metav1.GetControllerOf(p) != nil {
		comeback = simulate.GoesOn
	}
	return m.arrive(d, simulate.Arrival{At: t.arrives, Lasts: t.lasts, Pod: p, Comeback: comeback})
}

func (m *maker) arrive(d *document, a simulate.Arrival) error {
	if len(m.in.Arrivals) >= mostPods {
		return d.wrong("", "more than %d pods in all are not simulated", mostPods)
	}
	m.spaces[a.Pod.Namespace] = true
	kept := a.Pod.Spec.Volumes[:0:0]
	for _, v := range a.Pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			kept = append(kept, v)
		}
	}
	if len(kept) < len(a.Pod.Spec.Volumes) {
		a.Pod.Spec.Volumes = kept
		m.volumes++
	}
	if len(a.Pod.Spec.ResourceClaims) > 0 {
		a.Pod.Spec.ResourceClaims = nil
		m.devices++
	}
	m.in.Arrivals = append(m.in.Arrivals, a)
	return nil
}

// several pods of one template.
func (m *maker) several(d *document, kind string, owner metav1.Object, template *corev1.PodTemplateSpec, n int, c simulate.Comeback) error {
	t, err := d.times(owner.GetAnnotations(), template.Annotations)
	if err != nil {
		return err
	}
	if err := m.priority(d, "spec.template.spec.", &template.Spec); err != nil {
		return err
	}
	m.complete(template)
	for i := range n {
		p := podOf(kind, owner, template, i)
		if err := m.arrive(d, simulate.Arrival{At: t.arrives + time.Duration(i)*t.every, Lasts: t.lasts, Pod: p, Comeback: c}); err != nil {
			return err
		}
	}
	return nil
}

// complete gives a template the defaults of a pod, which its pods would get when they are made.
func (m *maker) complete(t *corev1.PodTemplateSpec) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "pod", Labels: t.Labels}, Spec: t.Spec}
	if row, ok := m.contract.ByKind(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind()); ok {
		row.Codec("v1").Default(p)
	}
	t.Spec = p.Spec
	return p
}

// podOf is pod i of a template. What is below its metadata is shared by all.
func podOf(kind string, owner metav1.Object, template *corev1.PodTemplateSpec, i int) *corev1.Pod {
	yes := true
	name := fmt.Sprintf("%s-%d", owner.GetName(), i)
	version := "apps/v1"
	switch kind {
	case "Job":
		version = "batch/v1"
	case "ReplicationController":
		version = "v1"
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), Name: name, UID: types.UID(kind + "/" + owner.GetNamespace() + "/" + name),
			Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: version, Kind: kind, Name: owner.GetName(),
				UID: types.UID(kind + "/" + owner.GetNamespace() + "/" + owner.GetName()), Controller: &yes,
			}},
		},
		Spec:   template.Spec,
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	return p
}
