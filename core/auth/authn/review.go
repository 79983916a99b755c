// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"errors"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/wasmplane/wasmplane/core/auth/authz"
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
		review.Status.User, review.Status.Audiences = authz.UserInfo(resp.User), resp.Audiences
	}
	return nil
}
