// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"
)

func condition(kind apiextensionsv1.CustomResourceDefinitionConditionType, status apiextensionsv1.ConditionStatus,
	reason, message string,
) apiextensionsv1.CustomResourceDefinitionCondition {
	return apiextensionsv1.CustomResourceDefinitionCondition{Type: kind, Status: status, Reason: reason, Message: message}
}

func terminating(status apiextensionsv1.ConditionStatus, reason, message string) apiextensionsv1.CustomResourceDefinitionCondition {
	return condition(apiextensionsv1.Terminating, status, reason, message)
}

// taken are the names that the other definitions of a group have been given.
type taken struct{ resources, kinds sets.Set[string] }

func takenBy(all []*apiextensionsv1.CustomResourceDefinition, group, except string) taken {
	t := taken{sets.New[string](), sets.New[string]()}
	for _, crd := range all {
		if crd.Spec.Group != group || crd.Name == except {
			continue
		}
		names := crd.Status.AcceptedNames
		t.resources.Insert(names.Plural, names.Singular)
		t.resources.Insert(names.ShortNames...)
		t.kinds.Insert(names.Kind, names.ListKind)
	}
	return t
}

// acceptNames gives a definition the names that it asks for, as far as nobody
// else in its group has them, and says so in its conditions. It answers whether
// that changed anything.
func acceptNames(crd *apiextensionsv1.CustomResourceDefinition, all []*apiextensionsv1.CustomResourceDefinition) bool {
	wanted, was := crd.Spec.Names, crd.Status.AcceptedNames
	if apiequality.Semantic.DeepEqual(wanted, was) {
		return false
	}
	next, accepted := chooseNames(wanted, was, takenBy(all, crd.Spec.Group, crd.Name))
	if apiequality.Semantic.DeepEqual(next, was) &&
		apihelpers.IsCRDConditionEquivalent(&accepted, apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted)) {
		return false
	}
	crd.Status.AcceptedNames = next
	apihelpers.SetCRDCondition(crd, accepted)
	apihelpers.SetCRDCondition(crd, beforeEstablished(crd, accepted.Status == apiextensionsv1.ConditionTrue))
	return true
}

// beforeEstablished is the Established condition of a definition whose names
// were just decided: once established it stays so.
func beforeEstablished(crd *apiextensionsv1.CustomResourceDefinition, accepted bool) apiextensionsv1.CustomResourceDefinitionCondition {
	old := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established)
	switch {
	case old != nil && old.Status == apiextensionsv1.ConditionTrue:
		return *old
	case accepted:
		return condition(apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "Installing", "the initial names have been accepted")
	case old != nil:
		return *old
	}
	return condition(apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted", "not all names are accepted")
}

func chooseNames(wanted, was apiextensionsv1.CustomResourceDefinitionNames,
	t taken,
) (apiextensionsv1.CustomResourceDefinitionNames, apiextensionsv1.CustomResourceDefinitionCondition) {
	next := was
	accepted := condition(apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionTrue, "NoConflicts", "no conflicts found")
	refuse := func(reason string, err error) {
		accepted = condition(apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse, reason, err.Error())
	}
	for _, one := range []struct {
		wanted, was string
		used        sets.Set[string]
		reason      string
		into        *string
	}{
		{wanted.Plural, was.Plural, t.resources, "PluralConflict", &next.Plural},
		{wanted.Singular, was.Singular, t.resources, "SingularConflict", &next.Singular},
	} {
		if err := free(one.wanted, one.was, one.used); err != nil {
			refuse(one.reason, err)
		} else {
			*one.into = one.wanted
		}
	}
	if !slices.Equal(wanted.ShortNames, was.ShortNames) {
		if err := freeShort(wanted.ShortNames, was.ShortNames, t.resources); err != nil {
			refuse("ShortNamesConflict", err)
		} else {
			next.ShortNames = wanted.ShortNames
		}
	}
	if err := free(wanted.Kind, was.Kind, t.kinds); err != nil {
		refuse("KindConflict", err)
	} else {
		next.Kind = wanted.Kind
	}
	if err := free(wanted.ListKind, was.ListKind, t.kinds); err != nil {
		refuse("ListKindConflict", err)
	} else {
		next.ListKind = wanted.ListKind
	}
	next.Categories = wanted.Categories
	return next, accepted
}

func free(wanted, was string, used sets.Set[string]) error {
	if wanted != was && used.Has(wanted) {
		return fmt.Errorf("%q is already in use", wanted)
	}
	return nil
}

func freeShort(wanted, was []string, used sets.Set[string]) error {
	var errs []error
	for _, name := range wanted {
		if !slices.Contains(was, name) {
			errs = append(errs, free(name, "", used))
		}
	}
	return utilerrors.NewAggregate(errs)
}

// wantsEstablishing says whether only serving is left to do.
func wantsEstablishing(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) && !apihelpers.IsCRDConditionTrue(crd,
		apiextensionsv1.Established)
}

// establish says in the conditions that the definition is served, or why it
// cannot be. It answers whether that changed anything.
func establish(crd *apiextensionsv1.CustomResourceDefinition) bool {
	next := condition(apiextensionsv1.Established, apiextensionsv1.ConditionTrue,
		"InitialNamesAccepted", "the initial names have been accepted")
	if c := crd.Spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil &&
		len(webhook.ValidateCABundle(field.NewPath(""), c.Webhook.ClientConfig.CABundle)) > 0 {
		next = condition(apiextensionsv1.Established, apiextensionsv1.ConditionFalse,
			"InvalidCABundle", "The conversion webhook CABundle is invalid")
	}
	return set(crd, &next)
}

// set sets a condition where it says something else than the present one.
func set(crd *apiextensionsv1.CustomResourceDefinition, c *apiextensionsv1.CustomResourceDefinitionCondition) bool {
	if apihelpers.IsCRDConditionEquivalent(c, apihelpers.FindCRDCondition(crd, c.Type)) {
		return false
	}
	apihelpers.SetCRDCondition(crd, *c)
	return true
}

// schemaCondition tells what keeps a schema from being structural.
func schemaCondition(crd *apiextensionsv1.CustomResourceDefinition) bool {
	message := ""
	reason := "Violations"
	status := apiextensionsv1.ConditionTrue
	if errs, err := violations(crd); err != nil {
		reason, message, status = "StructuralError", err.Error(), apiextensionsv1.ConditionUnknown
	} else if len(errs) > 0 {
		message = errs.ToAggregate().Error()
	}
	if message == "" {
		if apihelpers.FindCRDCondition(crd, apiextensionsv1.NonStructuralSchema) == nil {
			return false
		}
		apihelpers.RemoveCRDCondition(crd, apiextensionsv1.NonStructuralSchema)
		return true
	}
	c := condition(apiextensionsv1.NonStructuralSchema, status, reason, message)
	return set(crd, &c)
}

func violations(crd *apiextensionsv1.CustomResourceDefinition) (field.ErrorList, error) {
	var errs field.ErrorList
	if crd.Spec.PreserveUnknownFields {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		internal := &apiextensions.CustomResourceValidation{}
		if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, internal,
			nil); err != nil {
			return nil, fmt.Errorf("failed to check validation schema for version %s: %w", v.Name, err)
		}
		s, err := schema.NewStructural(internal.OpenAPIV3Schema)
		if err != nil {
			return nil, fmt.Errorf("failed to check validation schema for version %s: %w", v.Name, err)
		}
		errs = append(errs, schema.ValidateStructural(field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"), s)...)
	}
	return errs, nil
}

// approvalCondition tells whether a definition in one of the community's groups
// says that it was approved.
func approvalCondition(crd *apiextensionsv1.CustomResourceDefinition) bool {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return false
	}
	state, why := apihelpers.GetAPIApprovalState(crd.Annotations)
	status, reason := apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	switch state {
	case apihelpers.APIApprovalInvalid:
		status, reason = apiextensionsv1.ConditionFalse, "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		status, reason = apiextensionsv1.ConditionFalse, "MissingAnnotation"
	case apihelpers.APIApproved:
		status, reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		status, reason = apiextensionsv1.ConditionFalse, "UnapprovedAnnotation"
	}
	c := condition(apiextensionsv1.KubernetesAPIApprovalPolicyConformant, status, reason, why)
	return set(crd, &c)
}

// beginTermination says that the objects are being deleted; it answers whether
// that was not said before.
func beginTermination(crd *apiextensionsv1.CustomResourceDefinition) bool {
	was := apihelpers.FindCRDCondition(crd, apiextensionsv1.Terminating)
	if was != nil && was.Reason != "InstanceDeletionPending" {
		return false
	}
	apihelpers.SetCRDCondition(crd,
		terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress"))
	return true
}
