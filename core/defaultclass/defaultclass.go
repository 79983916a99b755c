// SPDX-License-Identifier: Apache-2.0

// Package defaultclass chooses the class of objects that name none: storage classes and
// ingress classes say by an annotation that they are the default.
package defaultclass

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StorageAnnotation marks a default storage class; an old form of it is read too.
const (
	StorageAnnotation     = "storageclass.kubernetes.io/is-default-class"
	storageAnnotationBeta = "storageclass.beta.kubernetes.io/is-default-class"
)

// Storage is the default of storage classes; nil where there is none.
func Storage(all []*storagev1.StorageClass) *storagev1.StorageClass {
	class, _ := newest(all, StorageAnnotation, storageAnnotationBeta)
	return class
}

// Ingress is the default of ingress classes; nil where there is none.
func Ingress(all []*networkingv1.IngressClass) *networkingv1.IngressClass {
	class, _ := newest(all, networkingv1.AnnotationIsDefaultIngressClass)
	return class
}

// newest is the one to take where several say that they are the default, so that a new
// one can be put in place before the old one is taken away. It is none of the caller's
// to change.
func newest[T metav1.Object](all []T, annotations ...string) (found T, ok bool) {
	for _, c := range all {
		isDefault := slices.ContainsFunc(annotations, func(a string) bool { return c.GetAnnotations()[a] == "true" })
		if isDefault && (!ok || newer(c, found)) {
			found, ok = c, true
		}
	}
	return found, ok
}

// newer: younger, or of the same second and first by name.
func newer(a, b metav1.Object) bool {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if at.Equal(&bt) {
		return a.GetName() < b.GetName()
	}
	return bt.Before(&at)
}
