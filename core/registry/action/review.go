// SPDX-License-Identifier: Apache-2.0

package action

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry"
)

// TokenReviewer judges tokens.
type TokenReviewer interface {
	// Review fills the review's status.
	Review(ctx context.Context, review *authenticationv1.TokenReview) error
}

// review answers a question: a create that stores nothing.
type review struct {
	contract *api.Contract
	answer   answer
}

// answer fills the status of a review.
type answer func(ctx context.Context, req *registry.Request, o runtime.Object) error

// Do implements Action.
func (v review) Do(ctx context.Context, r *registry.Registry, req *registry.Request) (runtime.Object, error) {
	o, err := admitted[runtime.Object](ctx, r, req, r.Resource().GVK(req.Version))
	if err != nil {
		return nil, err
	}
	switch o := o.(type) {
	case *authorizationv1.LocalSubjectAccessReview:
		if o.Namespace != "" && o.Namespace != req.Namespace {
			return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
		}
		o.Namespace = req.Namespace
	case *authorizationv1.SubjectAccessReview:
		o.Namespace = "" // it is in none
	}
	if err := v.contract.CheckAccessReview(ctx, o); err != nil {
		return nil, err
	}
	if err := v.answer(ctx, req, o); err != nil {
		return nil, err
	}
	return o, nil
}

// reviews are the answers by the resource of the review.
func reviews(cfg Config) map[schema.GroupResource]answer {
	authentication := func(name string) schema.GroupResource {
		return schema.GroupResource{Group: authenticationv1.GroupName, Resource: name}
	}
	authorization := func(name string) schema.GroupResource {
		return schema.GroupResource{Group: authorizationv1.GroupName, Resource: name}
	}
	return map[schema.GroupResource]answer{
		authentication("tokenreviews"): answerTo(authentication("tokenreviews"),
			func(ctx context.Context, _ *registry.Request, o *authenticationv1.TokenReview) error {
				if cfg.Reviewer == nil {
					return apierrors.NewMethodNotSupported(authentication("tokenreviews"), "create")
				}
				if o.Spec.Token == "" {
					return apierrors.NewBadRequest("token is required for TokenReview in authentication")
				}
				return cfg.Reviewer.Review(ctx, o)
			}),
		authentication("selfsubjectreviews"): answerTo(authentication("selfsubjectreviews"),
			func(_ context.Context, req *registry.Request, o *authenticationv1.SelfSubjectReview) error {
				o.ObjectMeta = metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(cfg.Now())}
				o.Status.UserInfo = authz.UserInfo(req.User)
				return nil
			}),
		authorization("selfsubjectaccessreviews"): answerTo(authorization("selfsubjectaccessreviews"),
			func(ctx context.Context, req *registry.Request, o *authorizationv1.SelfSubjectAccessReview) error {
				o.Status = authz.ReviewSelf(ctx, cfg.Authorizer, req.User, o.Spec)
				return nil
			}),
		authorization("subjectaccessreviews"): answerTo(authorization("subjectaccessreviews"),
			func(ctx context.Context, _ *registry.Request, o *authorizationv1.SubjectAccessReview) error {
				o.Status = authz.Review(ctx, cfg.Authorizer, o.Spec)
				return nil
			}),
		authorization("localsubjectaccessreviews"): answerTo(authorization("localsubjectaccessreviews"),
			func(ctx context.Context, _ *registry.Request, o *authorizationv1.LocalSubjectAccessReview) error {
				o.Status = authz.Review(ctx, cfg.Authorizer, o.Spec)
				return nil
			}),
		authorization("selfsubjectrulesreviews"): answerTo(authorization("selfsubjectrulesreviews"),
			func(ctx context.Context, req *registry.Request, o *authorizationv1.SelfSubjectRulesReview) error {
				return rules(ctx, cfg.Authorizer, req, o)
			}),
	}
}

// answerTo is an answer to one type of review.
func answerTo[T runtime.Object](resource schema.GroupResource, f func(ctx context.Context, req *registry.Request, o T) error) answer {
	return func(ctx context.Context, req *registry.Request, o runtime.Object) error {
		typed, ok := o.(T)
		if !ok { // a version that there is no answer to
			return apierrors.NewMethodNotSupported(resource, "create")
		}
		return f(ctx, req, typed)
	}
}

// rules lists what a user may do in a namespace.
func rules(ctx context.Context, authorizer authz.Authorizer, req *registry.Request, review *authorizationv1.SelfSubjectRulesReview) error {
	if review.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	ruler, ok := authorizer.(authz.Ruler)
	if !ok {
		review.Status = authorizationv1.SubjectRulesReviewStatus{
			ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}, Incomplete: true,
			EvaluationError: "this server's authorizer cannot list what a user may do",
		}
		return nil
	}
	review.Status = authz.ReviewRules(ctx, ruler, req.User, review.Spec.Namespace)
	return nil
}
