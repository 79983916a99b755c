// SPDX-License-Identifier: Apache-2.0

package csi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/localcsi"
)

const diskName = "disks.example"

// disks runs the node's own driver, which knows block volumes, beside the test's.
func (w *world) disks() *localcsi.Driver {
	w.t.Helper()
	d, err := localcsi.New(localcsi.Config{
		Name: diskName, Root: filepath.Join(w.root, "disks"), Node: "n1", TopologyKey: diskName + "/node",
		Socket: filepath.Join(w.root, "plugins", diskName, "csi.sock"), Registry: filepath.Join(w.root, "plugins_registry"),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: diskName}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}
	if _, err := w.client.StorageV1().CSIDrivers().Create(w.t.Context(), object, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.run(d.Run)
	w.eventually("the driver is in the CSINode", func() bool {
		return slices.ContainsFunc(w.csiNode(), func(d storagev1.CSINodeDriver) bool { return d.Name == diskName })
	})
	return d
}

// TestABlockVolumeIsADevice: of the container, at the place that it names, also for a
// kubelet that was started again; not to be mounted; and gone with the pod.
func TestABlockVolumeIsADevice(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	const size = 1 << 20
	made, err := w.disks().CreateVolume(t.Context(), &spec.CreateVolumeRequest{
		Name: "disk", CapacityRange: &spec.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*spec.VolumeCapability{{
			AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.claim("raw", func(pv *corev1.PersistentVolume) {
		pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle = diskName, made.GetVolume().GetVolumeId()
	})
	p := aPod("a", "raw")
	c := &p.Spec.Containers[0]
	c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "raw", DevicePath: "/dev/disk"}}
	for range 2 {
		w.mount(p)
		devices, err := w.manager.Devices(p, c)
		if err != nil || len(devices) != 1 || devices[0].GetContainerPath() != "/dev/disk" || devices[0].GetPermissions() != "mrw" {
			t.Fatalf("devices %v (%v)", devices, err)
		}
		device, err := os.OpenFile(devices[0].GetHostPath(), os.O_RDWR|unix.O_EXCL, 0)
		if err != nil {
			t.Fatal(err)
		}
		if end, err := device.Seek(0, 2); err != nil || end != size {
			t.Errorf("the device has %d bytes (%v)", end, err)
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
		w.stop() // the next finds it as it is
		w.start()
		w.eventually("the driver has registered again", func() bool { return w.manager.Mount(t.Context(), p) == nil })
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "raw", MountPath: "/raw"}}
	if _, err := w.manager.Mounts(t.Context(), p, c, nil); err == nil || !strings.Contains(err.Error(),
		"volumeMode Block, but is specified in volumeMounts") {
		t.Errorf("mounted: %v", err)
	}
	w.unmount(p)
	w.nothingLeft()
}

// TestAFileSystemIsNoDevice: and what a driver publishes has to be one.
func TestAFileSystemIsNoDevice(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	p := aPod("a", "data")
	w.mount(p)
	p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/disk"}}
	if got, err := w.manager.Devices(p, &p.Spec.Containers[0]); err == nil || !strings.Contains(err.Error(),
		"volumeMode Filesystem, but is specified in volumeDevices") {
		t.Errorf("devices %v (%v)", got, err)
	}
	w.unmount(p)
	// The test's driver mounts directories, whatever is asked for.
	w.claim("raw", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	p = aPod("b", "raw")
	if err := w.manager.Mount(t.Context(), p); err == nil || !strings.Contains(err.Error(), "there is no block device at") {
		t.Errorf("a directory was taken for a device: %v", err)
	}
	w.unmount(p)
	w.nothingLeft()
}
