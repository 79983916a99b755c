// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Review answers the question of a SubjectAccessReview or a
// LocalSubjectAccessReview. The spec has been validated.
func Review(ctx context.Context, a Authorizer, spec authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
	extra := make(map[string][]string, len(spec.Extra))
	for k, v := range spec.Extra {
		extra[k] = v
	}
	u := &user.DefaultInfo{Name: spec.User, Groups: spec.Groups, UID: spec.UID, Extra: extra}
	return review(ctx, a, question(u, spec.ResourceAttributes, spec.NonResourceAttributes))
}

// ReviewSelf answers a SelfSubjectAccessReview of u (`kubectl auth can-i`).
func ReviewSelf(ctx context.Context, a Authorizer, u user.Info,
	spec authorizationv1.SelfSubjectAccessReviewSpec,
) authorizationv1.SubjectAccessReviewStatus {
	return review(ctx, a, question(u, spec.ResourceAttributes, spec.NonResourceAttributes))
}

func review(ctx context.Context, a Authorizer, q authorizer.AttributesRecord) authorizationv1.SubjectAccessReviewStatus {
	d, reason, err := a.Authorize(ctx, q)
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed: d == Allow, Denied: d == Deny, Reason: reason,
		EvaluationError: evaluationError(err, q),
	}
}

func evaluationError(err error, q authorizer.AttributesRecord) string {
	var parts []string
	if err != nil {
		parts = append(parts, err.Error())
	}
	if q.LabelSelectorParsingErr != nil {
		parts = append(parts, fmt.Sprintf("spec.resourceAttributes.labelSelector partially ignored due to parse error: %v",
			q.LabelSelectorParsingErr))
	}
	if q.FieldSelectorParsingErr != nil {
		parts = append(parts, fmt.Sprintf("spec.resourceAttributes.fieldSelector partially ignored due to parse error: %v",
			q.FieldSelectorParsingErr))
	}
	return strings.Join(parts, "; ")
}

// ReviewRules answers a SelfSubjectRulesReview of u (`kubectl auth can-i --list`).
func ReviewRules(ctx context.Context, r Ruler, u user.Info, namespace string) authorizationv1.SubjectRulesReviewStatus {
	resources, paths, incomplete, err := r.RulesFor(ctx, u, namespace)
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}, Incomplete: incomplete,
	}
	for _, rule := range resources {
		status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range paths {
		status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
		})
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status
}

func question(u user.Info, in *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes,
) authorizer.AttributesRecord {
	if in == nil {
		q := authorizer.AttributesRecord{User: u}
		if path != nil {
			q.Path, q.Verb = path.Path, path.Verb
		}
		return q
	}
	q := authorizer.AttributesRecord{
		User: u, Verb: in.Verb, Namespace: in.Namespace, APIGroup: in.Group, APIVersion: in.Version,
		Resource: in.Resource, Subresource: in.Subresource, Name: in.Name, ResourceRequest: true,
	}
	if q.APIVersion == "" {
		q.APIVersion = "*"
	}
	q.LabelSelectorRequirements, q.LabelSelectorParsingErr = labelRequirements(in.LabelSelector)
	q.FieldSelectorRequirements, q.FieldSelectorParsingErr = fieldRequirements(in.FieldSelector)
	return q
}

// Requirements that cannot be read are left out, and named in the error: all of
// them must hold, so fewer ask for more.
func labelRequirements(in *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	switch {
	case in == nil:
		return nil, nil
	case in.RawSelector != "" && len(in.Requirements) == 0:
		s, err := labels.Parse(in.RawSelector)
		if err != nil {
			return nil, err
		}
		requirements, _ := s.Requirements()
		return requirements, nil
	}
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var found labels.Requirements
	var errs []error
	for _, e := range in.Requirements {
		op, ok := operators[e.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", e.Operator))
			continue
		}
		if r, err := labels.NewRequirement(e.Key, op, e.Values); err != nil {
			errs = append(errs, err)
		} else {
			found = append(found, *r)
		}
	}
	return found, utilerrors.NewAggregate(errs)
}

func fieldRequirements(in *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	switch {
	case in == nil:
		return nil, nil
	case in.RawSelector != "" && len(in.Requirements) == 0:
		s, err := fields.ParseSelector(in.RawSelector)
		if err != nil {
			return nil, err
		}
		return s.Requirements(), nil
	}
	operators := map[metav1.FieldSelectorOperator]selection.Operator{
		metav1.FieldSelectorOpIn: selection.Equals, metav1.FieldSelectorOpNotIn: selection.NotEquals,
	}
	var found fields.Requirements
	var errs []error
	for _, e := range in.Requirements {
		op, ok := operators[e.Operator]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("fieldSelectors do not yet support %q", e.Operator))
		case len(e.Values) != 1:
			errs = append(errs, fmt.Errorf("fieldSelectors %q must have one value", e.Operator))
		default:
			found = append(found, fields.Requirement{Field: e.Key, Operator: op, Value: e.Values[0]})
		}
	}
	return found, utilerrors.NewAggregate(errs)
}

// Forbidden is the refusal of a request, in upstream's words.
func Forbidden(a Attributes, reason string) *apierrors.StatusError {
	// What is not an answer of the API to an API client must not be taken for HTML by a browser.
	message := strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;").Replace(forbidden(a))
	if reason != "" {
		message += ": " + reason
	}
	gr := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	return apierrors.NewForbidden(gr, a.GetName(), fmt.Errorf("%s", message))
}

// Refused is the error of a request that nobody allowed: Forbidden, or an
// internal error where an authorizer failed. Whether the user may is not known
// then, and a client that is told "forbidden" would not try again.
func Refused(a Attributes, reason string, err error) *apierrors.StatusError {
	if err == nil {
		return Forbidden(a, reason)
	}
	var later *apierrors.StatusError
	if errors.As(err, &later) && apierrors.IsServiceUnavailable(later) {
		return later // it is for a while, and says for how long
	}
	if reason != "" {
		err = fmt.Errorf("%s: %w", reason, err)
	}
	return apierrors.NewInternalError(err)
}

func forbidden(a Attributes) string {
	name := ""
	if u := a.GetUser(); u != nil {
		name = u.GetName()
	}
	if !a.IsResourceRequest() {
		return fmt.Sprintf("User %q cannot %s path %q", name, a.GetVerb(), a.GetPath())
	}
	resource := a.GetResource()
	if sub := a.GetSubresource(); sub != "" {
		resource += "/" + sub
	}
	where := "at the cluster scope"
	if ns := a.GetNamespace(); ns != "" {
		where = fmt.Sprintf("in the namespace %q", ns)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", name, a.GetVerb(), resource, a.GetAPIGroup(), where)
}
