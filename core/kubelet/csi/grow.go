// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
		if err := w.write(ctx, w.r.Claim, refused(w.r.Claim, size, err)); err != nil {
			w.cfg.Logger.WarnContext(ctx, "a claim is not told that it cannot grow", "kind", "PersistentVolumeClaim", "namespace", claim.Namespace,
				"name", claim.Name, "error", err)
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

// final says whether a driver has answered that nothing of what it was asked for goes on (the specification's codes, as upstream reads
// them). What failed before it was asked is not final.
func final(err error) bool {
	s, answered := status.FromError(err)
	switch s.Code() {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	default:
		return answered
	}
}

// refused is a claim whose volume the driver does not make as large as size. The controller gives a size up only if it is known to be out
// of reach: that is so as well if the answer is final and another size is asked for by now.
func refused(c *corev1.PersistentVolumeClaim, size resource.Quantity, err error) *corev1.PersistentVolumeClaim {
	if !final(err) {
		return c
	}
	next := c.DeepCopy()
	if asked := c.Spec.Resources.Requests[corev1.ResourceStorage]; infeasible(code(err)) || asked.Cmp(size) != 0 {
		next = volume.ClaimInState(c, corev1.PersistentVolumeClaimNodeResizeInfeasible)
	}
	why := "failed to expand pvc with " + err.Error()
	said := func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimNodeResizeError
	}
	if i := slices.IndexFunc(next.Status.Conditions, said); i >= 0 && next.Status.Conditions[i].Message == why {
		return next
	}
	next.Status.Conditions = append(slices.DeleteFunc(next.Status.Conditions, said), corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: why,
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
