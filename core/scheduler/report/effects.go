// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Effects carries out what a scheduler has decided. Errors are those of the API.
type Effects interface {
	Bind(ctx context.Context, b *corev1.Binding) error
	// PatchStatus merges into a pod's status: conditions, nominatedNodeName (nil takes it off).
	PatchStatus(ctx context.Context, p *corev1.Pod, status map[string]any) error
	// PatchGroup sets a condition of a group, unless it stands there already, or one that is true does.
	PatchGroup(ctx context.Context, g *schedulingv1beta1.PodGroup, c metav1.Condition) error
	// Delete a pod to make room, unless another one has its name by now.
	Delete(ctx context.Context, p *corev1.Pod) error
}

// API is the effects on one.
type API struct{ Client kubernetes.Interface }

// Bind implements Effects.
func (a API) Bind(ctx context.Context, b *corev1.Binding) error {
	return a.Client.CoreV1().Pods(b.Namespace).Bind(ctx, b, metav1.CreateOptions{})
}

// PatchStatus implements Effects.
func (a API) PatchStatus(ctx context.Context, p *corev1.Pod, status map[string]any) error {
	patch, err := patchOf(p, status)
	if err != nil {
		return err
	}
	_, err = a.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// PatchGroup implements Effects.
func (a API) PatchGroup(ctx context.Context, g *schedulingv1beta1.PodGroup, c metav1.Condition) error {
	conditions := append([]metav1.Condition(nil), g.Status.Conditions...)
	c.ObservedGeneration = g.Generation
	if meta.IsStatusConditionTrue(conditions, c.Type) || !meta.SetStatusCondition(&conditions, c) {
		return nil
	}
	patch, err := patchOf(g, map[string]any{"conditions": conditions})
	if err != nil {
		return err
	}
	_, err = a.Client.SchedulingV1beta1().PodGroups(g.Namespace).Patch(ctx, g.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

func patchOf(o metav1.Object, status map[string]any) ([]byte, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID()}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encode the status of %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	return patch, nil
}

// Delete implements Effects.
func (a API) Delete(ctx context.Context, p *corev1.Pod) error {
	return a.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
}

// Scheduled is a pod's PodScheduled=False condition; nil where there is none.
func Scheduled(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c
		}
	}
	return nil
}

// Unscheduled is the change of a pod's status that says why it has no node, and which one it
// is promised; nil where that stands there already.
func Unscheduled(p *corev1.Pod, reason, message, nominated string, again bool) map[string]any {
	since := metav1.Now()
	if c := Scheduled(p); c != nil {
		since = c.LastTransitionTime
		if !again && c.Reason == reason && c.Message == message && (nominated == "" || p.Status.NominatedNodeName == nominated) {
			return nil
		}
	}
	status := map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, ObservedGeneration: p.Generation,
		LastTransitionTime: since, Reason: reason, Message: message,
	}}}
	if nominated != "" {
		status["nominatedNodeName"] = nominated
	}
	return status
}
