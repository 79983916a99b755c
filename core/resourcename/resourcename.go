// SPDX-License-Identifier: Apache-2.0

// Package resourcename tells what kind of resource a name is of, by upstream's rules
// (k8s.io/kubernetes/pkg/apis/core/v1/helper).
package resourcename

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Native says whether a resource is Kubernetes' own: its name has no domain, or one of kubernetes.io.
func Native(name string) bool {
	return !strings.Contains(name, "/") || strings.Contains(name, corev1.ResourceDefaultNamespacePrefix)
}

// Extended says whether a resource is one of devices and the like, which others name (example.com/gpu). Quotas can be
// of it, for which its name gets a prefix.
func Extended(name string) bool {
	return !Native(name) && !strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) == 0
}
