// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/attachment"
	"github.com/wasmplane/wasmplane/core/run"
)

// attach waits until the volume is attached to this node, and answers what its attacher
// has to say to the driver. The node's status names the volume first: from then on the
// controller does not detach it.
func (w *work) attach(ctx context.Context) (map[string]string, error) {
	if err := w.reportInUse(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	name := attachment.Name(w.s.driver, w.s.handle, w.cfg.NodeName)
	look := run.Backoff{First: 50 * time.Millisecond, Longest: 2 * time.Second}
	for {
		found, err := w.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
		why := notAttached(found, err, w.s.driver)
		if why == "" {
			return found.Status.AttachmentMetadata, nil
		}
		if !look.Wait(ctx) {
			if err == nil && w.exhausted(found) {
				// The scheduler is to know of it before the pod's successor comes.
				if err := w.registry.recount(context.WithoutCancel(ctx), w.s.driver); err != nil {
					w.cfg.Logger.WarnContext(ctx, "a CSI driver does not say how many volumes the node may have", "driver", w.s.driver, "error", err)
				}
				return nil, &limitExceeded{why}
			}
			return nil, errors.New(why)
		}
	}
}

// exhausted tells whether the driver has refused the volume since the node has as many as
// it may have, of a driver whose number of volumes is asked for again (KEP-4876).
func (w *work) exhausted(a *storagev1.VolumeAttachment) bool {
	e := a.Status.AttachError
	return w.object != nil && w.object.Spec.NodeAllocatableUpdatePeriodSeconds != nil && !a.Status.Attached &&
		e != nil && e.ErrorCode != nil && codes.Code(*e.ErrorCode) == codes.ResourceExhausted //nolint:gosec // a code, or none that is known
}

// limitExceeded ends the pod: another node may have room.
type limitExceeded struct{ why string }

func (l *limitExceeded) Error() string {
	return "Node has reached its volume attachment limit, rejecting pod: " + l.why
}

// PodReason is the reason with which the pod fails, which is upstream's.
func (*limitExceeded) PodReason() string { return "VolumeAttachmentLimitExceeded" }

// notAttached says why an attachment is none yet; "" = it is one.
func notAttached(a *storagev1.VolumeAttachment, err error, driver string) string {
	switch {
	// A node may not read what does not exist, for it could not be about the node.
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "the volume is not attached to this node, and no VolumeAttachment says that it is to be: the attach-detach controller has not got to it"
	case err != nil:
		return fmt.Sprintf("read the volume's VolumeAttachment: %v", err)
	case a.DeletionTimestamp != nil:
		return "the volume is being detached from this node, and is attached again afterwards"
	case a.Status.Attached:
		return ""
	case a.Status.AttachError != nil:
		return "AttachVolume.Attach failed: " + a.Status.AttachError.Message
	}
	return fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to attach the volume (VolumeAttachment %s)", driver, a.Name)
}

// inUse is what the node's status was told to say.
type inUse struct {
	mu    sync.Mutex
	names []corev1.UniqueVolumeName
	known bool
	at    time.Time
}

// volumesInUse are the attached volumes of which something may be mounted.
func (c *Config) volumesInUse() ([]corev1.UniqueVolumeName, error) {
	pods, err := c.published()
	stages, stagesErr := c.stages()
	out := []corev1.UniqueVolumeName{}
	for _, p := range append(pods, stages...) {
		if p.Attached == yes {
			out = append(out, attachment.Volume(p.Driver, p.Handle))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), errors.Join(err, stagesErr)
}

// reportInUse has the node's status name the volumes in use. Names that are not ours stay.
func (n *Node) reportInUse(ctx context.Context) error {
	u := &n.inUse
	u.mu.Lock()
	defer u.mu.Unlock()
	now, err := n.cfg.volumesInUse()
	if err != nil {
		return err // one that cannot be read may be in use: what was said stays
	}
	// Now and then it is looked up: the Node may have been made anew.
	fresh := time.Since(u.at) < n.cfg.Look || len(now) == 0
	if u.known && fresh && slices.Equal(u.names, now) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeout)
	defer cancel()
	node, err := n.cfg.Client.CoreV1().Nodes().Get(ctx, n.cfg.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && len(now) == 0 {
		return nil // it is about to be registered
	}
	if err != nil {
		return fmt.Errorf("read node %s: %w", n.cfg.NodeName, err)
	}
	want := slices.Clone(now)
	for _, name := range node.Status.VolumesInUse {
		if !attachment.IsVolume(name) {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	if !slices.Equal(want, slices.Sorted(slices.Values(node.Status.VolumesInUse))) {
		body, err := json.Marshal(map[string]any{"status": map[string]any{"volumesInUse": want}})
		if err != nil {
			return fmt.Errorf("encode the volumes in use: %w", err)
		}
		if _, err := n.cfg.Client.CoreV1().Nodes().Patch(ctx, n.cfg.NodeName, types.MergePatchType, body, metav1.PatchOptions{},
			"status"); err != nil {
			return fmt.Errorf("write the volumes in use into the status of node %s: %w", n.cfg.NodeName, err)
		}
	}
	u.names, u.known, u.at = now, true, time.Now()
	return nil
}
