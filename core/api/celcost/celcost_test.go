// SPDX-License-Identifier: Apache-2.0

package celcost

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/resource"

	"github.com/wasmplane/wasmplane/core/api/pathlength"
)

func policy(expressions ...string) *admissionregistration.ValidatingAdmissionPolicy {
	p := &admissionregistration.ValidatingAdmissionPolicy{}
	for _, e := range expressions {
		p.Spec.Validations = append(p.Spec.Validations, admissionregistration.Validation{Expression: e})
	}
	return p
}

// 90 KB of comparisons took 40 seconds of a processor, and a request's deadline did not end them.
func TestExpressionsAreBoundedBeforeTheyAreCompiled(t *testing.T) {
	selectors := func(n int, e string) []resource.DeviceSelector {
		return slices.Repeat([]resource.DeviceSelector{{CEL: &resource.CELDeviceSelector{Expression: e}}}, n)
	}
	claim := resource.ResourceClaimSpec{Devices: resource.DeviceClaim{Requests: []resource.DeviceRequest{
		{Exactly: &resource.ExactDeviceRequest{Selectors: selectors(1000, "true")}},
		{FirstAvailable: []resource.DeviceSubRequest{{Selectors: selectors(500, "true")}, {Selectors: selectors(501, "true")}}},
	}}}
	condition := []admissionregistration.MatchCondition{{Expression: strings.Repeat("a in b && ", 2000) + "true"}}
	for name, tc := range map[string]struct {
		object runtime.Object
		err    string
	}{
		"comparisons":      {policy(strings.Repeat("1 == 1 && ", 9000) + "true"), "are 162000000 together, and the limit is 5000000"},
		"lists":            {policy(strings.Repeat("[", 4000) + strings.Repeat("]", 4000) + " == []"), "too long to be compiled"},
		"indexes":          {policy(strings.Repeat("a[0] + ", 3000) + "1"), "too long to be compiled"},
		"conditions":       {policy(strings.Repeat("a ? b : ", 3000) + "c"), "too long to be compiled"},
		"loops":            {policy(strings.Repeat("l.all(x, ", 2000) + "true" + strings.Repeat(")", 2000)), "too long to be compiled"},
		"many":             {policy(slices.Repeat([]string{"true"}, 2001)...), "has 2001 CEL expressions, and at most 2000"},
		"bytes":            {policy(slices.Repeat([]string{"'" + strings.Repeat("x", 1000) + "'"}, 600)...), "have 601200 bytes, and at most 524288"},
		"a claim":          {&resource.ResourceClaim{Spec: claim}, "has 2001 CEL expressions"},
		"a claim's model":  {&resource.ResourceClaimTemplate{Spec: resource.ResourceClaimTemplateSpec{Spec: claim}}, "has 2001 CEL expressions"},
		"a class":          {&resource.DeviceClass{Spec: resource.DeviceClassSpec{Selectors: selectors(2001, "true")}}, "has 2001 CEL expressions"},
		"a webhook":        {&admissionregistration.ValidatingWebhookConfiguration{Webhooks: []admissionregistration.ValidatingWebhook{{MatchConditions: condition}}}, "too long to be compiled"},
		"another webhook":  {&admissionregistration.MutatingWebhookConfiguration{Webhooks: []admissionregistration.MutatingWebhook{{MatchConditions: condition}}}, "too long to be compiled"},
		"matching":         {&admissionregistration.ValidatingAdmissionPolicy{Spec: admissionregistration.ValidatingAdmissionPolicySpec{MatchConditions: condition}}, "too long to be compiled"},
		"a mutating one's": {&admissionregistration.MutatingAdmissionPolicy{Spec: admissionregistration.MutatingAdmissionPolicySpec{Mutations: []admissionregistration.Mutation{{JSONPatch: &admissionregistration.JSONPatch{Expression: condition[0].Expression}}}}}, "too long to be compiled"},
		"a variable": {&admissionregistration.MutatingAdmissionPolicy{Spec: admissionregistration.MutatingAdmissionPolicySpec{
			Variables: []admissionregistration.Variable{{Expression: condition[0].Expression}},
		}}, "too long to be compiled"},
		"as people write":  {policy(slices.Repeat([]string{`object.spec.containers.all(c, c.image.startsWith("a") || c.name in ["a", "b"])`}, 200)...), ""},
		"quoted operators": {policy(`object.x == '` + strings.Repeat(`==[\'`, 5000) + `'`), ""},
		"names with in":    {policy(strings.Repeat("inner.main_in.in1 && ", 2000) + "true"), ""},
	} {
		for what, errs := range map[string]field.ErrorList{"create": Check(tc.object, nil), "update": Check(tc.object, policy())} {
			if tc.err == "" && len(errs) > 0 || tc.err != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), tc.err)) {
				t.Errorf("%s: %s: %.400v", name, what, errs)
			}
		}
		if errs := Check(tc.object, tc.object); len(errs) > 0 {
			t.Errorf("%s: an update that leaves the expressions: %v", name, errs)
		}
	}
}

func definition(schema apiextensions.JSONSchemaProps) *apiextensions.CustomResourceDefinition {
	return &apiextensions.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "as.example.com", UID: "u", ResourceVersion: "1"},
		Spec: apiextensions.CustomResourceDefinitionSpec{Versions: []apiextensions.CustomResourceDefinitionVersion{
			{Name: "v1", Storage: true, Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &schema}},
		}},
		Status: apiextensions.CustomResourceDefinitionStatus{StoredVersions: []string{"v1"}},
	}
}

// A rule takes a millisecond to compile, its types all that is below it, and each default above it has both done again.
func TestDefinitionsAreBoundedBeforeTheyAreCompiled(t *testing.T) {
	rules := func(n int, r apiextensions.ValidationRule) apiextensions.ValidationRules {
		return slices.Repeat(apiextensions.ValidationRules{r}, n)
	}
	properties := func(n int, p apiextensions.JSONSchemaProps) apiextensions.JSONSchemaProps {
		out := apiextensions.JSONSchemaProps{Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{}}
		for i := range n {
			out.Properties[fmt.Sprint("p", i)] = p
		}
		return out
	}
	type schema = apiextensions.JSONSchemaProps
	within := func(n int, s schema, around func(schema) schema) schema {
		for range n {
			s = around(s)
		}
		return s
	}
	one := apiextensions.JSONSchemaProps{Type: "string", XValidations: rules(1, apiextensions.ValidationRule{Rule: "true"})}
	var empty apiextensions.JSON = map[string]any{}
	withRule := properties(100, apiextensions.JSONSchemaProps{Type: "string"})
	withRule.XValidations = rules(1, apiextensions.ValidationRule{Rule: "true"})
	fields := properties(5000, apiextensions.JSONSchemaProps{Type: "string"})
	fields.XValidations = rules(100, apiextensions.ValidationRule{Rule: "true", FieldPath: ".p1"})
	for name, tc := range map[string]struct {
		schema apiextensions.JSONSchemaProps
		err    string
	}{
		"rules":       {properties(1001, one), "has 1001 rules"},
		"patterns":    {properties(500, apiextensions.JSONSchemaProps{Type: "string", Pattern: "^((a{0,30}){0,30})*x{1,1000}$"}), "the patterns of the definition have a size of"},
		"a long name": {schema{Properties: map[string]schema{strings.Repeat("n", pathlength.Max): {}}}, "the paths of the definition's fields are too long"},
		"long names": {
			schema{Properties: map[string]schema{strings.Repeat("n", pathlength.Max-100): properties(pathlength.MaxAll/pathlength.Max+100, schema{})}},
			"the paths of the definition's fields are too long",
		},
		"in one list": {apiextensions.JSONSchemaProps{XValidations: rules(1001, apiextensions.ValidationRule{Rule: "true"})}, "has 1001 rules"},
		"messages":    {apiextensions.JSONSchemaProps{XValidations: rules(501, apiextensions.ValidationRule{Rule: "true", MessageExpression: "'a'"})}, "has 1002 rules"},
		"all of": {apiextensions.JSONSchemaProps{
			AllOf: slices.Repeat([]apiextensions.JSONSchemaProps{one}, 400), AnyOf: slices.Repeat([]apiextensions.JSONSchemaProps{one}, 300),
			OneOf: slices.Repeat([]apiextensions.JSONSchemaProps{one}, 300), Not: &one,
		}, "has 1001 rules"},
		"items": {within(500, apiextensions.JSONSchemaProps{}, func(s schema) schema {
			items := schema{
				XValidations:         rules(2, apiextensions.ValidationRule{Rule: "true"}),
				AdditionalProperties: &apiextensions.JSONSchemaPropsOrBool{Schema: &s},
			}
			return schema{XValidations: one.XValidations, Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &items}}
		}), "has 1500 rules"},
		"defaults above rules": {within(50, one, func(s apiextensions.JSONSchemaProps) apiextensions.JSONSchemaProps {
			return schema{Default: &empty, XValidations: one.XValidations, Properties: map[string]schema{"a": s}}
		}), "has 1376 rules"},
		"a long rule": {apiextensions.JSONSchemaProps{XValidations: rules(1, apiextensions.ValidationRule{Rule: strings.Repeat("1 == 1 && ", 9000) + "true"})}, "too long to be compiled"},
		"bytes":       {apiextensions.JSONSchemaProps{XValidations: rules(600, apiextensions.ValidationRule{Rule: "'" + strings.Repeat("x", 1000) + "'"})}, "have 601200 bytes"},
		"types": {within(100, fields, func(s apiextensions.JSONSchemaProps) apiextensions.JSONSchemaProps {
			return apiextensions.JSONSchemaProps{XValidations: one.XValidations, Properties: map[string]apiextensions.JSONSchemaProps{"a": s}}
		}), "and at most 500000 are read"},
		"paths":           {fields, "are 505101, each counted"},
		"schemas":         {properties(30_000, apiextensions.JSONSchemaProps{Type: "string"}), "has 30001 schemas"},
		"wide":            {properties(29_999, apiextensions.JSONSchemaProps{Type: "string"}), ""},
		"as people write": {properties(200, withRule), ""},
	} {
		crd := definition(tc.schema)
		for what, errs := range map[string]field.ErrorList{"create": Check(crd, nil), "update": Check(crd, definition(schema{}))} {
			if tc.err == "" && len(errs) > 0 || tc.err != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), tc.err)) {
				t.Errorf("%s: %s: %.400v", name, what, errs)
			}
		}
		if errs := Check(crd, crd.DeepCopy()); len(errs) > 0 {
			t.Errorf("%s: an update that leaves the spec: %v", name, errs)
		}
	}
}

// compiler is a strategy that would compile what it is asked to validate.
type compiler struct {
	Strategy
	compiled int
}

func (c *compiler) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	c.compiled++
	return nil
}

// Labels of a large definition are changed without its schemas, what else is wrong is told as before.
func TestADefinitionThatStaysIsNotCompiledAgain(t *testing.T) {
	c := &compiler{}
	s := Definitions(c)
	rules := slices.Repeat(apiextensions.ValidationRules{{Rule: "true"}}, 5000)
	old := definition(apiextensions.JSONSchemaProps{Type: "object", XValidations: rules})
	old.ResourceVersion = "1"
	update := func(change func(*apiextensions.CustomResourceDefinition)) field.ErrorList {
		next := old.DeepCopy()
		change(next)
		return s.ValidateUpdate(t.Context(), next, old)
	}
	errs := update(func(crd *apiextensions.CustomResourceDefinition) { crd.Labels = map[string]string{"a": "b"} })
	if len(errs) > 0 || c.compiled != 0 {
		t.Errorf("a label: compiled %d times, %v", c.compiled, errs)
	}
	if errs := update(func(crd *apiextensions.CustomResourceDefinition) { crd.Labels = map[string]string{"-": "b"} }); len(errs) == 0 {
		t.Error("a label without a name was accepted")
	}
	if errs := update(func(crd *apiextensions.CustomResourceDefinition) { crd.Status.StoredVersions = nil }); len(errs) == 0 {
		t.Error("a definition without stored versions was accepted")
	}
	if errs := update(func(crd *apiextensions.CustomResourceDefinition) {
		crd.Annotations = map[string]string{"api-approved.kubernetes.io": "unapproved"}
	}); len(errs) > 0 || c.compiled != 1 {
		t.Errorf("an approval: upstream was asked %d times, %v", c.compiled, errs)
	}
	if errs := update(func(crd *apiextensions.CustomResourceDefinition) { crd.Spec.Group = "other" }); len(errs) > 0 || c.compiled != 2 {
		t.Errorf("another spec: asked %d times, %v", c.compiled, errs)
	}
}
