// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// view is what decisions rest on. What is not there is answered as nil without an
// error; nobody changes what is answered.
type view interface {
	volume(name string) (*corev1.PersistentVolume, error)
	// volumes of a class, in no order.
	volumes(class string) ([]*corev1.PersistentVolume, error)
	// meant are the volumes, of any class, that name the claim.
	meant(claim *corev1.PersistentVolumeClaim) ([]*corev1.PersistentVolume, error)
	claim(namespace, name string) (*corev1.PersistentVolumeClaim, error)
	class(name string) (*storagev1.StorageClass, error)
	// defaultClass for claims that name none.
	defaultClass() (*storagev1.StorageClass, error)
	// waiting are the names of the pods that use the claim and have no node yet.
	waiting(claim *corev1.PersistentVolumeClaim) ([]string, error)
}

// event for the object that a decision is about.
type event struct {
	kind, reason, message string
}

func warning(reason, format string, args ...any) *event {
	return &event{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)}
}

func normal(reason, format string, args ...any) *event {
	return &event{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)}
}

// claimPlan is what is to become of a claim. At most one of class, bind and
// provisioner is set.
type claimPlan struct {
	// class that the claim gets; everything else is decided once it has it.
	class string
	// bind with this volume.
	bind *corev1.PersistentVolume
	// provisioner that is to make a volume.
	provisioner string
	// phase of the claim, where it is not to be bound; empty = as it is.
	phase corev1.PersistentVolumeClaimPhase
	event *event
}

func waitsWith(e *event) claimPlan { return claimPlan{phase: corev1.ClaimPending, event: e} }

func lost(reason, format string, args ...any) claimPlan {
	return claimPlan{phase: corev1.ClaimLost, event: warning(reason, format, args...)}
}

// planClaim decides about a claim. Reasons and messages are upstream's: people
// search for them.
func planClaim(v view, c *corev1.PersistentVolumeClaim) (claimPlan, error) {
	switch {
	case metav1.HasAnnotation(c.ObjectMeta, volume.AnnBindCompleted):
		return planBound(v, c)
	case c.DeletionTimestamp != nil:
		return claimPlan{}, nil // it gets no volume any more
	case c.Spec.VolumeName != "":
		return planNamed(v, c)
	}
	return planSearch(v, c)
}

// planBound keeps a claim with the volume that it was bound to.
func planBound(v view, c *corev1.PersistentVolumeClaim) (claimPlan, error) {
	if c.Spec.VolumeName == "" {
		return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"), nil
	}
	pv, err := v.volume(c.Spec.VolumeName)
	switch {
	case err != nil:
		return claimPlan{}, err
	case pv == nil:
		return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"), nil
	case pv.Spec.ClaimRef == nil, pv.Spec.ClaimRef.UID == c.UID:
		return claimPlan{bind: pv}, nil
	}
	return lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"), nil
}

// planNamed is about a claim that asks for one volume by name.
func planNamed(v view, c *corev1.PersistentVolumeClaim) (claimPlan, error) {
	pv, err := v.volume(c.Spec.VolumeName)
	switch {
	case err != nil:
		return claimPlan{}, err
	case pv == nil:
		return waitsWith(warning("FailedBinding", "volume %q, which the claim asks for, does not exist", c.Spec.VolumeName)), nil
	case pv.Spec.ClaimRef == nil:
		if why := mismatch(pv, c); why != "" {
			return waitsWith(warning("VolumeMismatch", "Cannot bind to requested volume %q: %s", pv.Name, why)), nil
		}
		return claimPlan{bind: pv}, nil
	case volume.IsVolumeBoundToClaim(pv, c):
		return claimPlan{bind: pv}, nil
	}
	return waitsWith(warning("FailedBinding", "volume %q already bound to a different claim.", pv.Name)), nil
}

// mismatch says why a volume cannot be what a claim asks for; empty where it can.
func mismatch(pv *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) string {
	asked, has := c.Spec.Resources.Requests[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case pv.DeletionTimestamp != nil:
		return fmt.Sprintf("the volume is marked for deletion %q", pv.Name)
	case has.Cmp(asked) < 0:
		return "requested PV is too small"
	case volume.GetPersistentVolumeClass(pv) != volume.GetPersistentVolumeClaimClass(c):
		return "storageClassName does not match"
	case ptr.Deref(pv.Spec.VolumeAttributesClassName, "") != ptr.Deref(c.Spec.VolumeAttributesClassName, ""):
		return "volumeAttributesClassName does not match"
	case volume.CheckVolumeModeMismatches(&c.Spec, &pv.Spec):
		return "incompatible volumeMode"
	case !volume.CheckAccessModes(c, pv):
		return "incompatible accessMode"
	}
	return ""
}

// planSearch is about a claim that takes any volume that matches, or has one made.
func planSearch(v view, c *corev1.PersistentVolumeClaim) (claimPlan, error) {
	name := volume.GetPersistentVolumeClaimClass(c)
	class, err := v.class(name)
	if err != nil {
		return claimPlan{}, err
	}
	delayed := class != nil && ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
	pv, err := match(v, c, delayed)
	if err != nil || pv != nil {
		return claimPlan{bind: pv}, err
	}
	if !volume.PersistentVolumeClaimHasClass(c) {
		late, err := v.defaultClass()
		if err != nil {
			return claimPlan{}, err
		}
		if late != nil {
			return claimPlan{class: late.Name}, nil
		}
	}
	switch {
	case delayed && !volume.IsDelayBindingProvisioning(c):
		return planFirstConsumer(v, c)
	case name == "":
		return waitsWith(normal("FailedBinding", "no persistent volumes available for this claim and no storage class is set")), nil
	case class == nil:
		return waitsWith(warning("ProvisioningFailed", "storageclass.storage.k8s.io %q not found", name)), nil
	case strings.HasPrefix(class.Provisioner, "kubernetes.io/"):
		// Volumes of such a class are made by people, or were made by code that
		// Kubernetes has no more.
		return waitsWith(warning("ProvisioningFailed", "no volume plugin matched name: %s", class.Provisioner)), nil
	}
	return claimPlan{
		provisioner: class.Provisioner, phase: corev1.ClaimPending,
		event: normal("ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. "+
			"If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner),
	}, nil
}

// planFirstConsumer is about a claim whose volume is chosen with the first pod's node.
func planFirstConsumer(v view, c *corev1.PersistentVolumeClaim) (claimPlan, error) {
	pods, err := v.waiting(c)
	if err != nil {
		return claimPlan{}, err
	}
	slices.Sort(pods)
	switch len(pods) {
	case 0:
		return waitsWith(normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding")), nil
	case 1:
		return waitsWith(normal("WaitForPodScheduled", "waiting for pod %s to be scheduled", pods[0])), nil
	}
	return waitsWith(normal("WaitForPodScheduled", "waiting for pods %s to be scheduled", strings.Join(pods, ","))), nil
}

// match finds a claim's volume: the one that was made or meant for it, whatever its class, else the
// smallest of those that have the fewest access modes beyond the wanted ones.
func match(v view, c *corev1.PersistentVolumeClaim, delayed bool) (*corev1.PersistentVolume, error) {
	all, err := v.volumes(volume.GetPersistentVolumeClaimClass(c))
	if err != nil {
		return nil, err
	}
	naming, err := v.meant(c)
	if err != nil {
		return nil, err
	}
	var meant []*corev1.PersistentVolume
	for _, pv := range naming {
		if volume.IsVolumeBoundToClaim(pv, c) && volume.CheckAccessModes(c, pv) {
			meant = append(meant, pv)
		}
	}
	byModes := map[int][]*corev1.PersistentVolume{}
	for _, pv := range all {
		if pv.Spec.ClaimRef == nil && volume.CheckAccessModes(c, pv) {
			byModes[len(pv.Spec.AccessModes)] = append(byModes[len(pv.Spec.AccessModes)], pv)
		}
	}
	groups := [][]*corev1.PersistentVolume{meant}
	for n := range 5 { // there are four access modes
		groups = append(groups, byModes[n])
	}
	for _, group := range groups {
		slices.SortFunc(group, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
		pv, err := volume.FindMatchingVolume(c, group, nil, nil, delayed, true)
		if err != nil || pv != nil {
			return pv, err
		}
	}
	return nil, nil
}
