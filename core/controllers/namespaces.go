// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// ActiveNamespace is a namespace in which objects can be made; nil where it is gone, or
// is being deleted.
func ActiveNamespace(namespaces corelisters.NamespaceLister, name string) (*corev1.Namespace, error) {
	ns, err := namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if ns.Status.Phase == corev1.NamespaceTerminating || ns.DeletionTimestamp != nil {
		return nil, nil
	}
	return ns, nil
}
