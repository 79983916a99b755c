package authn

import (
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// ReviewToken answers a TokenReview into its status. The returned error is an
// API status error about the question itself; a bad token is an answer.
func (a *Authenticator) ReviewToken(ctx context.Context, review *authenticationv1.TokenReview) error {
	if review.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	auds := authenticator.Audiences(review.Spec.Audiences)
	if len(auds) == 0 {
		auds = a.audiences
	}
	resp, ok, err := a.tokens.AuthenticateToken(authenticator.WithAudiences(ctx, auds), review.Spec.Token)
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok}
	switch {
	case err != nil:
		review.Status.Authenticated, review.Status.Error = false, err.Error()
	case !ok:
		review.Status.Error = "invalid bearer token"
	case len(auds.Intersect(resp.Audiences)) == 0:
		return apierrors.NewInternalError(errors.New("error validating audiences"))
	default:
		review.Status.User, review.Status.Audiences = UserInfo(resp.User), resp.Audiences
	}
	return nil
}

// ReviewSelf answers a SelfSubjectReview (`kubectl auth whoami`) into its status.
func ReviewSelf(u user.Info, review *authenticationv1.SelfSubjectReview) error {
	if u == nil {
		return apierrors.NewInternalError(fmt.Errorf("the request carries no user"))
	}
	review.Status.UserInfo = UserInfo(u)
	return nil
}

// UserInfo is u as the API shows it.
func UserInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	if extra := u.GetExtra(); len(extra) > 0 {
		info.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
		for k, v := range extra {
			info.Extra[k] = v
		}
	}
	return info
}
