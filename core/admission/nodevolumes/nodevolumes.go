// SPDX-License-Identifier: Apache-2.0

// Package nodevolumes is NodeRestriction's part about volumes: of a claim a node may
// say how large it has become, and of a directory of its own that it is gone.
package nodevolumes

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

// Claim says why a node may not write a claim; nil = it may.
func Claim(node string, r *admission.Request) error {
	if r.Subresource != "status" {
		return errors.New("may only update PVC status")
	}
	old, now, err := update[*corev1.PersistentVolumeClaim](r)
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
	old, now, err := update[*corev1.PersistentVolume](r)
	if err != nil {
		return err
	}
	return localvolume.MayUpdate(node, old, now)
}

// update is the object as it is and as it would be.
func update[T runtime.Object](r *admission.Request) (old, now T, err error) {
	if r.Operation != admission.Update {
		return old, now, fmt.Errorf("unexpected operation %q", r.Operation)
	}
	return reading.Both[T](r)
}
