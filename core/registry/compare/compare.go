// SPDX-License-Identifier: Apache-2.0

// Package compare says whether a write would change anything.
//
// It guarantees that times alone, in managed fields, are no change: a client that
// applies the same thing every minute writes nothing. It compares what is cheap
// first, because nearly all writes change something.
package compare

import (
	"bytes"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/object"
)

// Unchanged says whether storing obj would change nothing but times in its
// managed fields. It is asked on every update, nearly always of objects that
// differ in their metadata already, which are compared first.
func Unchanged(obj, old *object.Object) (bool, error) {
	next, err := obj.Versioned()
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	was, err := old.Versioned()
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	nextMeta, err := meta.Accessor(next)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	wasMeta, err := meta.Accessor(was)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	if nextMeta.GetGeneration() != wasMeta.GetGeneration() || !SameManagers(nextMeta.GetManagedFields(), wasMeta.GetManagedFields()) {
		return false, nil
	}
	fields, version := nextMeta.GetManagedFields(), nextMeta.GetResourceVersion()
	nextMeta.SetManagedFields(wasMeta.GetManagedFields())
	nextMeta.SetResourceVersion(wasMeta.GetResourceVersion())
	same := apiequality.Semantic.DeepEqual(next, was)
	nextMeta.SetManagedFields(fields)
	nextMeta.SetResourceVersion(version)
	return same, nil
}

// SameManagers compares managed fields but for their times.
func SameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return x.Manager == y.Manager && x.Operation == y.Operation && x.APIVersion == y.APIVersion &&
			x.FieldsType == y.FieldsType && x.Subresource == y.Subresource && bytes.Equal(rawFields(x), rawFields(y))
	})
}

func rawFields(e metav1.ManagedFieldsEntry) []byte {
	if e.FieldsV1 == nil {
		return nil
	}
	return e.FieldsV1.GetRawBytes()
}
