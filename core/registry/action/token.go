// SPDX-License-Identifier: Apache-2.0

package action

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/registry"
)

// TokenIssuer makes service account tokens.
type TokenIssuer interface {
	// Issue makes a token for sa, bound to what request says, and fills request's status.
	Issue(ctx context.Context, sa *corev1.ServiceAccount, request *authenticationv1.TokenRequest) error
}

// token issues a token for a service account.
type token struct {
	registries *registry.Set
	issuer     TokenIssuer
}

// Do implements Action.
func (t token) Do(ctx context.Context, r *registry.Registry, req *registry.Request) (runtime.Object, error) {
	if t.issuer == nil {
		return nil, apierrors.NewMethodNotSupported(r.Resource().GroupResource, "create token")
	}
	request, err := admitted[*authenticationv1.TokenRequest](ctx, r, req, authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	if err != nil {
		return nil, err
	}
	account, err := registry.Read[*corev1.ServiceAccount](ctx, t.registries, r.Resource().GroupResource, req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	if err := t.issuer.Issue(ctx, account, request); err != nil {
		return nil, err
	}
	return request, nil
}
