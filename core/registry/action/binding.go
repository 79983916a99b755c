// SPDX-License-Identifier: Apache-2.0

package action

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/registry"
)

// binding assigns a pod to a node: what the scheduler posts to pods/NAME/binding.
type binding struct {
	registries *registry.Set
	now        func() time.Time
}

// oldBinding is a binding posted to bindings, as it once was.
type oldBinding struct{ binding }

// Do implements Action.
func (b oldBinding) Do(ctx context.Context, _ *registry.Registry, req *registry.Request) (runtime.Object, error) {
	pods, err := b.registries.Builtin(corev1.Resource("pods"))
	if err != nil {
		return nil, err
	}
	one := *req
	one.Subresource = "binding" // admission plugins that guard that guard this too
	return b.binding.Do(ctx, pods, &one)
}

// Do implements Action.
func (b binding) Do(ctx context.Context, pods *registry.Registry, req *registry.Request) (runtime.Object, error) {
	wanted, judge, err := judged[*corev1.Binding](ctx, pods, req, corev1.SchemeGroupVersion.WithKind("Binding"))
	if err != nil {
		return nil, err
	}
	if req.Name != "" && req.Name != wanted.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if wanted.Namespace != "" && wanted.Namespace != req.Namespace {
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if err := validBinding(wanted); err != nil {
		return nil, err
	}
	uid, version := wanted.UID, wanted.ResourceVersion
	_, err = pods.ChangeJudged(ctx, req.Namespace, wanted.Name, req.DryRun(), judge, func(o runtime.Object) error {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return apierrors.NewInternalError(fmt.Errorf("stored pod is a %T", o))
		}
		if err := pods.CheckPreconditions(pod, &metav1.Preconditions{UID: &uid, ResourceVersion: &version}); err != nil {
			return err
		}
		if err := assign(pod, wanted, metav1.NewTime(b.now())); err != nil {
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, pod.Name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func validBinding(b *corev1.Binding) error {
	var errs field.ErrorList
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	if b.Target.Name == "" {
		errs = append(errs, field.Required(field.NewPath("target", "name"), ""))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Binding"}, b.Name, errs)
	}
	return nil
}

// assign writes the binding into the pod, or says why it cannot be.
func assign(pod *corev1.Pod, b *corev1.Binding, now metav1.Time) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = b.Target.Name
	pod.Status.NominatedNodeName = ""
	if len(b.Annotations) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		maps.Copy(pod.Annotations, b.Annotations)
	}
	// Annotations of init containers' beta days are dropped wherever a pod is written.
	maps.DeleteFunc(pod.Annotations, func(k, _ string) bool {
		return strings.HasPrefix(k, "pod.beta.kubernetes.io/init-container") || strings.HasPrefix(k, "pod.alpha.kubernetes.io/init-container")
	})
	if len(b.Labels) > 0 {
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		maps.Copy(pod.Labels, b.Labels)
	}
	setPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, now)
	return nil
}

// setPodCondition replaces or adds a condition; its transition time moves only
// with its status.
func setPodCondition(pod *corev1.Pod, c corev1.PodCondition, now metav1.Time) {
	c.LastTransitionTime = now
	for i := range pod.Status.Conditions {
		old := &pod.Status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = old.ObservedGeneration
		}
		*old = c
		return
	}
	pod.Status.Conditions = append(pod.Status.Conditions, c)
}
