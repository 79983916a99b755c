// SPDX-License-Identifier: Apache-2.0

package imagegate

import (
	"context"
	"slices"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagepolicy"
)

// Standing is a policy that is asked about what is stored already. It is asked beside requests, and has no effect on any.
type Standing struct {
	gate   *Gate
	policy *standing
}

// Standing are the policies that want to judge what is stored.
func (g *Gate) Standing(ctx context.Context) (out []Standing, err error) {
	s, err := g.current.Get(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range s.policies.All() {
		if p.Background && p.Admission {
			out = append(out, Standing{g, p})
		}
	}
	return out, nil
}

// Kind of the policy.
func (s Standing) Kind() string { return s.policy.Kind }

// Key names the policy among all of its kind.
func (s Standing) Key() string { return s.policy.Key() }

// Namespace to which the policy belongs; "" = the cluster.
func (s Standing) Namespace() string {
	if s.policy.Namespaced() {
		return s.policy.Policy.Namespace
	}
	return ""
}

// Version changes with the policy.
func (s Standing) Version() string {
	return s.policy.UID + "/" + strconv.FormatInt(s.policy.Generation, 10)
}

// Warns says that what the policy has against an object is a warning.
func (s Standing) Warns() bool {
	return slices.Contains(s.policy.Actions, admissionregistrationv1.Warn) && len(s.policy.Actions) == 1
}

// About says whether the policy may be about objects of a resource, by what its rules say of an operation.
func (s Standing) About(r schema.GroupResource, op admission.Operation) bool {
	has := func(list []string, one string) bool { return slices.Contains(list, "*") || slices.Contains(list, one) }
	for _, m := range s.policy.Matches() {
		for _, rule := range m.ResourceRules {
			if has(rule.APIGroups, r.Group) && has(rule.Resources, r.Resource) &&
				(slices.Contains(rule.Operations, admissionregistrationv1.OperationAll) ||
					slices.Contains(rule.Operations, admissionregistrationv1.OperationType(op))) {
				return true
			}
		}
	}
	return false
}

// Judge says what the policy has against the object of a request; failed says that it could not be evaluated. What it requires
// of images has to be its own work here: no other policy is asked beside it.
func (s Standing) Judge(ctx context.Context, r *admission.Request) (asked bool, text string, failed error) {
	if !s.gate.Handles(r) || !s.policy.reaches(r) {
		return false, "", nil
	}
	verified := &imagepolicy.Verified{}
	o := s.gate.judge(ctx, s.policy, r, verified)
	if o.Err != nil {
		return o.Asked, "", told(o.Err)
	}
	if o.Against == "" && o.Asked && o.Required(verified) != "" {
		all := &imagepolicy.Verified{} // by all policies, as in a request
		state, err := s.gate.current.Get(ctx)
		if err != nil {
			return true, "", err
		}
		for _, other := range state.policies.All() {
			if other.reaches(r) {
				s.gate.judge(ctx, other, r, all)
			}
		}
		verified = all
	}
	return o.Asked, against(o, verified), nil
}
