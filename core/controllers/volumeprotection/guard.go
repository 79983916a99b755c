// SPDX-License-Identifier: Apache-2.0

package volumeprotection

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// protected is an object that is held up.
type protected[T any] interface {
	metav1.Object
	DeepCopy() T
}

// protection is how one kind is protected.
type protection[T protected[T]] struct {
	kind, finalizer string
	update          func(context.Context, T, metav1.UpdateOptions) (T, error)
	// used is asked about an object that is being deleted.
	used func(context.Context) (bool, error)
}

// guard puts the finalizer on, and takes it off an object that is being deleted and
// that nobody uses. Whoever uses it will change, which is an event that asks again.
func guard[T protected[T]](ctx context.Context, p protection[T], o T) error {
	controllers.About(ctx, p.kind, o)
	finalizers, deleting, did := slices.Clone(o.GetFinalizers()), o.GetDeletionTimestamp() != nil, "protected"
	switch on := slices.Contains(finalizers, p.finalizer); {
	case on == !deleting:
		return nil
	case deleting:
		if used, err := p.used(ctx); err != nil || used {
			return err
		}
		finalizers, did = slices.DeleteFunc(finalizers, func(f string) bool { return f == p.finalizer }), "released"
	default:
		finalizers = append(finalizers, p.finalizer)
	}
	next := o.DeepCopy()
	next.SetFinalizers(finalizers)
	_, err := p.update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.kind, cache.MetaObjectToName(o), err)
	}
	controllers.Did(ctx, did, p.kind, nil)
	return nil
}
