// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"fmt"
	"sync/atomic"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

// ChainAccess asks the server's own authorizers. They include plugins, which are
// loaded with their host functions: it exists before the chain does, and refuses until
// Use has been called, as a server that is starting.
type ChainAccess struct{ chain atomic.Pointer[authz.Chain] }

// Use has it ask chain from now on.
func (c *ChainAccess) Use(chain *authz.Chain) { c.chain.Store(chain) }

// Review implements hostfn.Access.
func (c *ChainAccess) Review(ctx context.Context,
	spec authorizationv1.SubjectAccessReviewSpec,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	chain := c.chain.Load()
	if chain == nil {
		return authorizationv1.SubjectAccessReviewStatus{}, apierrors.NewServiceUnavailable("the apiserver is starting")
	}
	return authz.Review(ctx, chain, spec), nil
}

// ClientAccess asks by a SubjectAccessReview.
type ClientAccess struct{ Kube kubernetes.Interface }

// Review implements hostfn.Access.
func (c ClientAccess) Review(ctx context.Context,
	spec authorizationv1.SubjectAccessReviewSpec,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	r, err := c.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec},
		metav1.CreateOptions{})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("ask the authorizers: %w", err)
	}
	return r.Status, nil
}

var (
	_ hostfn.Access     = (*ChainAccess)(nil)
	_ hostfn.Access     = ClientAccess{}
	_ hostfn.Objects    = Cached{}
	_ hostfn.Objects    = Client{}
	_ hostfn.Events     = (*Events)(nil)
	_ hostfn.StateStore = ConfigMapState{}
	_ hostfn.StateStore = (*FileState)(nil)
)
