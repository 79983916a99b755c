// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// volumePlan is what is to become of a volume.
type volumePlan struct {
	// phase of the volume; empty = as it is.
	phase corev1.PersistentVolumePhase
	// message goes with the phase Failed.
	message string
	// free takes the claim off the volume. A volume that somebody meant for a claim
	// keeps the claim's name, and waits for it.
	free bool
	// claim has this volume waiting for it. It is to be decided about, unless the two do
	// not go together: then the event says so on both.
	claim *corev1.PersistentVolumeClaim
	event *event
}

// gone marks that a volume's claim is away: asked at the server, not in a cache.
type gone func(ref *corev1.ObjectReference) (bool, error)

// planVolume decides about a volume.
func planVolume(v view, pv *corev1.PersistentVolume, isGone gone) (volumePlan, error) {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return volumePlan{phase: corev1.VolumeAvailable}, nil
	}
	c, err := v.claim(ref.Namespace, ref.Name)
	if err != nil {
		return volumePlan{}, err
	}
	if c == nil || c.UID != ref.UID {
		// The cache may be behind, and what is released may be destroyed.
		if away, err := isGone(ref); err != nil || !away {
			return volumePlan{}, err
		}
		return released(pv), nil
	}
	switch {
	case c.Spec.VolumeName == pv.Name:
		return volumePlan{phase: corev1.VolumeBound}, nil
	case c.Spec.VolumeName == "" && volume.CheckVolumeModeMismatches(&c.Spec, &pv.Spec):
		return volumePlan{
			claim: c,
			event: warning("VolumeMismatch", "Cannot bind PersistentVolume to requested PersistentVolumeClaim due to incompatible volumeMode."),
		}, nil
	case c.Spec.VolumeName == "":
		return volumePlan{claim: c}, nil
	case metav1.HasAnnotation(pv.ObjectMeta, volume.AnnDynamicallyProvisioned) &&
		pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		// It was made for the claim, which has got another one.
		return released(pv), nil
	}
	return volumePlan{free: true, phase: corev1.VolumeAvailable}, nil
}

// released is the plan for a volume whose claim is gone. Whoever made the volume
// deletes it; this controller can only say where nobody will.
func released(pv *corev1.PersistentVolume) volumePlan {
	if pv.Status.Phase == corev1.VolumeFailed {
		return volumePlan{}
	}
	p := volumePlan{phase: corev1.VolumeReleased}
	if pv.Status.Phase != corev1.VolumeReleased || pv.DeletionTimestamp != nil {
		return p // what follows is decided about a volume that is seen to be released
	}
	maker := pv.Annotations[volume.AnnDynamicallyProvisioned]
	if pv.Annotations[volume.AnnMigratedTo] != "" {
		return p
	}
	switch pv.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimDelete:
		if maker == "" || strings.HasPrefix(maker, "kubernetes.io/") {
			return failed("VolumeFailedDelete", "error getting deleter volume plugin for volume \""+pv.Name+"\": no deletable volume plugin matched")
		}
	case corev1.PersistentVolumeReclaimRecycle:
		return failed("VolumeFailedRecycle", "No recycler plugin found for the volume!")
	case corev1.PersistentVolumeReclaimRetain:
	}
	return p
}

func failed(reason, message string) volumePlan {
	return volumePlan{phase: corev1.VolumeFailed, message: message, event: warning(reason, "%s", message)}
}
