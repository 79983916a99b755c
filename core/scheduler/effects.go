// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Effects carries out what a scheduler has decided. Errors are those of the API.
type Effects interface {
	Bind(ctx context.Context, b *corev1.Binding) error
	// PatchStatus merges into a pod's status: conditions, nominatedNodeName (nil takes it off).
	PatchStatus(ctx context.Context, p *corev1.Pod, status map[string]any) error
	// Delete a pod to make room, unless another one has its name by now.
	Delete(ctx context.Context, p *corev1.Pod) error
}

// writes are effects on the API.
type writes struct{ client kubernetes.Interface }

// Bind implements Effects.
func (w writes) Bind(ctx context.Context, b *corev1.Binding) error {
	return w.client.CoreV1().Pods(b.Namespace).Bind(ctx, b, metav1.CreateOptions{})
}

// PatchStatus implements Effects.
func (w writes) PatchStatus(ctx context.Context, p *corev1.Pod, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode a pod's status: %w", err)
	}
	_, err = w.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// Delete implements Effects.
func (w writes) Delete(ctx context.Context, p *corev1.Pod) error {
	return w.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
}
