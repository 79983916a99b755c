// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// Grown tells whether the volume has become larger than its claim's status says, so that
// the file system on it may have to follow.
func (r *Request) Grown() bool {
	if r.Claim == nil || r.Persistent == nil || r.ReadOnly {
		return false
	}
	if r.Claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizeInfeasible {
		return false // it cannot: another size has to be asked for
	}
	size, told := r.Persistent.Spec.Capacity[corev1.ResourceStorage], r.Claim.Status.Capacity[corev1.ResourceStorage]
	return !told.IsZero() && size.Cmp(told) > 0
}

// ClaimInState is a claim whose expansion has come that far. These states and GrownTo are
// as upstream's kubelet and external-resizer know them (KEP-1790).
func ClaimInState(c *corev1.PersistentVolumeClaim, s corev1.ClaimResourceStatus) *corev1.PersistentVolumeClaim {
	next := c.DeepCopy()
	if next.Status.AllocatedResourceStatuses == nil {
		next.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	next.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = s
	return next
}

// GrownTo is a claim whose expansion is done.
func GrownTo(c *corev1.PersistentVolumeClaim, size resource.Quantity) *corev1.PersistentVolumeClaim {
	next := c.DeepCopy()
	if next.Status.Capacity == nil {
		next.Status.Capacity = corev1.ResourceList{}
	}
	next.Status.Capacity[corev1.ResourceStorage] = size
	delete(next.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		switch c.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return true
		default:
			return false
		}
	})
	return next
}

// WriteClaim brings a claim's status from one state to the next, and answers what came of it.
func WriteClaim(
	ctx context.Context,
	client kubernetes.Interface,
	have, next *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolumeClaim, error) {
	a, err := json.Marshal(have)
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	b, err := json.Marshal(next)
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	body, err := strategicpatch.CreateTwoWayMergePatch(a, b, corev1.PersistentVolumeClaim{})
	if err != nil || string(body) == "{}" {
		return have, err
	}
	got, err := client.CoreV1().PersistentVolumeClaims(have.Namespace).Patch(ctx, have.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("write the status of claim %s/%s: %w", have.Namespace, have.Name, err)
	}
	return got, nil
}

// grow has the file system of a device follow the volume, with the pod at work in it. What
// goes wrong keeps no pod from running: it is tried again.
func (l *local) grow(ctx context.Context, r *Request, device string) {
	if !r.Grown() {
		return
	}
	if err := l.growTo(ctx, r, device, r.Persistent.Spec.Capacity[corev1.ResourceStorage]); err != nil && ctx.Err() == nil {
		l.logger.WarnContext(ctx, "the file system of a device cannot be made larger; trying again", "kind", "PersistentVolume",
			"name", r.Persistent.Name, "device", device, "error", err)
	}
}

// larger tells the claim of a directory that its volume has grown. There is nothing to do for it, as upstream: whoever offers the
// directory has made what it is in larger, and has written the size into the volume.
func (l *local) larger(ctx context.Context, r *Request) {
	if !r.Grown() {
		return
	}
	next := GrownTo(r.Claim, r.Persistent.Spec.Capacity[corev1.ResourceStorage])
	if _, err := WriteClaim(ctx, l.client, r.Claim, next); err != nil && ctx.Err() == nil {
		l.logger.WarnContext(ctx, "a claim is not told that its volume has grown; trying again", "kind", "PersistentVolumeClaim",
			"namespace", r.Claim.Namespace, "name", r.Claim.Name, "error", err)
	}
}

func (l *local) growTo(ctx context.Context, r *Request, device string, size resource.Quantity) error {
	claim, err := WriteClaim(ctx, l.client, r.Claim, ClaimInState(r.Claim, corev1.PersistentVolumeClaimNodeResizeInProgress))
	if err != nil {
		return err
	}
	release, err := l.alone(ctx)
	if err != nil {
		return err
	}
	err = enlarge(device, r.Dir)
	release()
	if err != nil {
		return fmt.Errorf("make it larger: %w", err)
	}
	_, err = WriteClaim(ctx, l.client, claim, GrownTo(claim, size))
	return err
}

func enlarge(device, dir string) error {
	if err := programs("blkid"); err != nil {
		return err
	}
	has, err := mount.NewSafeFormatAndMount(mount.New(""), exec.New()).GetDiskFormat(device)
	if err != nil {
		return fmt.Errorf("look for it: %w", err)
	}
	if program := growing[has]; program != "" {
		if err := programs(program); err != nil {
			return err
		}
	}
	_, err = mount.NewResizeFs(exec.New()).Resize(device, dir)
	return err
}
