// SPDX-License-Identifier: Apache-2.0

// Package attachment has the conventions for volumes of CSI drivers that the attach-detach
// controller and the nodes share: the name of the VolumeAttachment of a volume and a node,
// the name of a volume in a node's status, and whether a driver attaches volumes at all.
package attachment

import (
	"crypto/sha256"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Name of the VolumeAttachment of a volume on a node: upstream's, so that either side
// may be upstream's.
func Name(driver, handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

const prefix = "kubernetes.io/csi/"

// Volume is how a volume is called in a node's volumesInUse and volumesAttached.
func Volume(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(prefix + driver + "^" + handle)
}

// IsVolume says whether a name in a node's status is one that Volume makes: others
// belong to others.
func IsVolume(name corev1.UniqueVolumeName) bool {
	return strings.HasPrefix(string(name), prefix)
}

// Required says whether volumes of a driver are attached before a node mounts them. Of a
// driver without a CSIDriver (nil) it has to be assumed.
func Required(driver *storagev1.CSIDriver) bool {
	return driver == nil || driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired
}
