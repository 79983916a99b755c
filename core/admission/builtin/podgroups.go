// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"fmt"
	"slices"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// podGroupFinalizer is taken off by a controller once no pod of the group may still run.
const podGroupFinalizer = "scheduling.k8s.io/podgroup-protection"

// podGroupProtection puts a finalizer on PodGroups.
type podGroupProtection struct{}

func (podGroupProtection) Name() string { return "PodGroupProtection" }

func (podGroupProtection) Handles(r *admission.Request) bool {
	return reading.On("scheduling.k8s.io", "podgroups", "", admission.Create).Handles(r)
}

func (podGroupProtection) Mutate(_ context.Context, r *admission.Request) error {
	given, err := reading.Typed[*schedulingv1beta1.PodGroup](r.Object)
	if err != nil || slices.Contains(given.Finalizers, podGroupFinalizer) {
		return err
	}
	group := reading.Copied(given)
	group.Finalizers = append(group.Finalizers, podGroupFinalizer)
	r.Object.SetVersioned(group)
	return nil
}

// mutateGroup resolves the PriorityClass of a PodGroup, as of a pod.
func (p *priority) mutateGroup(ctx context.Context, r *admission.Request) error {
	given, err := reading.Typed[*schedulingv1beta1.PodGroup](r.Object)
	if err != nil {
		return err
	}
	class, err := p.class(ctx, r, given.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	spec := given.Spec
	if has := spec.Priority; has != nil && *has != class.Value {
		return admission.Forbidden(r, fmt.Errorf("priority set in the pod group (%d) must match the priority computed (%d) based on the priority class set in the spec", *has, class.Value))
	}
	policy := (*schedulingv1beta1.PreemptionPolicy)(class.PreemptionPolicy)
	if has := spec.PreemptionPolicy; has != nil && policy != nil && *has != *policy {
		return admission.Forbidden(r, fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod group spec; priority admission controller computed %s from the given PriorityClass name", *has, *policy))
	}
	if spec.Priority != nil && spec.PriorityClassName == class.Name && (spec.PreemptionPolicy != nil || policy == nil) {
		return nil // asked before
	}
	group := reading.Copied(given)
	group.Spec.PriorityClassName, group.Spec.Priority = class.Name, ptr.To(class.Value)
	if policy != nil { // without PodGroupPreemptionPolicy the strategy drops it
		group.Spec.PreemptionPolicy = ptr.To(*policy)
	}
	r.Object.SetVersioned(group)
	return nil
}
