// SPDX-License-Identifier: Apache-2.0

package localprovision

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

// grow writes into a volume the size that its claim asks for, as the resizer of a driver
// does whose volumes are expanded on their node alone: the node sees it, and expands.
func (c *Controller) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if claim.Status.Phase != corev1.ClaimBound || asked.Cmp(has) <= 0 {
		return nil
	}
	pv, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := localvolume.WantedOf(pv); err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return nil //nolint:nilerr // another's, or of kind local
	}
	controllers.About(ctx, aClaim, claim)
	if size := pv.Spec.Capacity[corev1.ResourceStorage]; size.Cmp(asked) < 0 {
		why, err := c.tooMuch(pv, asked, size)
		if err != nil {
			return err
		}
		if why != "" {
			c.events.Event(claim, corev1.EventTypeWarning, "VolumeResizeFailed", why)
			return controllers.ErrNotYet // other volumes may go
		}
		next := pv.DeepCopy()
		next.Spec.Capacity[corev1.ResourceStorage] = asked
		if _, err := c.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("write the size that claim %s/%s asks for into volume %s: %w", claim.Namespace, claim.Name, pv.Name, err)
		}
		controllers.Did(ctx, "wrote the size that a claim asks for", aVolume, next)
	}
	return c.pending(ctx, claim)
}

// tooMuch says why the disk of a volume's node has no room for as much more; "" = it has.
func (c *Controller) tooMuch(pv *corev1.PersistentVolume, asked, has resource.Quantity) (string, error) {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return "", err
	}
	for _, n := range nodes {
		if localvolume.On(n.Name, pv) {
			more := asked.DeepCopy()
			more.Sub(has)
			return c.beyond(n, more)
		}
	}
	return "the node of volume " + pv.Name + " is not there", nil
}

// pending says on a claim that its node is to expand the volume, as external-resizer says it.
func (c *Controller) pending(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	const storage = corev1.ResourceStorage
	size := claim.Spec.Resources.Requests[storage]
	if allocated := claim.Status.AllocatedResources[storage]; allocated.Cmp(size) == 0 &&
		claim.Status.AllocatedResourceStatuses[storage] != "" {
		return nil // the node has the word
	}
	next := claim.DeepCopy()
	if next.Status.AllocatedResources == nil {
		next.Status.AllocatedResources = corev1.ResourceList{}
	}
	if next.Status.AllocatedResourceStatuses == nil {
		next.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	next.Status.AllocatedResources[storage] = size
	next.Status.AllocatedResourceStatuses[storage] = corev1.PersistentVolumeClaimNodeResizePending
	if !slices.ContainsFunc(next.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
	}) {
		next.Status.Conditions = append(next.Status.Conditions, corev1.PersistentVolumeClaimCondition{
			Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Message: "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
		})
	}
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("say on claim %s/%s that its node is to expand the volume: %w", claim.Namespace, claim.Name, err)
	}
	c.events.Event(claim, corev1.EventTypeNormal, "FileSystemResizeRequired", "Require file system resize of volume on node")
	return nil
}
