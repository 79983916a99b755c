// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/storage/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/defaultclass"
)

const (
	storageClassAnnotation    = "volume.beta.kubernetes.io/storage-class"
	volumeProtection          = "kubernetes.io/pv-protection"
	claimProtection           = "kubernetes.io/pvc-protection"
	attributesClassProtection = "kubernetes.io/vac-protection"
)

// defaultStorageClass names the default class in claims that name none.
type defaultStorageClass struct {
	lister listers.StorageClassLister
	warm   reading.Warm
}

func newDefaultStorageClass(d Deps) *defaultStorageClass {
	classes := d.Informers.Storage().V1().StorageClasses()
	return &defaultStorageClass{classes.Lister(), reading.WarmOf(d.Warm, classes.Informer())}
}

func (*defaultStorageClass) Name() string { return "DefaultStorageClass" }

func (*defaultStorageClass) Handles(r *admission.Request) bool {
	return reading.On("", "persistentvolumeclaims", "", admission.Create).Handles(r)
}

func (p *defaultStorageClass) Mutate(ctx context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.PersistentVolumeClaim](r.Object)
	if err != nil {
		return err
	}
	if _, ok := given.Annotations[storageClassAnnotation]; ok || given.Spec.StorageClassName != nil {
		return nil
	}
	if err := p.warm.Wait(ctx, r); err != nil {
		return err
	}
	all, err := p.lister.List(labels.Everything())
	if err != nil {
		return admission.Forbidden(r, err)
	}
	class := defaultclass.Storage(all)
	if class == nil {
		return nil
	}
	claim, name := reading.Copied(given), class.Name
	claim.Spec.StorageClassName = &name
	r.Object.SetVersioned(claim)
	return nil
}

// storageObjectInUseProtection puts a finalizer on volumes and claims, which
// controllers take off once nobody uses them.
type storageObjectInUseProtection struct{}

func (storageObjectInUseProtection) Name() string { return "StorageObjectInUseProtection" }

func (storageObjectInUseProtection) Handles(r *admission.Request) bool {
	return r.Operation == admission.Create && r.Subresource == "" && protection(r) != ""
}

func protection(r *admission.Request) string {
	switch r.Resource.GroupResource().String() {
	case "persistentvolumes":
		return volumeProtection
	case "persistentvolumeclaims":
		return claimProtection
	case "volumeattributesclasses.storage.k8s.io":
		return attributesClassProtection
	}
	return ""
}

func (storageObjectInUseProtection) Mutate(_ context.Context, r *admission.Request) error {
	given, err := r.Object.Versioned()
	if err != nil {
		return err
	}
	changed := given.DeepCopyObject()
	m, err := meta.Accessor(changed)
	if err != nil {
		return err
	}
	if slices.Contains(m.GetFinalizers(), protection(r)) {
		return nil
	}
	m.SetFinalizers(append(m.GetFinalizers(), protection(r)))
	r.Object.SetVersioned(changed)
	return nil
}

// persistentVolumeClaimResize lets only those claims grow whose class can.
type persistentVolumeClaimResize struct {
	lister listers.StorageClassLister
	warm   reading.Warm
}

func newPersistentVolumeClaimResize(d Deps) *persistentVolumeClaimResize {
	classes := d.Informers.Storage().V1().StorageClasses()
	return &persistentVolumeClaimResize{classes.Lister(), reading.WarmOf(d.Warm, classes.Informer())}
}

func (*persistentVolumeClaimResize) Name() string { return "PersistentVolumeClaimResize" }

func (*persistentVolumeClaimResize) Handles(r *admission.Request) bool {
	return reading.On("", "persistentvolumeclaims", "", admission.Update).Handles(r)
}

func (p *persistentVolumeClaimResize) Validate(ctx context.Context, r *admission.Request) error {
	claim, err := reading.Typed[*corev1.PersistentVolumeClaim](r.Object)
	if err != nil {
		return err
	}
	old, err := reading.Typed[*corev1.PersistentVolumeClaim](r.OldObject)
	if err != nil {
		return err
	}
	was, is := old.Spec.Resources.Requests[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if is.Cmp(was) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return admission.Forbidden(r, errors.New("Only bound persistent volume claims can be expanded")) //nolint:staticcheck // upstream's words
	}
	if err := p.warm.Wait(ctx, r); err != nil {
		return err
	}
	if !p.expandable(claimClass(claim), claimClass(old)) {
		return admission.Forbidden(r, errors.New("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
	}
	return nil
}

func claimClass(c *corev1.PersistentVolumeClaim) string {
	if class, ok := c.Annotations[storageClassAnnotation]; ok {
		return class
	}
	if c.Spec.StorageClassName != nil {
		return *c.Spec.StorageClassName
	}
	return ""
}

func (p *persistentVolumeClaimResize) expandable(class, old string) bool {
	if class == "" || class != old {
		return false
	}
	c, err := p.lister.Get(class)
	return err == nil && c.AllowVolumeExpansion != nil && *c.AllowVolumeExpansion
}
