// SPDX-License-Identifier: Apache-2.0

// Package authz decides whether an identified user may do what a request asks.
//
// The chain is explicit: a list of authorizers, asked in order until one allows
// or denies. Wasm authorizers stand before or after RBAC as configured; requests
// of the reserved break-glass identity, of leases and status and of a component
// to its own objects are out of their reach.
package authz

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Attributes is the question: who, verb, resource, name. It is upstream's type,
// so that RBAC evaluation and SubjectAccessReview speak of the same thing.
type Attributes = authorizer.Attributes

// Decision is upstream's: Deny, Allow or NoOpinion.
type Decision = authorizer.Decision

// Authorizer answers one question. reason is shown to the user and to
// `kubectl auth can-i`; an error with NoOpinion lets the next one decide.
type Authorizer interface {
	Name() string
	Authorize(ctx context.Context, a Attributes) (d Decision, reason string, err error)
}
