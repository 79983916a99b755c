// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/optimistic"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// onNewest runs try on the newest state of key until it succeeds, or fails for certain.
func (r *Registry) onNewest(
	ctx context.Context, key string, try func(context.Context, optimistic.Snapshot) (Result, error),
) (Result, error) {
	return optimistic.Run(ctx, optimistic.Writes{Source: r.reads, Turns: r.set.turns, Written: r.set.written}, key, try)
}

// existing is a copy of the current object's internal form that strategies may
// change; old is the current object in the requested version.
func (r *Registry) existing(item *watchcache.Item, old *object.Object) (runtime.Object, metav1.Object, error) {
	if r.res.Custom == nil {
		return internalCopy(item)
	}
	return copied(old)
}

// internalCopy is a copy of the item's internal form that strategies may change.
func internalCopy(item *watchcache.Item) (runtime.Object, metav1.Object, error) {
	return copied(item.Object)
}

func copied(o *object.Object) (runtime.Object, metav1.Object, error) {
	internal, err := Internal(o)
	if err != nil {
		return nil, nil, err
	}
	internal = internal.DeepCopyObject()
	m, err := meta.Accessor(internal)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	return internal, m, nil
}
