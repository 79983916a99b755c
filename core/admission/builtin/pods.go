// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	nodelisters "k8s.io/client-go/listers/node/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// defaultTolerationSeconds lets pods stay for five minutes on a node that is
// not ready or not reachable.
type defaultTolerationSeconds struct{}

const tolerationSeconds = 300

func (defaultTolerationSeconds) Name() string { return "DefaultTolerationSeconds" }

func (defaultTolerationSeconds) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r)
}

func (defaultTolerationSeconds) Mutate(_ context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	var missing []corev1.Toleration
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !toleratesExecute(given, taint) {
			missing = append(missing, corev1.Toleration{
				Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: ptr.To(int64(tolerationSeconds)),
			})
		}
	}
	if len(missing) == 0 {
		return nil
	}
	pod := reading.WithSpec(given)
	pod.Spec.Tolerations = slices.Concat(given.Spec.Tolerations, missing)
	r.Object.SetVersioned(pod)
	return nil
}

func toleratesExecute(p *corev1.Pod, taint string) bool {
	for _, t := range p.Spec.Tolerations {
		if (t.Key == taint || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}

// priority resolves a pod's PriorityClass into a number, and sees to it that
// there is one default class.
type priority struct {
	client kubernetes.Interface
	lister schedulinglisters.PriorityClassLister
	warm   reading.Warm
}

func newPriority(d Deps) *priority {
	classes := d.Informers.Scheduling().V1().PriorityClasses()
	return &priority{d.Client, classes.Lister(), reading.WarmOf(d.Warm, classes.Informer())}
}

func (*priority) Name() string { return "Priority" }

func (*priority) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r) ||
		reading.On("scheduling.k8s.io", "priorityclasses", "", admission.Create, admission.Update).Handles(r) ||
		reading.On("scheduling.k8s.io", "podgroups", "", admission.Create).Handles(r)
}

func (p *priority) Mutate(ctx context.Context, r *admission.Request) error {
	switch r.Resource.Resource {
	case "podgroups":
		return p.mutateGroup(ctx, r)
	case "pods":
	default:
		return nil
	}
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	if r.Operation == admission.Update {
		return keepPriority(r, given)
	}
	return p.resolve(ctx, r, given)
}

// keepPriority lets clients that do not know the fields update the pod.
func keepPriority(r *admission.Request, given *corev1.Pod) error {
	old, err := reading.Typed[*corev1.Pod](r.OldObject)
	if err != nil {
		return err
	}
	number := given.Spec.Priority == nil && old.Spec.Priority != nil
	policy := given.Spec.PreemptionPolicy == nil && old.Spec.PreemptionPolicy != nil
	if !number && !policy {
		return nil
	}
	pod := reading.WithSpec(given)
	if number {
		pod.Spec.Priority = old.Spec.Priority
	}
	if policy {
		pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
	}
	r.Object.SetVersioned(pod)
	return nil
}

func (p *priority) resolve(ctx context.Context, r *admission.Request, given *corev1.Pod) error {
	class, err := p.class(ctx, r, given.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	has, policy := given.Spec.Priority, given.Spec.PreemptionPolicy
	if has != nil && *has != class.Value {
		return admission.Forbidden(r, fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *has, class.Value))
	}
	if policy != nil && class.PreemptionPolicy != nil && *policy != *class.PreemptionPolicy {
		return admission.Forbidden(r, fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *policy, *class.PreemptionPolicy))
	}
	if has != nil && given.Spec.PriorityClassName == class.Name && (policy != nil || class.PreemptionPolicy == nil) {
		return nil // asked before
	}
	pod := reading.WithSpec(given)
	pod.Spec.PriorityClassName, pod.Spec.Priority = class.Name, ptr.To(class.Value)
	if class.PreemptionPolicy != nil {
		pod.Spec.PreemptionPolicy = ptr.To(*class.PreemptionPolicy)
	}
	r.Object.SetVersioned(pod)
	return nil
}

// class is the named class, the default one, or one that says nothing.
func (p *priority) class(ctx context.Context, r *admission.Request, name string) (*schedulingv1.PriorityClass, error) {
	if err := p.warm.Wait(ctx, r); err != nil {
		return nil, err
	}
	if name == "" {
		class, err := p.defaultClass()
		if err == nil && class == nil {
			class = &schedulingv1.PriorityClass{PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority)}
		}
		if err != nil {
			return nil, fmt.Errorf("error occurred while retrieving default priority class: %w", err)
		}
		return class, nil
	}
	class, err := reading.Cached(
		func() (*schedulingv1.PriorityClass, error) { return p.lister.Get(name) },
		func() (*schedulingv1.PriorityClass, error) {
			return p.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		})
	switch {
	case apierrors.IsNotFound(err):
		return nil, admission.Forbidden(r, fmt.Errorf("no PriorityClass with name %v was found", name))
	case err != nil:
		return nil, fmt.Errorf("failed to resolve PriorityClass with name %s: %w", name, err)
	}
	return class, nil
}

// defaultClass: where a race made two, the lower one.
func (p *priority) defaultClass() (*schedulingv1.PriorityClass, error) {
	all, err := p.lister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var found *schedulingv1.PriorityClass
	for _, c := range all {
		if c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
	}
	return found, nil
}

func (p *priority) Validate(ctx context.Context, r *admission.Request) error {
	if r.Resource.Resource != "priorityclasses" {
		return nil
	}
	class, err := reading.Typed[*schedulingv1.PriorityClass](r.Object)
	if err != nil || !class.GlobalDefault {
		return err
	}
	if err := p.warm.Wait(ctx, r); err != nil {
		return err
	}
	other, err := p.defaultClass()
	if err != nil {
		return fmt.Errorf("failed to get default priority class: %w", err)
	}
	if other != nil && (r.Operation == admission.Create || other.Name != class.Name) {
		return admission.Forbidden(r, fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", other.Name))
	}
	return nil
}

// runtimeClass adds a runtime's overhead and node constraints to pods that ask for it.
type runtimeClass struct {
	client kubernetes.Interface
	lister nodelisters.RuntimeClassLister
	warm   reading.Warm
}

func newRuntimeClass(d Deps) *runtimeClass {
	classes := d.Informers.Node().V1().RuntimeClasses()
	return &runtimeClass{d.Client, classes.Lister(), reading.WarmOf(d.Warm, classes.Informer())}
}

func (*runtimeClass) Name() string { return "RuntimeClass" }

func (*runtimeClass) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create).Handles(r)
}

func (p *runtimeClass) class(ctx context.Context, r *admission.Request, pod *corev1.Pod) (*nodev1.RuntimeClass, error) {
	if pod.Spec.RuntimeClassName == nil {
		return nil, nil
	}
	if err := p.warm.Wait(ctx, r); err != nil {
		return nil, err
	}
	name := *pod.Spec.RuntimeClassName
	class, err := reading.Cached(
		func() (*nodev1.RuntimeClass, error) { return p.lister.Get(name) },
		func() (*nodev1.RuntimeClass, error) {
			return p.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
		})
	if apierrors.IsNotFound(err) {
		return nil, admission.Forbidden(r, fmt.Errorf("pod rejected: RuntimeClass %q not found", name))
	}
	return class, err
}

func (p *runtimeClass) Mutate(ctx context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	class, err := p.class(ctx, r, given)
	if err != nil || class == nil {
		return err
	}
	pod := reading.Copied(given)
	if class.Overhead != nil {
		if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return overheadDiffers(r)
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if err := addScheduling(r, pod, class.Scheduling); err != nil {
		return err
	}
	reading.SetIfChanged(r, given, pod)
	return nil
}

func overheadDiffers(r *admission.Request) error {
	return admission.Forbidden(r, errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
}

func addScheduling(r *admission.Request, pod *corev1.Pod, s *nodev1.Scheduling) error {
	if s == nil {
		return nil
	}
	for k, v := range s.NodeSelector {
		if has, ok := pod.Spec.NodeSelector[k]; ok && has != v {
			return admission.Forbidden(r, fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", k, v, k, has))
		}
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[k] = v
	}
	pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, s.Tolerations)
	return nil
}

// mergeTolerations leaves out those that another one covers.
func mergeTolerations(a, b []corev1.Toleration) []corev1.Toleration {
	all := append(append([]corev1.Toleration{}, a...), b...)
	var merged []corev1.Toleration
next:
	for i, t := range all {
		for _, m := range merged {
			if covers(m, t) {
				continue next
			}
		}
		for _, later := range all[i+1:] {
			if !equality.Semantic.DeepEqual(t, later) && covers(later, t) {
				continue next
			}
		}
		merged = append(merged, t)
	}
	return merged
}

// covers says whether whoever is tolerated by t is tolerated by s as well.
func covers(s, t corev1.Toleration) bool {
	switch {
	case equality.Semantic.DeepEqual(s, t):
		return true
	case t.Key != s.Key && (s.Key != "" || s.Operator != corev1.TolerationOpExists):
		return false
	case t.Effect != s.Effect && s.Effect != "":
		return false
	case s.Effect == corev1.TaintEffectNoExecute && s.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *s.TolerationSeconds):
		return false
	}
	switch s.Operator {
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpEqual, "":
		return t.Operator == corev1.TolerationOpEqual && t.Value == s.Value
	default:
		return false
	}
}

func (p *runtimeClass) Validate(ctx context.Context, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	class, err := p.class(ctx, r, pod)
	if err != nil {
		return err
	}
	if class != nil && class.Overhead != nil {
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return overheadDiffers(r)
		}
		return nil
	}
	if pod.Spec.Overhead != nil {
		return admission.Forbidden(r, errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"))
	}
	return nil
}
