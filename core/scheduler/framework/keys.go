// SPDX-License-Identifier: Apache-2.0

package framework

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/volume"
)

// Awaiting is for plugins with Hints that know which objects a pod that they refused waits for: of
// VolumesChanged they hear only what KeysOf one of these, or what has no keys. It is asked after a
// refusal; a change of one of the objects has the pod tried again, and asked again.
type Awaiting interface {
	Plugin
	Awaited(p *PodInfo) []string
}

// ClaimKey is of a PersistentVolumeClaim, ClassKey of a StorageClass and of what has it, VolumeKey of a PersistentVolume.
func ClaimKey(namespace, name string) string { return "claim/" + namespace + "/" + name }

// ClassKey is of a StorageClass, and of what belongs to it.
func ClassKey(name string) string { return "class/" + name }

// VolumeKey is of a PersistentVolume.
func VolumeKey(name string) string { return "volume/" + name }

// KeysOf are those by which pods wait for an object; none = it may help any pod.
func KeysOf(o runtime.Object) []string {
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		return []string{ClaimKey(o.Namespace, o.Name)}
	case *corev1.PersistentVolume:
		keys := []string{VolumeKey(o.Name), ClassKey(volume.GetPersistentVolumeClass(o))}
		if c := o.Spec.ClaimRef; c != nil {
			keys = append(keys, ClaimKey(c.Namespace, c.Name))
		}
		return keys
	case *storagev1.StorageClass:
		return []string{ClassKey(o.Name)}
	case *storagev1.CSIStorageCapacity:
		return []string{ClassKey(o.StorageClassName)}
	}
	return nil
}
