// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"crypto/sha256"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// source is what a pod's volume says, a claim's or one of its own.
type source struct {
	id
	// ephemeral: the pod's own, which comes and goes with it.
	ephemeral  bool
	fsType     string
	readOnly   bool
	block      bool
	options    []string
	mode       corev1.PersistentVolumeAccessMode
	modes      []corev1.PersistentVolumeAccessMode
	attributes map[string]string

	stageSecret, publishSecret, expandSecret *corev1.SecretReference
}

func sourceOf(r volume.Request) (*source, error) {
	if r.Persistent == nil {
		return inline(r)
	}
	pv, c := r.Persistent, r.Persistent.Spec.CSI
	if c == nil || !driverName.MatchString(c.Driver) || c.VolumeHandle == "" {
		return nil, fmt.Errorf("PV %s names no volume of a CSI driver", pv.Name)
	}
	s := &source{
		id: id{c.Driver, c.VolumeHandle}, fsType: c.FSType, readOnly: c.ReadOnly || r.ReadOnly, block: r.Block(), options: pv.Spec.MountOptions,
		modes: pv.Spec.AccessModes, mode: corev1.ReadWriteOnce, attributes: c.VolumeAttributes,
		stageSecret: c.NodeStageSecretRef, publishSecret: c.NodePublishSecretRef, expandSecret: c.NodeExpandSecretRef,
	}
	if len(s.modes) > 0 {
		s.mode = s.modes[0]
	}
	return s, nil
}

func inline(r volume.Request) (*source, error) {
	c := r.Volume.CSI
	if !driverName.MatchString(c.Driver) {
		return nil, fmt.Errorf("%q is no name of a CSI driver", c.Driver)
	}
	// Upstream's handle: the same after a restart, and nobody else's.
	handle := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(r.Pod.UID)+r.Volume.Name)))
	s := &source{id: id{c.Driver, handle}, ephemeral: true, mode: corev1.ReadWriteOnce, attributes: c.VolumeAttributes}
	s.readOnly = c.ReadOnly != nil && *c.ReadOnly
	if c.FSType != nil {
		s.fsType = *c.FSType
	}
	if ref := c.NodePublishSecretRef; ref != nil {
		s.publishSecret = &corev1.SecretReference{Namespace: r.Pod.Namespace, Name: ref.Name}
	}
	return s, nil
}

// check says why the driver's CSIDriver keeps the pod from this volume.
func (s *source) check(d *storagev1.CSIDriver) error {
	if !s.ephemeral {
		if d != nil && len(d.Spec.VolumeLifecycleModes) > 0 && !slices.Contains(d.Spec.VolumeLifecycleModes,
			storagev1.VolumeLifecyclePersistent) {
			return fmt.Errorf("CSIDriver %s lists no volumeLifecycleModes: Persistent: its volumes are pods' own", s.driver)
		}
		return nil
	}
	if d == nil {
		return fmt.Errorf("there is no CSIDriver %s: a pod's own volume needs one that lists volumeLifecycleModes: Ephemeral", s.driver)
	}
	if !slices.Contains(d.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral) {
		return fmt.Errorf("CSIDriver %s lists no volumeLifecycleModes: Ephemeral: its volumes are used by claims", s.driver)
	}
	return nil
}

// capability is how the volume is to be used. A group is the pod's fsGroup, where the
// driver sees to it.
func (s *source) capability(can powers, group string) *spec.VolumeCapability {
	out := &spec.VolumeCapability{
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: accessMode(s.mode, can.has(spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER))},
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{
			FsType: s.fsType, MountFlags: s.options,
			VolumeMountGroup: group,
		}},
	}
	if s.block {
		out.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
	}
	return out
}

func accessMode(m corev1.PersistentVolumeAccessMode, fine bool) spec.VolumeCapability_AccessMode_Mode {
	switch m {
	case corev1.ReadOnlyMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case corev1.ReadWriteMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case corev1.ReadWriteOncePod:
		if fine {
			return spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
	case corev1.ReadWriteOnce:
		if fine {
			return spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
	}
	return spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// groups says whether this node is to give the volume to the pod's fsGroup, by the
// driver's policy.
func (s *source) groups(d *storagev1.CSIDriver) bool {
	if s.block {
		return false
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if d != nil && d.Spec.FSGroupPolicy != nil {
		policy = *d.Spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.FileFSGroupPolicy:
		return !s.readOnly
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
	}
	once := s.ephemeral || slices.ContainsFunc(s.modes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod
	})
	return s.fsType != "" && once && !s.readOnly
}
