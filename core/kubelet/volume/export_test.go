// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// TokensForTest answers tokens as volumes get them.
func TokensForTest(c kubernetes.Interface) func(context.Context, *corev1.Pod, *corev1.ServiceAccountTokenProjection) (string, error) {
	return NewTokens(c).get
}
