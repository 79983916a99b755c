// SPDX-License-Identifier: Apache-2.0

package volumeprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// refers reports whether a pod that has not ended names the claim, on a node or not.
func refers(pod *corev1.Pod, claim controllers.Key) bool {
	return !controllers.PodFinished(pod) && slices.Contains(controllers.PodClaims(pod), claim)
}

// updateUnused keeps the condition Unused of a bound claim, by which people find claims
// that nobody needs any more, and since when (KEP-5541). A claim that is not bound yet is
// left to those who bind it.
func (c *Claims) updateUnused(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	named, err := c.anyPod(ctx, controllers.Key{Namespace: claim.Namespace, Name: claim.Name}, refers)
	if err != nil {
		return err
	}
	next := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC",
	}
	if named {
		next.Status, next.Reason, next.Message = corev1.ConditionFalse, "PodUsingPVC", "A pod is currently referencing this PVC"
	}
	ours := func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimUnused
	}
	claim = claim.DeepCopy()
	switch at := slices.IndexFunc(claim.Status.Conditions, ours); {
	case at < 0:
		claim.Status.Conditions = append(claim.Status.Conditions, next)
	case claim.Status.Conditions[at].Status == next.Status:
		return nil
	default:
		claim.Status.Conditions[at] = next
	}
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write whether claim %s/%s is unused: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}
