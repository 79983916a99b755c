// SPDX-License-Identifier: Apache-2.0

package celcost

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/resource"
)

// expressions are those of an object of the kinds that have some, but for CustomResourceDefinitions.
func expressions(o runtime.Object) (out []string) {
	switch o := o.(type) {
	case *admissionregistration.ValidatingAdmissionPolicy:
		for _, v := range o.Spec.Validations {
			out = append(out, v.Expression, v.MessageExpression)
		}
		for _, a := range o.Spec.AuditAnnotations {
			out = append(out, a.ValueExpression)
		}
		out = append(variables(out, o.Spec.Variables), conditions(o.Spec.MatchConditions)...)
	case *admissionregistration.MutatingAdmissionPolicy:
		for _, m := range o.Spec.Mutations {
			if m.ApplyConfiguration != nil {
				out = append(out, m.ApplyConfiguration.Expression)
			}
			if m.JSONPatch != nil {
				out = append(out, m.JSONPatch.Expression)
			}
		}
		out = append(variables(out, o.Spec.Variables), conditions(o.Spec.MatchConditions)...)
	case *admissionregistration.ValidatingWebhookConfiguration:
		for _, w := range o.Webhooks {
			out = append(out, conditions(w.MatchConditions)...)
		}
	case *admissionregistration.MutatingWebhookConfiguration:
		for _, w := range o.Webhooks {
			out = append(out, conditions(w.MatchConditions)...)
		}
	case *resource.DeviceClass:
		out = selectors(out, o.Spec.Selectors)
	case *resource.ResourceClaim:
		out = requests(out, o.Spec.Devices.Requests)
	case *resource.ResourceClaimTemplate:
		out = requests(out, o.Spec.Spec.Devices.Requests)
	}
	return out
}

func conditions(list []admissionregistration.MatchCondition) (out []string) {
	for _, c := range list {
		out = append(out, c.Expression)
	}
	return out
}

func variables(out []string, list []admissionregistration.Variable) []string {
	for _, v := range list {
		out = append(out, v.Expression)
	}
	return out
}

func selectors(out []string, list []resource.DeviceSelector) []string {
	for _, s := range list {
		if s.CEL != nil {
			out = append(out, s.CEL.Expression)
		}
	}
	return out
}

func requests(out []string, list []resource.DeviceRequest) []string {
	for _, r := range list {
		if r.Exactly != nil {
			out = selectors(out, r.Exactly.Selectors)
		}
		for _, sub := range r.FirstAvailable {
			out = selectors(out, sub.Selectors)
		}
	}
	return out
}
