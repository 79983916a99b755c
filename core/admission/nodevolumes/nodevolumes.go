// SPDX-License-Identifier: Apache-2.0

// Package nodevolumes is NodeRestriction's part about volumes: of a claim a node may
// say how large it has become, and of a directory of its own that it is gone.
package nodevolumes

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/localvolume"
	"github.com/wasmplane/wasmplane/core/object"
)

// Claim says why a node may not write a claim; nil = it may.
func Claim(node string, r *admission.Request) error {
	if r.Subresource != "status" {
		return errors.New("may only update PVC status")
	}
	old, now, err := both[*corev1.PersistentVolumeClaim](r)
	if err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(withoutSize(old), withoutSize(now)) {
		return fmt.Errorf("node %q is not allowed to update fields other than status.quantity and status.conditions", node)
	}
	return nil
}

// withoutSize leaves out what a node may change, and what changes by itself.
func withoutSize(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	c.ResourceVersion, c.ManagedFields = "", nil
	c.Status.Capacity, c.Status.Conditions = nil, nil
	c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil
	return c
}

// Volume says why a node may not write a volume; nil = it may.
func Volume(node string, r *admission.Request) error {
	if r.Subresource != "" {
		return fmt.Errorf("unexpected subresource %q of a PersistentVolume", r.Subresource)
	}
	old, now, err := both[*corev1.PersistentVolume](r)
	if err != nil {
		return err
	}
	return localvolume.MayUpdate(node, old, now)
}

// both are the object as it is and as it would be.
func both[T runtime.Object](r *admission.Request) (old, now T, err error) {
	if r.Operation != admission.Update {
		return old, now, fmt.Errorf("unexpected operation %q", r.Operation)
	}
	if old, err = typed[T](r.OldObject); err == nil {
		now, err = typed[T](r.Object)
	}
	return old, now, err
}

func typed[T runtime.Object](o *object.Object) (T, error) {
	var none T
	if o == nil {
		return none, apierrors.NewBadRequest(fmt.Sprintf("expected an object of type %T, found none", none))
	}
	v, err := o.Versioned()
	if err != nil {
		return none, apierrors.NewBadRequest(err.Error())
	}
	t, ok := v.(T)
	if !ok {
		return none, apierrors.NewBadRequest(fmt.Sprintf("expected an object of type %T, found %T", none, v))
	}
	return t, nil
}
