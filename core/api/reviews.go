// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/authorization"
	"k8s.io/kubernetes/pkg/apis/authorization/validation"
)

// CheckAccessReview says what is wrong with a question about access: nil, or the
// refusal that upstream gives, which names no kind. Objects of other kinds are
// not its business.
func (c *Contract) CheckAccessReview(ctx context.Context, review runtime.Object) error {
	switch review.(type) {
	case *authorizationv1.SubjectAccessReview, *authorizationv1.SelfSubjectAccessReview, *authorizationv1.LocalSubjectAccessReview:
	default:
		return nil
	}
	scheme := legacyscheme.Scheme
	internal, err := scheme.ConvertToVersion(review, authorization.SchemeGroupVersion)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("convert a review to its internal form: %w", err))
	}
	var errs field.ErrorList
	switch r := internal.(type) {
	case *authorization.SubjectAccessReview:
		errs = validation.ValidateSubjectAccessReviewCreate(ctx, scheme, r)
	case *authorization.SelfSubjectAccessReview:
		errs = validation.ValidateSelfSubjectAccessReviewCreate(ctx, scheme, r)
	case *authorization.LocalSubjectAccessReview:
		errs = validation.ValidateLocalSubjectAccessReviewCreate(ctx, scheme, r)
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: authorization.GroupName}, "", errs)
}
