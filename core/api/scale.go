// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	autoscalingvalidation "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// scalable is what the scale subresource reads and writes of a parent object.
type scalable struct {
	meta     *metav1.ObjectMeta
	want     *int32
	have     int32
	selector func() (string, error)
}

func scalableOf(internal runtime.Object) (scalable, error) {
	bySelector := func(s *metav1.LabelSelector) func() (string, error) {
		return func() (string, error) {
			sel, err := metav1.LabelSelectorAsSelector(s)
			if err != nil {
				return "", apierrors.NewBadRequest(err.Error())
			}
			return sel.String(), nil
		}
	}
	switch o := internal.(type) {
	case *apps.Deployment:
		return scalable{&o.ObjectMeta, &o.Spec.Replicas, o.Status.Replicas, bySelector(o.Spec.Selector)}, nil
	case *apps.ReplicaSet:
		return scalable{&o.ObjectMeta, &o.Spec.Replicas, o.Status.Replicas, bySelector(o.Spec.Selector)}, nil
	case *apps.StatefulSet:
		return scalable{&o.ObjectMeta, &o.Spec.Replicas, o.Status.Replicas, bySelector(o.Spec.Selector)}, nil
	case *core.ReplicationController:
		if o.Spec.Replicas == nil {
			o.Spec.Replicas = new(int32)
		}
		return scalable{&o.ObjectMeta, o.Spec.Replicas, o.Status.Replicas, func() (string, error) {
			return labels.Set(o.Spec.Selector).AsSelector().String(), nil
		}}, nil
	}
	return scalable{}, fmt.Errorf("a %T has no scale", internal)
}

// ScaleFrom is the Scale of an internal object, whose version matters for custom
// resources only. Its managed fields are those of the parent that concern the
// replicas. forUpdate says that ApplyScale is to come.
func (c *Contract) ScaleFrom(r *Resource, version string, internal runtime.Object, forUpdate bool) (*autoscalingv1.Scale, error) {
	if r.Custom != nil {
		scale, u, err := r.customScale(version, internal)
		if err != nil {
			return nil, err
		}
		return scale.From(u, forUpdate)
	}
	s, err := scalableOf(internal)
	if err != nil {
		return nil, err
	}
	selector, err := s.selector()
	if err != nil {
		return nil, err
	}
	entries, err := c.scaleFields(r, s.meta.ManagedFields).ToSubresource()
	if err != nil {
		return nil, fmt.Errorf("managed fields of the scale of %s: %w", r.GroupResource, err)
	}
	return &autoscalingv1.Scale{
		TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: metav1.ObjectMeta{
			Name: s.meta.Name, Namespace: s.meta.Namespace, UID: s.meta.UID, ResourceVersion: s.meta.ResourceVersion,
			CreationTimestamp: s.meta.CreationTimestamp, ManagedFields: entries,
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: *s.want},
		Status: autoscalingv1.ScaleStatus{Replicas: s.have, Selector: selector},
	}, nil
}

// ApplyScale answers a copy of the internal parent, changed as scale says. The
// scale's resourceVersion and UID become the parent's, so that preconditions
// hold; its managed fields are brought back into the parent's.
func (c *Contract) ApplyScale(r *Resource, version string, internal runtime.Object, scale *autoscalingv1.Scale) (runtime.Object, error) {
	if r.Custom != nil {
		own, u, err := r.customScale(version, internal)
		if err != nil {
			return nil, err
		}
		if scale.UID != "" && scale.UID != u.GetUID() {
			return nil, apierrors.NewConflict(r.GroupResource, u.GetName(),
				fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, u.GetUID())) //nolint:staticcheck // upstream's words
		}
		return own.Apply(u, scale)
	}
	out := internal.DeepCopyObject()
	s, err := scalableOf(out)
	if err != nil {
		return nil, err
	}
	checked := &autoscaling.Scale{}
	if err := c.schemes.Builtin.Convert(scale, checked, nil); err != nil {
		return nil, fmt.Errorf("convert Scale: %w", err)
	}
	if errs := autoscalingvalidation.ValidateScale(checked); len(errs) > 0 {
		return nil, apierrors.NewInvalid(autoscaling.Kind("Scale"), s.meta.Name, errs)
	}
	if scale.UID != "" && scale.UID != s.meta.UID {
		return nil, apierrors.NewConflict(r.GroupResource, s.meta.Name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, s.meta.UID)) //nolint:staticcheck // upstream's words
	}
	entries, err := c.scaleFields(r, s.meta.ManagedFields).ToParent(scale.ManagedFields)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", r.GroupResource, err)
	}
	s.meta.ManagedFields = entries
	*s.want = scale.Spec.Replicas
	if scale.ResourceVersion != "" {
		s.meta.ResourceVersion = scale.ResourceVersion
	}
	return out, nil
}

func (c *Contract) scaleFields(r *Resource, entries []metav1.ManagedFieldsEntry) *managedfields.ScaleHandler {
	paths := managedfields.ResourcePathMappings{}
	for _, v := range r.Versions {
		paths[r.GVK(v).GroupVersion().String()] = fieldpath.MakePathOrDie("spec", "replicas")
	}
	return managedfields.NewScaleHandler(entries, r.GVK(r.Versions[0]).GroupVersion(), paths)
}

func (r *Resource) customScale(version string, o runtime.Object) (CustomScale, *unstructured.Unstructured, error) {
	v, err := r.Custom.Version(version)
	if err != nil {
		return nil, nil, err
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok || v.Scale == nil {
		return nil, nil, fmt.Errorf("a %T of %s in version %s has no scale", o, r.GroupResource, version)
	}
	return v.Scale, u, nil
}
