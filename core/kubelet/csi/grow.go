// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// grown: the volume has become larger than its claim's status says, so that the file
// system on it may have to follow.
func (w *work) grown() bool {
	return !w.s.readOnly && w.r.Grown()
}

// grow has the driver let the file system follow, with the pod at work in it. What goes
// wrong keeps no pod from running: it is said on the claim, and tried again.
func (w *work) grow(ctx context.Context) {
	if !w.grown() || !w.can.has(spec.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return
	}
	claim, size := w.r.Claim, w.r.Persistent.Spec.Capacity[corev1.ResourceStorage]
	err := w.write(ctx, claim, volume.ClaimInState(claim, corev1.PersistentVolumeClaimNodeResizeInProgress))
	if err == nil {
		err = w.expand(ctx, size)
	}
	if err == nil {
		err = w.write(ctx, w.r.Claim, volume.GrownTo(w.r.Claim, size))
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

func outOfReach(c *corev1.PersistentVolumeClaim, why string) *corev1.PersistentVolumeClaim {
	next := volume.ClaimInState(c, corev1.PersistentVolumeClaimNodeResizeInfeasible)
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
	got, err := volume.WriteClaim(ctx, w.cfg.Client, have, next)
	if err != nil {
		return err
	}
	w.r.Claim = got
	return nil
}
