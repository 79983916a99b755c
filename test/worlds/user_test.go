// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
)

const namespace = "default"

// asked is what a user has asked for, and knows what there should be.
type asked struct {
	w    *world
	want map[string]*workload // by kind and name
	next int                  // generation of templates
	made int                  // volumes
}

// workload is one object that the user made.
type workload struct {
	kind, name string
	pods       int32 // how many there should be
	gone       bool
	fails      bool   // it is a Job whose pods fail
	version    string // of its template
}

func newAsked(w *world) *asked { return &asked{w: w, want: map[string]*workload{}} }

// something is what a user might do now.
func (a *asked) something() {
	kinds := []string{"Deployment", "Deployment", "StatefulSet", "Job", "DaemonSet"}
	kind := pick(a.w.rng, kinds)
	name := fmt.Sprintf("%s-%d", strings.ToLower(kind), a.w.rng.IntN(2))
	have := a.want[kind+"/"+name]
	n := int32(a.w.rng.IntN(5))
	switch {
	case have == nil || have.gone:
		a.create(kind, name, n)
	case a.w.chance(5):
		a.remove(have)
	case a.w.chance(3):
		a.removePod(have)
	case a.w.chance(6):
		a.cordon()
	case a.w.chance(6): //nolint:revive // chance is asked anew
		a.recycle()
	case a.w.chance(4):
		a.giveUp()
	case kind == "Job":
	case a.w.chance(2):
		a.change(have, n, have.version)
	default:
		a.next++
		a.change(have, have.pods, fmt.Sprint(a.next))
	}
}

// done says what the user did; an error that is not one of these is a finding.
func (a *asked) done(err error, ok func(error) bool, format string, args ...any) bool {
	text := fmt.Sprintf(format, args...)
	switch {
	case err == nil:
		a.w.say("user: %s", text)
		return true
	case ok != nil && ok(err):
		a.w.say("user: %s: not now", text)
	default:
		a.w.fail("user: %s: %v", text, err)
	}
	return false
}

func template(name, version string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}, Annotations: map[string]string{"version": version}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](5),
			Containers:                    []corev1.Container{{Name: "main", Image: "example.com/" + name + ":" + version}},
		},
	}
}

func (a *asked) create(kind, name string, n int32) {
	meta, selector := metav1.ObjectMeta{Name: name}, &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	pods := template(name, "1")
	apps := a.w.user.Kube.AppsV1()
	o, ctx := metav1.CreateOptions{}, a.w.ctx
	var err error
	fails := false
	switch kind {
	case "Deployment":
		_, err = apps.Deployments(namespace).Create(ctx,
			&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: selector, Template: pods}}, o)
	case "StatefulSet":
		s := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Replicas: &n, Selector: selector, Template: pods,
			ServiceName: name,
		}}
		if a.w.chance(2) {
			s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		}
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{claimTemplate(name)}
		_, err = apps.StatefulSets(namespace).Create(ctx, s, o)
	case "DaemonSet":
		n = int32(len(a.w.machines))
		_, err = apps.DaemonSets(namespace).Create(ctx, &appsv1.DaemonSet{
			ObjectMeta: meta,
			Spec:       appsv1.DaemonSetSpec{Selector: selector, Template: pods},
		}, o)
	case "Job":
		n++
		pods.Spec.RestartPolicy = corev1.RestartPolicyNever
		limit := int32(1000)
		if fails = a.w.chance(3); fails {
			limit = failures
			pods.Annotations[simulated.Prefix+"exit-code"] = "1"
		}
		_, err = a.w.user.Kube.BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{
			Completions: &n, Parallelism: ptr.To(1 + n/2), BackoffLimit: &limit, Template: pods,
		}}, o)
	}
	// What was deleted in the foreground is there until its dependents are gone.
	if !a.done(err, apierrors.IsAlreadyExists, "create %s %s with %d pods, which fail: %v", kind, name, n, fails) {
		return
	}
	a.want[kind+"/"+name] = &workload{kind: kind, name: name, pods: n, version: "1", fails: fails}
	if kind != "Deployment" {
		return
	}
	_, err = a.w.user.Kube.CoreV1().Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: selector.MatchLabels,
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
	}}, o)
	a.done(err, apierrors.IsAlreadyExists, "create its Service")
}

func (a *asked) remove(l *workload) {
	how := pick(a.w.rng, []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground})
	o, ctx := metav1.DeleteOptions{PropagationPolicy: &how}, a.w.ctx
	var err error
	switch l.kind {
	case "Deployment":
		err = a.w.user.Kube.AppsV1().Deployments(namespace).Delete(ctx, l.name, o)
	case "StatefulSet":
		err = a.w.user.Kube.AppsV1().StatefulSets(namespace).Delete(ctx, l.name, o)
	case "DaemonSet":
		err = a.w.user.Kube.AppsV1().DaemonSets(namespace).Delete(ctx, l.name, o)
	case "Job":
		err = a.w.user.Kube.BatchV1().Jobs(namespace).Delete(ctx, l.name, o)
	}
	if a.done(err, nil, "delete %s %s, %s", l.kind, l.name, how) {
		l.gone = true
	}
}

func (a *asked) removePod(l *workload) {
	pods := a.pods(l.name)
	if len(pods) == 0 {
		return
	}
	p := pick(a.w.rng, pods)
	err := a.w.user.Kube.CoreV1().Pods(namespace).Delete(a.w.ctx, p.Name, metav1.DeleteOptions{})
	a.done(err, apierrors.IsNotFound, "delete pod %s", p.Name)
}

func (a *asked) cordon() {
	nodes, err := a.w.user.Kube.CoreV1().Nodes().List(a.w.ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		a.done(err, nil, "list nodes")
		return
	}
	n := pick(a.w.rng, nodes.Items)
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, !n.Spec.Unschedulable)
	_, err = a.w.user.Kube.CoreV1().Nodes().Patch(a.w.ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	a.done(err, nil, "node %s: unschedulable %v", n.Name, !n.Spec.Unschedulable)
}

// change scales a workload, or gives it another template.
func (a *asked) change(l *workload, n int32, version string) {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d,"template":{"metadata":{"annotations":{"version":%q}}}}}`, n, version)
	ctx, o := a.w.ctx, metav1.PatchOptions{}
	var err error
	switch l.kind {
	case "Deployment":
		_, err = a.w.user.Kube.AppsV1().Deployments(namespace).Patch(ctx, l.name, types.MergePatchType, patch, o)
	case "StatefulSet":
		_, err = a.w.user.Kube.AppsV1().StatefulSets(namespace).Patch(ctx, l.name, types.MergePatchType, patch, o)
	case "DaemonSet":
		n = l.pods
		patch = fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"version":%q}}}}}`, version)
		_, err = a.w.user.Kube.AppsV1().DaemonSets(namespace).Patch(ctx, l.name, types.MergePatchType, patch, o)
	}
	if a.done(err, nil, "change %s %s: %d pods of version %s", l.kind, l.name, n, version) {
		l.pods, l.version = n, version
	}
}

func (a *asked) pods(app string) []corev1.Pod {
	list, err := a.w.user.Kube.CoreV1().Pods(namespace).List(a.w.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		a.w.fail("user: list pods: %v", err)
		return nil
	}
	return list.Items
}

// missing is what has not come about of what the user asked for.
func (a *asked) missing() []string {
	var out []string
	miss := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	a.uncordon(miss)
	a.recycle()
	for _, key := range slices.Sorted(maps.Keys(a.want)) {
		l := a.want[key]
		pods := a.pods(l.name)
		switch {
		case l.gone:
			if err := a.exists(l); !apierrors.IsNotFound(err) {
				miss("%s was deleted and is there (%v)", key, err)
			}
			if len(pods) > 0 {
				miss("%s was deleted, and %d of its pods are there: %s", key, len(pods), describe(pods[0]))
			}
		case l.kind == "Job":
			a.job(l, pods, miss)
		default:
			a.running(l, pods, miss)
		}
	}
	a.engines(miss)
	a.leaked(miss)
	slices.Sort(out)
	return out
}

func (a *asked) uncordon(miss func(string, ...any)) {
	nodes, err := a.w.user.Kube.CoreV1().Nodes().List(a.w.ctx, metav1.ListOptions{})
	if err != nil {
		miss("nodes cannot be listed: %v", err)
		return
	}
	if len(nodes.Items) != len(a.w.machines) {
		miss("%d nodes of %d", len(nodes.Items), len(a.w.machines))
	}
	for _, n := range nodes.Items {
		if n.Spec.Unschedulable {
			_, err := a.w.user.Kube.CoreV1().Nodes().Patch(a.w.ctx, n.Name, types.MergePatchType, []byte(`{"spec":{"unschedulable":false}}`),
				metav1.PatchOptions{})
			a.done(err, nil, "uncordon %s", n.Name)
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				miss("node %s is not ready: %s", n.Name, c.Message)
			}
		}
	}
}

func describe(p corev1.Pod) string {
	ready := false
	for _, c := range p.Status.Conditions {
		ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	return fmt.Sprintf("%s on %q, %s, ready %v, deleted %v, finalizers %v, %s %s",
		p.Name, p.Spec.NodeName, p.Status.Phase, ready, p.DeletionTimestamp != nil, p.Finalizers, p.Status.Reason, p.Status.Message)
}

func (a *asked) exists(l *workload) error {
	var err error
	o, ctx := metav1.GetOptions{}, a.w.ctx
	switch l.kind {
	case "Deployment":
		_, err = a.w.user.Kube.AppsV1().Deployments(namespace).Get(ctx, l.name, o)
	case "StatefulSet":
		_, err = a.w.user.Kube.AppsV1().StatefulSets(namespace).Get(ctx, l.name, o)
	case "DaemonSet":
		_, err = a.w.user.Kube.AppsV1().DaemonSets(namespace).Get(ctx, l.name, o)
	case "Job":
		_, err = a.w.user.Kube.BatchV1().Jobs(namespace).Get(ctx, l.name, o)
	}
	return err
}

// running holds what is to run for ever against its pods and its status.
func (a *asked) running(l *workload, pods []corev1.Pod, miss func(string, ...any)) {
	// A pod that its node refused stays as Failed, as upstream's does, until there are too many.
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return l.kind == "Deployment" && finished(&p) })
	if int32(len(pods)) != l.pods {
		miss("%s %s has %d pods, and %d were asked for", l.kind, l.name, len(pods), l.pods)
	}
	for _, p := range pods {
		if s := describe(p); !strings.Contains(s, "Running, ready true, deleted false") || p.Annotations["version"] != l.version {
			miss("a pod of %s %s, version %s, is of version %s: %s", l.kind, l.name, l.version, p.Annotations["version"], s)
		}
	}
	var observed, generation int64
	var ready int32
	o, ctx := metav1.GetOptions{}, a.w.ctx
	var err error
	switch l.kind {
	case "Deployment":
		var d *appsv1.Deployment
		if d, err = a.w.user.Kube.AppsV1().Deployments(namespace).Get(ctx, l.name, o); err == nil {
			generation, observed, ready = d.Generation, d.Status.ObservedGeneration, min(d.Status.AvailableReplicas, d.Status.UpdatedReplicas)
			a.endpoints(l, pods, miss)
		}
	case "StatefulSet":
		var s *appsv1.StatefulSet
		if s, err = a.w.user.Kube.AppsV1().StatefulSets(namespace).Get(ctx, l.name, o); err == nil {
			generation, observed, ready = s.Generation, s.Status.ObservedGeneration, min(s.Status.AvailableReplicas, s.Status.CurrentReplicas)
			a.bound(l, miss)
		}
	case "DaemonSet":
		var s *appsv1.DaemonSet
		if s, err = a.w.user.Kube.AppsV1().DaemonSets(namespace).Get(ctx, l.name, o); err == nil {
			generation, observed, ready = s.Generation, s.Status.ObservedGeneration, min(s.Status.NumberAvailable, s.Status.UpdatedNumberScheduled)
		}
	}
	if err != nil || observed != generation || ready != l.pods {
		miss("%s %s says that %d of %d pods are available (generation %d, observed %d), %v", l.kind, l.name, ready, l.pods, generation, observed,
			err)
	}
}

// endpoints holds the EndpointSlices of a Service against its pods.
func (a *asked) endpoints(l *workload, pods []corev1.Pod, miss func(string, ...any)) {
	list, err := a.w.user.Kube.DiscoveryV1().EndpointSlices(namespace).List(a.w.ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + l.name})
	if err != nil {
		miss("EndpointSlices of %s: %v", l.name, err)
		return
	}
	var have, want []string
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if ptr.Deref(e.Conditions.Ready, false) {
				have = append(have, e.Addresses...)
			}
		}
	}
	for _, p := range pods {
		want = append(want, p.Status.PodIP)
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		miss("Service %s has the endpoints %v, and its pods are %v", l.name, have, want)
	}
}

// job holds a Job against its pods.
func (a *asked) job(l *workload, pods []corev1.Pod, miss func(string, ...any)) {
	j, err := a.w.user.Kube.BatchV1().Jobs(namespace).Get(a.w.ctx, l.name, metav1.GetOptions{})
	if err != nil {
		miss("Job %s: %v", l.name, err)
		return
	}
	end := batchv1.JobComplete
	if l.fails {
		end = batchv1.JobFailed
	}
	ended := slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == end &&
			c.Status == corev1.ConditionTrue
	})
	switch {
	case l.fails && (!ended || j.Status.Failed <= failures || j.Status.Active != 0):
		miss("Job %s, whose pods fail, has %d that failed, %d active, %v", l.name, j.Status.Failed, j.Status.Active, j.Status.Conditions)
	case l.fails:
	// Who gets no answer to a create makes another pod, and both may succeed.
	case !ended || j.Status.Succeeded < l.pods || j.Status.Succeeded > l.pods+int32(a.w.lost["pods"]) || j.Status.Active != 0:
		miss("Job %s has %d of %d pods that succeeded, %d active, %d failed, %v", l.name, j.Status.Succeeded, l.pods, j.Status.Active,
			j.Status.Failed, j.Status.Conditions)
	}
	for _, p := range pods {
		if len(p.Finalizers) > 0 || !finished(&p) {
			miss("a pod of the Job %s, which has ended: %s", l.name, describe(p))
		}
	}
}

// engines holds what runs on the machines against the pods of the API.
func (a *asked) engines(miss func(string, ...any)) {
	list, err := a.w.user.Kube.CoreV1().Pods(metav1.NamespaceAll).List(a.w.ctx, metav1.ListOptions{})
	if err != nil {
		miss("pods cannot be listed: %v", err)
		return
	}
	on := map[string]string{} // UID of a pod -> its node
	for _, p := range list.Items {
		on[string(p.UID)] = p.Spec.NodeName
	}
	for _, m := range a.w.machines {
		containers, err := m.engine.ListContainers(a.w.ctx)
		if err != nil {
			miss("containers of %s: %v", m.name, err)
			continue
		}
		for _, c := range containers {
			uid := c.Labels["io.kubernetes.pod.uid"]
			if c.State == cri.ContainerState_CONTAINER_RUNNING && on[uid] != m.name {
				miss("a container of pod %s runs on %s, and the API knows that pod on %q", c.Labels["io.kubernetes.pod.name"], m.name, on[uid])
			}
		}
	}
}
