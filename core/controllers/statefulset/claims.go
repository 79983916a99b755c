// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/controllers"
)

var podKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

func claimName(set *appsv1.StatefulSet, template *corev1.PersistentVolumeClaim, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template.Name, set.Name, ordinal)
}

// claims are those that a pod of this ordinal mounts.
func claims(set *appsv1.StatefulSet, ordinal int) []*corev1.PersistentVolumeClaim {
	var all []*corev1.PersistentVolumeClaim
	for i := range set.Spec.VolumeClaimTemplates {
		claim := set.Spec.VolumeClaimTemplates[i].DeepCopy()
		claim.Name = claimName(set, claim, ordinal)
		claim.Namespace = set.Namespace
		if claim.Labels == nil {
			claim.Labels = map[string]string{}
		}
		for k, v := range set.Spec.Selector.MatchLabels {
			claim.Labels[k] = v
		}
		all = append(all, claim)
	}
	return all
}

// mount puts the claims into the pod's volumes, in place of others of their names.
func mount(set *appsv1.StatefulSet, pod *corev1.Pod, ordinal int) {
	var volumes []corev1.Volume
	for i := range set.Spec.VolumeClaimTemplates {
		template := &set.Spec.VolumeClaimTemplates[i]
		volumes = append(volumes, corev1.Volume{Name: template.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(set, template, ordinal)},
		}})
	}
	for _, v := range pod.Spec.Volumes {
		if !slices.ContainsFunc(volumes, func(c corev1.Volume) bool { return c.Name == v.Name }) {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes = volumes
}

// ensureClaims creates the claims that a pod needs and that aren't there. One that
// is being deleted must be gone before the pod is made, or it would mount what
// vanishes under it.
func (c *Controller) ensureClaims(ctx context.Context, set *appsv1.StatefulSet, ordinal int) error {
	for _, claim := range claims(set, ordinal) {
		there, err := c.claimLister.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
		switch {
		case err == nil && there.DeletionTimestamp != nil:
			return fmt.Errorf("claim %s is being deleted: %w", claim.Name, controllers.ErrNotYet)
		case err == nil:
			continue
		case !apierrors.IsNotFound(err):
			return err
		}
		created, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		pod := podName(set, ordinal)
		if err != nil {
			c.recorder.Eventf(set, corev1.EventTypeWarning, "FailedCreate", "create Claim %s for Pod %s in StatefulSet %s failed error: %s",
				claim.Name, pod, set.Name, err)
			return fmt.Errorf("creating claim %s: %w", claim.Name, err)
		}
		c.recorder.Eventf(set, corev1.EventTypeNormal, "SuccessfulCreate", "create Claim %s Pod %s in StatefulSet %s success", claim.Name, pod,
			set.Name)
		controllers.Did(ctx, "created", "PersistentVolumeClaim", created)
	}
	return nil
}

// retain brings the owners of a pod's claims in line with the set's retention
// policy: the garbage collector deletes what the policy says is to go.
func (c *Controller) retain(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod) error {
	n := ordinal(set, pod)
	for _, claim := range claims(set, n) {
		there, err := c.claimLister.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		refs, conflict := claimOwners(set, pod, there.OwnerReferences)
		if conflict {
			c.recorder.Eventf(set, corev1.EventTypeWarning, "ConflictingController",
				"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim", claim.Name)
		}
		if equality.Semantic.DeepEqual(refs, there.OwnerReferences) {
			continue
		}
		next := there.DeepCopy()
		next.OwnerReferences = refs
		updated, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, next, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("setting the owner of claim %s: %w", claim.Name, err)
		}
		controllers.Did(ctx, "owner set by the retention policy", "PersistentVolumeClaim", updated)
	}
	return nil
}

// claimOwners are a claim's owner references by the retention policy. The set owns
// it if it is to go with the set; the pod, if it is to go because of scaling down.
func claimOwners(set *appsv1.StatefulSet, pod *corev1.Pod, refs []metav1.OwnerReference) (owners []metav1.OwnerReference, conflict bool) {
	const drop = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	var policy appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy
	if set.Spec.PersistentVolumeClaimRetentionPolicy != nil {
		policy = *set.Spec.PersistentVolumeClaimRetentionPolicy
	}
	scaledDown := !inRange(set, ordinal(set, pod))
	byPod := policy.WhenScaled == drop && scaledDown
	bySet := policy.WhenDeleted == drop && !byPod
	for _, ref := range refs {
		ours := ref.UID == set.UID || ref.UID == pod.UID
		stale := !ours && (ref.Kind == setKind.Kind && ref.Name == set.Name || ref.Kind == podKind.Kind && ref.Name == pod.Name)
		switch {
		case stale:
			return refs, false // the garbage collector is about to act on it
		case !ours:
			owners = append(owners, ref)
			conflict = conflict || ref.Controller != nil && *ref.Controller
		}
	}
	if conflict && (byPod || bySet) {
		return owners, true
	}
	switch {
	case byPod:
		owners = append(owners, *metav1.NewControllerRef(pod, podKind))
	case bySet:
		owners = append(owners, *metav1.NewControllerRef(set, setKind))
	}
	return owners, false
}
