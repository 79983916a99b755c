// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/auth/impersonation"
)

// impersonate makes the request somebody else's where its headers say so and
// the asker may act as them.
func (s *Server) impersonate(ctx context.Context, req *http.Request, info *genericrequest.RequestInfo, asker user.Info) (user.Info, error) {
	wanted, err := impersonation.Wanted(req.Header)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if wanted == nil {
		return asker, nil
	}
	granted, err := s.impersonation.Decide(ctx, wanted, authz.AttributesOf(info, asker))
	if err != nil {
		return nil, err
	}
	audit.From(ctx).Impersonated(granted.User, granted.Constraint)
	return granted.User, nil
}
