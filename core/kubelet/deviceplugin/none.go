// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// None is in the place of a Manager on a node without device plugins.
type None struct{}

// Resources are none.
func (None) Resources() (capacity, allocatable corev1.ResourceList) { return nil, nil }

// Has none.
func (None) Has(types.UID) bool { return false }

// Allocate gives nothing.
func (None) Allocate(context.Context, *corev1.Pod) error { return nil }

// Equip adds nothing.
func (None) Equip(context.Context, types.UID, string, *cri.ContainerConfig) error { return nil }

// Release takes nothing back.
func (None) Release(types.UID) {}

// Retain takes nothing back.
func (None) Retain(func(types.UID) bool) {}
