// SPDX-License-Identifier: Apache-2.0

package attachment_test

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/attachment"
)

// TestNamesAreUpstreams: another implementation on the other side finds them. The sum is
// of "vol-1", "hostpath.csi.k8s.io" and "node-1" as sha256sum gives it.
func TestNamesAreUpstreams(t *testing.T) {
	if got, want := attachment.Name("hostpath.csi.k8s.io", "vol-1",
		"node-1"), "csi-a5a2e67339ab5660a390dc86be397e784322823ff01f40cf2c01a72c3cab1374"; got != want {
		t.Errorf("the attachment is called %s, want %s", got, want)
	}
	name := attachment.Volume("hostpath.csi.k8s.io", "vol-1")
	if want := "kubernetes.io/csi/hostpath.csi.k8s.io^vol-1"; string(name) != want {
		t.Errorf("the volume is called %s, want %s", name, want)
	}
	if !attachment.IsVolume(name) || attachment.IsVolume("kubernetes.io/iscsi/x") {
		t.Error("a volume of a CSI driver is not told from others")
	}
}

func TestRequired(t *testing.T) {
	for _, c := range []struct {
		driver *storagev1.CSIDriver
		want   bool
	}{
		{nil, true},
		{&storagev1.CSIDriver{}, true},
		{&storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(true)}}, true},
		{&storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}}, false},
	} {
		if got := attachment.Required(c.driver); got != c.want {
			t.Errorf("attach is required: %v, want %v, for %+v", got, c.want, c.driver)
		}
	}
}
