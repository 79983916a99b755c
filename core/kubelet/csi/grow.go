// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// grown: the volume has become larger than its claim's status says, so that the file
// system on it may have to follow.
func (w *work) grown() bool {
	if w.r.Claim == nil || w.r.Persistent == nil || w.s.readOnly {
		return false
	}
	if w.r.Claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizeInfeasible {
		return false // the driver has said so: another size has to be asked for
	}
	size, told := w.r.Persistent.Spec.Capacity[corev1.ResourceStorage], w.r.Claim.Status.Capacity[corev1.ResourceStorage]
	return !told.IsZero() && size.Cmp(told) > 0
}

// grow has the driver let the file system follow, with the pod at work in it. What goes
// wrong keeps no pod from running: it is said on the claim, and tried again.
func (w *work) grow(ctx context.Context) {
	if !w.grown() || !w.can.has(spec.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return
	}
	claim, size := w.r.Claim, w.r.Persistent.Spec.Capacity[corev1.ResourceStorage]
	err := w.write(ctx, claim, growing(claim))
	if err == nil {
		err = w.expand(ctx, size)
	}
	if err == nil {
		err = w.write(ctx, w.r.Claim, grownTo(w.r.Claim, size))
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		w.cfg.Logger.WarnContext(ctx, "the file system of a volume cannot be made larger; trying again", "driver", w.s.driver,
			"volume", w.s.handle, "error", err)
		for _, about := range []any{w.r.Pod, claim} {
			w.event(about, corev1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("NodeExpandVolume failed for volume %q : %v",
				w.r.Persistent.Name, err))
		}
		if infeasible(code(err)) {
			// The controller gives a size up only if it is known to be out of reach.
			if err := w.write(ctx, w.r.Claim, outOfReach(w.r.Claim, err.Error())); err != nil {
				w.cfg.Logger.WarnContext(ctx, "a claim is not told that it cannot grow", "kind", "PersistentVolumeClaim", "namespace", claim.Namespace,
					"name", claim.Name, "error", err)
			}
		}
	default:
		for _, about := range []any{w.r.Pod, claim} {
			w.event(about, corev1.EventTypeNormal, "FileSystemResizeSuccessful", fmt.Sprintf("NodeExpandVolume succeeded for volume %q",
				w.r.Persistent.Name))
		}
	}
}

func (n *Node) event(about any, kind, reason, message string) {
	switch o := about.(type) {
	case *corev1.Pod:
		n.rec.Event(o, kind, reason, message)
	case *corev1.PersistentVolumeClaim:
		n.rec.Event(o, kind, reason, message)
	}
}

func (w *work) expand(ctx context.Context, size resource.Quantity) error {
	secrets, err := w.secrets(ctx, w.s.expandSecret)
	if err != nil {
		return err
	}
	_, err = ask(ctx, w.d, "NodeExpandVolume", func(ctx context.Context, c spec.NodeClient) (*spec.NodeExpandVolumeResponse, error) {
		return c.NodeExpandVolume(ctx, &spec.NodeExpandVolumeRequest{
			VolumeId: w.s.handle, VolumePath: w.cfg.seen(targetPath(w.r.Dir)), CapacityRange: &spec.CapacityRange{RequiredBytes: size.Value()},
			StagingTargetPath: w.staging(), VolumeCapability: w.s.capability(w.can, w.group()), Secrets: secrets,
		})
	})
	return err
}

// infeasible answers of a driver are final, by the specification and upstream.
func infeasible(c codes.Code) bool {
	return c == codes.InvalidArgument || c == codes.OutOfRange || c == codes.NotFound
}

// growing, grownTo and outOfReach are a claim's next states, as upstream's kubelet and
// external-resizer know them (KEP-1790).
func growing(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return inState(c, corev1.PersistentVolumeClaimNodeResizeInProgress)
}

func inState(c *corev1.PersistentVolumeClaim, s corev1.ClaimResourceStatus) *corev1.PersistentVolumeClaim {
	next := c.DeepCopy()
	if next.Status.AllocatedResourceStatuses == nil {
		next.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	next.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = s
	return next
}

func grownTo(c *corev1.PersistentVolumeClaim, size resource.Quantity) *corev1.PersistentVolumeClaim {
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

func outOfReach(c *corev1.PersistentVolumeClaim, why string) *corev1.PersistentVolumeClaim {
	next := inState(c, corev1.PersistentVolumeClaimNodeResizeInfeasible)
	next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimNodeResizeError
	})
	next.Status.Conditions = append(next.Status.Conditions, corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		Message: "failed to expand pvc with " + why,
	})
	return next
}

// write brings a claim's status from one state to the next; the request's claim is what
// came of it.
func (w *work) write(ctx context.Context, have, next *corev1.PersistentVolumeClaim) error {
	a, err := json.Marshal(have)
	if err != nil {
		return fmt.Errorf("encode claim: %w", err)
	}
	b, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode claim: %w", err)
	}
	body, err := strategicpatch.CreateTwoWayMergePatch(a, b, corev1.PersistentVolumeClaim{})
	if err != nil || string(body) == "{}" {
		return err
	}
	got, err := w.cfg.Client.CoreV1().PersistentVolumeClaims(have.Namespace).Patch(ctx, have.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write the status of claim %s/%s: %w", have.Namespace, have.Name, err)
	}
	w.r.Claim = got
	return nil
}
