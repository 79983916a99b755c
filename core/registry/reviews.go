package registry

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
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
