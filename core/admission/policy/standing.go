// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	admissionauthorizer "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	policylib "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
)

// Standing is a bound ValidatingAdmissionPolicy of the API that is asked about what is stored already.
// It is asked beside requests, and has no effect on any.
type Standing struct {
	all    *Policies
	policy *validatingPolicy
}

// Standing are the bound policies of the API, as they are now, by name. Those that are still being
// read are not among them.
func (p *Policies) Standing() (out []Standing) {
	if p.validating.empty() {
		return nil
	}
	for _, one := range p.validating.current().All() {
		out = append(out, Standing{p, one})
	}
	return out
}

// Fixed are the bound validating policies of Static.
func (p *Policies) Fixed() (out []Standing) {
	for _, one := range (validating{p}).files().All() {
		out = append(out, Standing{p, one})
	}
	return out
}

// Object is the policy's.
func (s Standing) Object() metav1.Object { return s.policy.object }

// Version changes with the policy and its bindings.
func (s Standing) Version() string {
	out := string(s.policy.object.GetUID()) + "/" + s.policy.object.GetResourceVersion()
	for _, b := range s.policy.bindings {
		out += " " + b.version
	}
	return out
}

// Does says whether one of the bindings has an action.
func (s Standing) Does(action admissionregistrationv1.ValidationAction) bool {
	return slices.ContainsFunc(s.policy.bindings, func(b *binding) bool { return slices.Contains(b.actions, action) })
}

// Parameterized says whether the policy looks at other objects than the request's.
func (s Standing) Parameterized() bool { return s.policy.params != nil }

// About says whether the policy may be about objects of a resource, in whatever version, by what its rules say of an operation.
func (s Standing) About(gr schema.GroupResource, op admission.Operation) bool {
	has := func(list []string, one string) bool { return slices.Contains(list, "*") || slices.Contains(list, one) }
	return slices.ContainsFunc(s.policy.criteria.Rules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
		return has(r.APIGroups, gr.Group) && (has(r.Resources, gr.Resource) || slices.Contains(r.Resources, "*/*")) &&
			(slices.Contains(r.Operations, admissionregistrationv1.OperationAll) ||
				slices.Contains(r.Operations, admissionregistrationv1.OperationType(op)))
	})
}

// Finding is something that a policy has against an object.
type Finding struct {
	Message string
	// Failed: it could not be evaluated.
	Failed bool
}

// Judge says what the policy has against the object of a request, whatever its actions are. asked says
// whether it is about the request at all. An error is about the server, not about the object.
func (s Standing) Judge(ctx context.Context, r *admission.Request) (asked bool, found []Finding, err error) {
	v := &verdict{Policies: s.all, r: r, authz: admissionauthorizer.NewCachingAuthorizer(s.all.cfg.Authorizer)}
	p := s.policy
	failed := func(err error) (bool, []Finding, error) {
		return true, []Finding{{Message: err.Error(), Failed: true}}, nil
	}
	target, ok, err := p.criteria.Match(ctx, r, s.all.namespaces, s.all.cfg.Resources)
	if err == nil && ok {
		err = p.broken
	}
	if err != nil {
		return failed(err)
	}
	if !ok {
		return false, nil, nil
	}
	view, err := target.In(ctx, r)
	if err != nil {
		return failed(err)
	}
	attributes, err := view.CEL(r)
	if err != nil {
		return failed(err)
	}
	ns, err := v.namespace(ctx)
	if err != nil {
		return false, nil, err
	}
	for _, b := range p.bindings {
		if b.criteria != nil {
			if _, ok, err := b.criteria.Match(ctx, r, s.all.namespaces, s.all.cfg.Resources); err != nil || !ok {
				if err != nil {
					return failed(err)
				}
				continue
			}
		}
		params, err := s.all.collect(ctx, p.params, b.params, matching.Namespace(r))
		if err != nil {
			return failed(err)
		}
		for _, param := range params {
			result := p.validator().Validate(ctx, target.Resource, attributes, param, ns, celconfig.RuntimeCELCostBudget, v.authz)
			asked = asked || len(result.Decisions) > 0
			for i := range result.Decisions {
				d := &result.Decisions[i]
				f := Finding{strings.TrimSpace(d.Message), d.Evaluation == policylib.EvalError}
				if d.Action == policylib.ActionDeny && !slices.Contains(found, f) {
					found = append(found, f)
				}
			}
		}
	}
	return asked, found, nil
}
