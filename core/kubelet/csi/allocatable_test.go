// SPDX-License-Identifier: Apache-2.0

package csi_test

import (
	"context"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

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
