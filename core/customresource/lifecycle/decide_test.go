// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func named(name, kind string, short ...string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: name + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Names: apiextensionsv1.CustomResourceDefinitionNames{
			Plural: name, Singular: strings.TrimSuffix(name, "s"), Kind: kind, ListKind: kind + "List", ShortNames: short,
		}},
	}
}

func accepted(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd.Status.AcceptedNames = crd.Spec.Names
	return crd
}

func TestNamesGoToWhoHasThem(t *testing.T) {
	other := accepted(named("cats", "Cat", "c"))
	elsewhere := accepted(named("dogs", "Dog"))
	elsewhere.Spec.Group = "example.org"
	for story, test := range map[string]struct {
		crd    *apiextensionsv1.CustomResourceDefinition
		reason string
	}{
		"nobody has them":           {named("dogs", "Dog", "d"), "NoConflicts"},
		"a plural as a short name":  {named("dogs", "Dog", "cats"), "ShortNamesConflict"},
		"the short name":            {named("dogs", "Dog", "c"), "ShortNamesConflict"},
		"the kind":                  {named("dogs", "Cat"), "ListKindConflict"},
		"the list kind as a kind":   {named("dogs", "CatList"), "KindConflict"},
		"the plural as a singular":  {named("catss", "Dog"), "SingularConflict"},
		"another group is no rival": {named("dogs", "Dog"), "NoConflicts"},
	} {
		all := []*apiextensionsv1.CustomResourceDefinition{other, elsewhere, test.crd}
		if !acceptNames(test.crd, all) {
			t.Errorf("%s: nothing was decided", story)
			continue
		}
		got := apihelpers.FindCRDCondition(test.crd, apiextensionsv1.NamesAccepted)
		if got.Reason != test.reason || (got.Status == apiextensionsv1.ConditionTrue) != (test.reason == "NoConflicts") {
			t.Errorf("%s: %s %s", story, got.Reason, got.Message)
		}
		if e := apihelpers.FindCRDCondition(test.crd, apiextensionsv1.Established); e.Status != apiextensionsv1.ConditionFalse {
			t.Errorf("%s: established before it is served", story)
		}
		if acceptNames(test.crd, all) {
			t.Errorf("%s: decided again, although nothing changed", story)
		}
	}
}

func TestAnEstablishedDefinitionKeepsItsNamesWhenItAsksForTakenOnes(t *testing.T) {
	other := accepted(named("cats", "Cat", "c"))
	crd := accepted(named("dogs", "Dog", "d"))
	apihelpers.SetCRDCondition(crd, condition(apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionTrue,
		"NoConflicts", "no conflicts found"))
	if !wantsEstablishing(crd) || !establish(crd) || wantsEstablishing(crd) {
		t.Fatal("it was not established")
	}
	crd.Spec.Names.ShortNames = []string{"c"}
	crd.Spec.Names.Categories = []string{"all"}
	if !acceptNames(crd, []*apiextensionsv1.CustomResourceDefinition{other, crd}) {
		t.Fatal("nothing was decided")
	}
	if got := crd.Status.AcceptedNames; got.ShortNames[0] != "d" || got.Categories[0] != "all" || !apihelpers.IsCRDConditionTrue(crd,
		apiextensionsv1.Established) {
		t.Errorf("%+v", crd.Status)
	}
}

func TestConditionsTellWhatIsWrong(t *testing.T) {
	crd := named("dogs", "Dog")
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {}}},
	}}}
	if !schemaCondition(crd) || schemaCondition(crd) {
		t.Error("a schema without types is structural")
	}
	if c := apihelpers.FindCRDCondition(crd, apiextensionsv1.NonStructuralSchema); c == nil || !strings.Contains(c.Message,
		"spec.versions[0].schema.openAPIV3Schema.properties[spec].type: Required value") {
		t.Errorf("%+v", c)
	}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{Type: "object"}
	if !schemaCondition(crd) || apihelpers.FindCRDCondition(crd, apiextensionsv1.NonStructuralSchema) != nil {
		t.Error("a mended schema is still told of")
	}
	if approvalCondition(crd) {
		t.Error("example.com needs no approval")
	}
	crd.Spec.Group = "thing.k8s.io"
	for annotation, reason := range map[string]string{
		"": "MissingAnnotation",
		"https://github.com/kubernetes/kubernetes/pull/1": "ApprovedAnnotation", "unapproved": "UnapprovedAnnotation", "x": "InvalidAnnotation",
	} {
		crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: annotation}
		if approvalCondition(crd); apihelpers.FindCRDCondition(crd, apiextensionsv1.KubernetesAPIApprovalPolicyConformant).Reason != reason {
			t.Errorf("%q: %+v", annotation, crd.Status.Conditions)
		}
	}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{CABundle: []byte("nonsense")},
		},
	}
	if !establish(crd) || apihelpers.FindCRDCondition(crd, apiextensionsv1.Established).Reason != "InvalidCABundle" {
		t.Errorf("%+v", crd.Status.Conditions)
	}
}
