// SPDX-License-Identifier: Apache-2.0

// Package bounded validates writes by upstream's strategies, within bounds of what that costs.
//
// Some of what upstream validates takes a time that grows with the square of an object's
// size; resources have bounds for that (api.Resource's Bound), which are asked before. Errors
// grow so for all of them: one text is made of them by adding each to the text of those
// before it, and those of generated validation are compared with all others. An object of a
// MiB can have 30,000 things wrong, which took half a minute.
package bounded

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// MaxErrors is how many errors are told; of others their number.
const MaxErrors = 1000

// Bound refuses an internal object that would cost too much to validate; old is what it
// replaces, nil = nothing. A nil Bound refuses none.
type Bound = func(o, old runtime.Object) field.ErrorList

// BeforeCreate is upstream's.
func BeforeCreate(ctx context.Context, s Strategy, b Bound, o runtime.Object) error {
	if err := refusal(s, b, o, nil); err != nil {
		return err
	}
	return rest.BeforeCreate(of(s), ctx, o)
}

// BeforeUpdate is upstream's.
func BeforeUpdate(ctx context.Context, s Strategy, b Bound, o, old runtime.Object) error {
	if err := refusal(s, b, o, old); err != nil {
		return err
	}
	return rest.BeforeUpdate(of(s), ctx, o, old)
}

func refusal(s Strategy, b Bound, o, old runtime.Object) error {
	if b == nil {
		return nil
	}
	errs := b(o, old)
	if len(errs) == 0 {
		return nil
	}
	kinds, _, err := s.ObjectKinds(o)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return apierrors.NewInvalid(kinds[0].GroupKind(), m.GetName(), errs)
}

// Strategy is what upstream has for a resource.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// of is the strategy with its errors bounded, for upstream's functions of these names alone:
// other things that a strategy can do are not passed on.
func of(s Strategy) Strategy {
	if d, ok := s.(rest.DeclarativeValidationStrategy); ok {
		return declarative{few{s, new(int)}, d}
	}
	return few{s, nil}
}

// few serves one validation.
type few struct {
	Strategy
	// left is how many errors were left out, where others follow; nil = none do.
	left *int
}

// Validate implements rest.RESTCreateStrategy.
func (f few) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	return f.first(f.Strategy.Validate(ctx, o))
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (f few) ValidateUpdate(ctx context.Context, o, old runtime.Object) field.ErrorList {
	return f.first(f.Strategy.ValidateUpdate(ctx, o, old))
}

func (f few) first(errs field.ErrorList) field.ErrorList {
	switch {
	case len(errs) <= MaxErrors:
		return errs
	case f.left != nil:
		*f.left = len(errs) - MaxErrors
		return errs[:MaxErrors:MaxErrors]
	}
	return told(errs, 0)
}

type declarative struct {
	few
	rest.DeclarativeValidationStrategy
}

// ValidateDeclaratively implements rest.DeclarativeValidationStrategy.
func (d declarative) ValidateDeclaratively(
	ctx context.Context, o, old runtime.Object, errs field.ErrorList, op operation.Type, config rest.DeclarativeValidationConfig,
) field.ErrorList {
	return told(d.DeclarativeValidationStrategy.ValidateDeclaratively(ctx, o, old, errs, op, config), *d.left)
}

// told are the first errors, and the number of the others; left have been left out before.
func told(errs field.ErrorList, left int) field.ErrorList {
	if len(errs) > MaxErrors {
		left += len(errs) - MaxErrors
		errs = errs[:MaxErrors:MaxErrors]
	}
	if left == 0 || len(errs) == 0 {
		return errs
	}
	last := errs[len(errs)-1].Field
	return append(errs, &field.Error{Type: field.ErrorTypeForbidden, Field: last, Detail: fmt.Sprintf("and %d more errors", left)})
}
