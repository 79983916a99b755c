// SPDX-License-Identifier: Apache-2.0

package resourceclaim

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// podPlan is what a pod's claims need.
type podPlan struct {
	// make claims from templates, for these of the pod's references.
	make []*corev1.PodResourceClaim
	// names to write to the pod's status: all that are known, by the name of the reference;
	// nil where the status says it already.
	names map[string]string
	// reserve these claims for the pod: it has its node, and nobody else did.
	reserve []*resourcev1.ResourceClaim
}

// planPod says what a pod's claims need. own are the claims that belong to the pod, and
// named finds those that it refers to; nil = it is not there.
func planPod(p *corev1.Pod, own []*resourcev1.ResourceClaim, named func(string) *resourcev1.ResourceClaim) podPlan {
	var plan podPlan
	if p.DeletionTimestamp != nil || done(p) {
		return plan
	}
	found := map[string]string{}
	for i := range p.Spec.ResourceClaims {
		ref := &p.Spec.ResourceClaims[i]
		name, owned, err := resourceclaim.Name(p, ref)
		if err == nil && name == nil {
			continue // intentionally none
		}
		var c *resourcev1.ResourceClaim
		if err == nil {
			c = named(*name)
		}
		if c != nil && owned && resourceclaim.IsForPod(p, c, false) != nil {
			c = nil // it has become somebody else's: the pod needs another one
		}
		switch {
		case c != nil:
			if p.Spec.NodeName != "" && c.Status.Allocation != nil && !resourceclaim.IsReservedForPod(p, c, false) {
				plan.reserve = append(plan.reserve, c)
			}
		case ref.ResourceClaimTemplateName == nil: // its user makes it
		default:
			if made := madeFor(own, ref.Name); made != nil {
				found[ref.Name] = made.Name
			} else {
				plan.make = append(plan.make, ref)
			}
		}
	}
	if len(found) > 0 {
		plan.names = withKnown(p, found)
	}
	return plan
}

// madeFor is the claim that was made for a reference of the pod.
func madeFor(own []*resourcev1.ResourceClaim, ref string) *resourcev1.ResourceClaim {
	for _, c := range own {
		if c.DeletionTimestamp == nil && c.Annotations[resourcev1.PodResourceClaimAnnotation] == ref {
			return c
		}
	}
	return nil
}

// withKnown are names beside those that the pod's status has.
func withKnown(p *corev1.Pod, names map[string]string) map[string]string {
	all := map[string]string{}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			all[s.Name] = *s.ResourceClaimName
		}
	}
	maps.Copy(all, names)
	return all
}

// done says whether a pod runs no more, or never will.
func done(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

// claimPlan is what becomes of a claim.
type claimPlan struct {
	// users that are left, and whether others were taken off.
	users  []resourcev1.ResourceClaimConsumerReference
	remove bool
	// deallocate: nobody uses its devices. unprotect: nor has it any, and may be deleted.
	deallocate, unprotect bool
	// delete: it was made for a pod that does not need it any more.
	delete bool
}

// planClaim says what becomes of a claim. gone says of a pod that uses it whether it does not
// any more, and owner is the pod for which it was made; nil = none, or it is unknown.
func planClaim(c *resourcev1.ResourceClaim, gone func(resourcev1.ResourceClaimConsumerReference) bool, owner *corev1.Pod) claimPlan {
	plan := claimPlan{users: []resourcev1.ResourceClaimConsumerReference{}}
	for _, u := range c.Status.ReservedFor {
		if u.APIGroup == "" && u.Resource == "pods" && gone(u) {
			plan.remove = true
			continue
		}
		plan.users = append(plan.users, u)
	}
	ours := slices.Contains(c.Finalizers, resourcev1.Finalizer)
	if unused := len(plan.users) == 0; unused && ours {
		plan.deallocate = c.Status.Allocation != nil && (plan.remove || c.DeletionTimestamp != nil)
		plan.unprotect = plan.deallocate || c.Status.Allocation == nil && (plan.remove || c.DeletionTimestamp != nil)
	}
	if ref := metav1.GetControllerOfNoCopy(c); ref != nil && owner != nil && len(plan.users) == 0 && c.DeletionTimestamp == nil {
		plan.delete = owner.UID != ref.UID || done(owner)
	}
	return plan
}
