// SPDX-License-Identifier: Apache-2.0

// Package action answers requests that do more than read or write the object that
// they name: a binding, an eviction, a scale, a token, and the reviews, which store
// nothing at all.
//
// It guarantees that admission has judged what a client sent before anything is
// done, and that what an action changes is one compare-and-swap on the newest state
// of each object. It refuses what no action is registered for, and like
// core/registry it neither authenticates nor authorizes its caller.
package action

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/judging"
)

// Action answers one kind of request. r is the registry of the resource that the
// request names.
type Action interface {
	Do(ctx context.Context, r *registry.Registry, req *registry.Request) (runtime.Object, error)
}

// Key says which requests an action answers. The zero Resource stands for all
// resources that have the subresource, unless one of them has an action of its own.
type Key struct {
	Resource    schema.GroupResource
	Subresource string // "" = the resource itself, which stores nothing
	Verb        string // get, create, update or patch
}

// Config is what actions need.
type Config struct {
	Contract   *api.Contract
	Registries *registry.Set
	// Authorizer answers access reviews.
	Authorizer authz.Authorizer
	// Tokens issues service account tokens; nil = serviceaccounts/token is refused.
	Tokens TokenIssuer
	// Reviewer answers token reviews; nil = they are refused.
	Reviewer TokenReviewer
	Now      func() time.Time
}

// Actions are all actions of a server. They are safe for concurrent use.
type Actions struct{ byKey map[Key]Action }

// New makes the actions.
func New(cfg Config) *Actions {
	pods, accounts := corev1.Resource("pods"), corev1.Resource("serviceaccounts")
	bind := binding{registries: cfg.Registries, now: cfg.Now}
	byKey := map[Key]Action{
		{Subresource: "scale", Verb: "get"}:                        getScale{cfg.Contract},
		{Subresource: "scale", Verb: "update"}:                     updateScale{cfg.Contract},
		{Subresource: "scale", Verb: "patch"}:                      patchScale{cfg.Contract},
		{Resource: pods, Subresource: "binding", Verb: "create"}:   bind,
		{Resource: corev1.Resource("bindings"), Verb: "create"}:    oldBinding{bind},
		{Resource: pods, Subresource: "eviction", Verb: "create"}:  eviction{registries: cfg.Registries, now: cfg.Now},
		{Resource: accounts, Subresource: "token", Verb: "create"}: token{registries: cfg.Registries, issuer: cfg.Tokens},
	}
	for resource, answer := range reviews(cfg) {
		byKey[Key{Resource: resource, Verb: "create"}] = review{contract: cfg.Contract, answer: answer}
	}
	return &Actions{byKey: byKey}
}

// Do answers a request for a resource with a verb.
func (a *Actions) Do(ctx context.Context, r *registry.Registry, verb string, req *registry.Request) (runtime.Object, error) {
	key := Key{Resource: r.Resource().GroupResource, Subresource: req.Subresource, Verb: verb}
	action, ok := a.byKey[key]
	if !ok {
		key.Resource = schema.GroupResource{}
		action, ok = a.byKey[key]
	}
	if !ok {
		return nil, apierrors.NewMethodNotSupported(r.Resource().GroupResource, verb)
	}
	return action.Do(r.Context(ctx, req), r, req)
}

// judged is admitted, and how admission is asked again where a policy has judged by other objects: what
// follows is held against what was written since. nil = it need not be.
func judged[T runtime.Object](ctx context.Context, r *registry.Registry, req *registry.Request, kind schema.GroupVersionKind) (
	T, func(context.Context) error, error,
) {
	ctx = r.Judged(ctx)
	o, err := admitted[T](ctx, r, req, kind)
	if err != nil || !judging.Raised(ctx) {
		return o, nil, err
	}
	return o, func(ctx context.Context) error {
		_, err := admitted[T](ctx, r, req, kind)
		return err
	}, nil
}

// admitted decodes the object that a create brings, asks admission about it, and
// returns what admission left.
func admitted[T runtime.Object](ctx context.Context, r *registry.Registry, req *registry.Request, kind schema.GroupVersionKind) (T, error) {
	var none T
	sent := r.Sent(req, kind)
	o, err := sent.Decode(ctx)
	if err != nil {
		return none, err
	}
	if o, err = sent.Admit(ctx, admission.Create, o, nil); err != nil {
		return none, err
	}
	typed, ok := o.(T)
	if !ok {
		return none, apierrors.NewBadRequest(fmt.Sprintf("not a %s object: %T", kind.Kind, o))
	}
	return typed, nil
}
