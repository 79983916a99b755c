// SPDX-License-Identifier: Apache-2.0

package csi_test

import (
	"context"
	"errors"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/attachment"
	"github.com/wasmplane/wasmplane/core/kubelet/csi/csitest"
)

// TestTheNumberOfVolumesFollowsTheDriver where its CSIDriver says how often to ask, and
// nothing else of what the driver says does.
func TestTheNumberOfVolumesFollowsTheDriver(t *testing.T) {
	w, root := newWorld(t, func(c *csitest.Config) { c.MaxVolumes = 7 }, func(d *storagev1.CSIDriver) {
		d.Spec.NodeAllocatableUpdatePeriodSeconds = ptr.To[int64](1) // the API asks for 10 or more
	})
	if !root {
		return
	}
	count := func() int32 {
		for _, d := range w.csiNode() {
			if d.Name == driverName && d.Allocatable != nil {
				return *d.Allocatable.Count
			}
		}
		return 0
	}
	w.eventually("the number is in the CSINode", func() bool { return count() == 7 })
	w.driver.Answer(func(_ context.Context, r *spec.NodeGetInfoResponse) { r.MaxVolumesPerNode, r.NodeId = 9, "another" })
	w.eventually("the new number is", func() bool { return count() == 9 })
	if id := w.csiNode()[0].NodeID; id != "id-of-n1" {
		t.Errorf("the node's ID became %q", id)
	}
}

// TestTheNodeHasAsManyVolumesAsItMay: the pod fails, with a reason by which it is known,
// and the CSINode has the new number.
func TestTheNodeHasAsManyVolumesAsItMay(t *testing.T) {
	w, root := newWorld(t, func(c *csitest.Config) { c.MaxVolumes = 7 }, func(d *storagev1.CSIDriver) {
		d.Spec.AttachRequired, d.Spec.NodeAllocatableUpdatePeriodSeconds = nil, ptr.To[int64](3600)
	})
	if !root {
		return
	}
	w.driver.Answer(func(_ context.Context, r *spec.NodeGetInfoResponse) { r.MaxVolumesPerNode = 3 })
	w.claim("data")
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachment.Name(driverName, "handle-data", "n1")}}
	a.Status.AttachError = &storagev1.VolumeError{Message: "too many", ErrorCode: ptr.To(int32(codes.ResourceExhausted))}
	if _, err := w.client.StorageV1().VolumeAttachments().Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := aPod("a", "data")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // for as long as it waits for the attachment
	defer cancel()
	err := w.manager.Mount(ctx, p)
	var final interface{ PodReason() string }
	if !errors.As(err, &final) || final.PodReason() != "VolumeAttachmentLimitExceeded" {
		t.Errorf("mounted with %v", err)
	}
	if got := w.csiNode()[0].Allocatable; got == nil || *got.Count != 3 {
		t.Errorf("the CSINode has %v", got)
	}
	w.unmount(p)
	w.nothingLeft()
}
