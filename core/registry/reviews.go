package registry

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// TokenIssuer makes service account tokens.
type TokenIssuer interface {
	// Issue makes a token for sa, bound to what request says, and fills request's status.
	Issue(ctx context.Context, sa *corev1.ServiceAccount, request *authenticationv1.TokenRequest) error
}

// TokenReviewer judges tokens.
type TokenReviewer interface {
	// Review fills the review's status.
	Review(ctx context.Context, review *authenticationv1.TokenReview) error
}

// token issues a token for a service account.
func (r *Registry) token(ctx context.Context, req *Request) (runtime.Object, error) {
	if r.cfg.Tokens == nil {
		return nil, apierrors.NewMethodNotSupported(r.res.GroupResource, "create token")
	}
	o, err := r.spoken(ctx, plain{authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")}, req)
	if err != nil {
		return nil, err
	}
	request, ok := o.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest object: %T", o))
	}
	obj, err := r.Get(ctx, &Request{Version: "v1", Namespace: req.Namespace, Name: req.Name, User: req.User}, "")
	if err != nil {
		return nil, err
	}
	versioned, err := obj.Versioned()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	sa, ok := versioned.(*corev1.ServiceAccount)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("stored service account is a %T", versioned))
	}
	if err := r.cfg.Tokens.Issue(ctx, sa, request); err != nil {
		return nil, err
	}
	return request, nil
}

// Review answers a virtual resource's create: an access review, a token review,
// a binding in its old place.
func (r *Registry) Review(ctx context.Context, req *Request) (runtime.Object, error) {
	ctx = r.context(ctx, req)
	if r.res.Group == "" && r.res.GroupResource.Resource == "bindings" {
		pods, err := r.set.pods()
		if err != nil {
			return nil, err
		}
		one := *req
		one.Subresource = "binding" // whoever guards that guards this too
		return pods.bind(ctx, &one)
	}
	kind := r.res.GVK(req.Version)
	o, err := r.spoken(ctx, plain{kind}, req)
	if err != nil {
		return nil, err
	}
	if err := r.answer(ctx, req, o); err != nil {
		return nil, err
	}
	return o, nil
}

func (r *Registry) answer(ctx context.Context, req *Request, o runtime.Object) error {
	if review, ok := o.(*authorizationv1.LocalSubjectAccessReview); ok {
		if review.Namespace != "" && review.Namespace != req.Namespace {
			return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
		}
		review.Namespace = req.Namespace
	}
	if review, ok := o.(*authorizationv1.SubjectAccessReview); ok {
		review.Namespace = "" // it is in none
	}
	if err := r.cfg.Contract.CheckAccessReview(ctx, o); err != nil {
		return err
	}
	switch review := o.(type) {
	case *authenticationv1.TokenReview:
		if r.cfg.Reviewer == nil {
			return apierrors.NewMethodNotSupported(r.res.GroupResource, "create")
		}
		if review.Spec.Token == "" {
			return apierrors.NewBadRequest("token is required for TokenReview in authentication")
		}
		return r.cfg.Reviewer.Review(ctx, review)
	case *authenticationv1.SelfSubjectReview:
		review.ObjectMeta = metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(r.cfg.Now())}
		review.Status.UserInfo = userInfo(req.User)
		return nil
	case *authorizationv1.SelfSubjectAccessReview:
		review.Status = authz.ReviewSelf(ctx, r.cfg.Authorizer, req.User, review.Spec)
		return nil
	case *authorizationv1.SubjectAccessReview:
		review.Status = authz.Review(ctx, r.cfg.Authorizer, review.Spec)
		return nil
	case *authorizationv1.LocalSubjectAccessReview:
		review.Status = authz.Review(ctx, r.cfg.Authorizer, review.Spec)
		return nil
	case *authorizationv1.SelfSubjectRulesReview:
		return r.rules(ctx, req, review)
	}
	return apierrors.NewMethodNotSupported(r.res.GroupResource, "create")
}

func (r *Registry) rules(ctx context.Context, req *Request, review *authorizationv1.SelfSubjectRulesReview) error {
	if review.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	ruler, ok := r.cfg.Authorizer.(authz.Ruler)
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

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	if extra := u.GetExtra(); len(extra) > 0 {
		info.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
		for k, v := range extra {
			info.Extra[k] = v
		}
	}
	return info
}

// Act answers a subresource that is more than a part of its object: scale,
// binding, eviction, token. verb is get, create, update or patch.
func (r *Registry) Act(ctx context.Context, verb string, req *Request) (runtime.Object, error) {
	ctx = r.context(ctx, req)
	switch req.Subresource + " " + verb {
	case "scale get":
		return r.getScale(ctx, req)
	case "scale update":
		return r.updateScale(ctx, req)
	case "scale patch":
		return r.patchScale(ctx, req)
	case "binding create":
		return r.bind(ctx, req)
	case "eviction create":
		return r.evict(ctx, req)
	case "token create":
		return r.token(ctx, req)
	}
	return nil, apierrors.NewMethodNotSupported(r.res.GroupResource, verb)
}
