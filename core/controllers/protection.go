// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Protected is an object whose deletion a finalizer holds up while it is in use.
type Protected[T any] interface {
	metav1.Object
	DeepCopy() T
}

// Protection is how one kind is protected.
type Protection[T Protected[T]] struct {
	Kind, Finalizer string
	Update          func(context.Context, T, metav1.UpdateOptions) (T, error)
	// Used is asked about an object that is being deleted.
	Used func(context.Context) (bool, error)
}

// Guard puts the finalizer on, and takes it off an object that is being deleted and
// that nobody uses. Whoever uses it will change, which is an event that asks again.
func Guard[T Protected[T]](ctx context.Context, p Protection[T], o T) error {
	About(ctx, p.Kind, o)
	finalizers, deleting, did := slices.Clone(o.GetFinalizers()), o.GetDeletionTimestamp() != nil, "protected"
	switch on := slices.Contains(finalizers, p.Finalizer); {
	case on == !deleting:
		return nil
	case deleting:
		if used, err := p.Used(ctx); err != nil || used {
			return err
		}
		finalizers, did = slices.DeleteFunc(finalizers, func(f string) bool { return f == p.Finalizer }), "released"
	default:
		finalizers = append(finalizers, p.Finalizer)
	}
	next := o.DeepCopy()
	next.SetFinalizers(finalizers)
	_, err := p.Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.Kind, cache.MetaObjectToName(o), err)
	}
	Did(ctx, did, p.Kind, nil)
	return nil
}
