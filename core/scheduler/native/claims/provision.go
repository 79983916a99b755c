// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"
)

var everything = labels.Everything()

func size(c *corev1.PersistentVolumeClaim) *resource.Quantity {
	q := c.Spec.Resources.Requests[corev1.ResourceStorage]
	return &q
}

// provisionable says why no volume can be made for a claim on a node; "" = it can, in storage with this room.
func (b *Binding) provisionable(u unbound, node *corev1.Node) (room *resource.Quantity, reason string, err error) {
	if u.class.Provisioner == "" || u.class.Provisioner == volume.NotSupportedProvisioner {
		return nil, reasonNoVolumes, nil
	}
	if !topologyAllows(u.class.AllowedTopologies, node.Labels) {
		return nil, reasonNoVolumes, nil
	}
	room, ok, err := b.hasRoom(u, node)
	if err != nil || ok {
		return room, "", err
	}
	return nil, reasonNoSpace, nil
}

// topologyAllows: one of the terms matches; a term without expressions matches nothing.
func topologyAllows(terms []corev1.TopologySelectorTerm, have map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		if len(t.MatchLabelExpressions) == 0 {
			return false
		}
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, ok := have[e.Key]
			return !ok || !slices.Contains(e.Values, value)
		})
	})
}

// hasRoom asks what drivers publish of their room (KEP-1472), where a driver does: the largest that takes the claim.
func (b *Binding) hasRoom(u unbound, node *corev1.Node) (room *resource.Quantity, ok bool, err error) {
	driver, err := b.drivers.Get(u.class.Provisioner)
	if apierrors.IsNotFound(err) || err == nil && (driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	published, err := b.room.List(everything)
	if err != nil {
		return nil, false, err
	}
	want := size(u.claim)
	for _, c := range published {
		if c.StorageClassName != u.class.Name || !fits(c, want) || !reaches(c, node) {
			continue
		}
		if ok = true; c.Capacity != nil && (room == nil || c.Capacity.Cmp(*room) > 0) {
			room = c.Capacity
		}
	}
	return room, ok, nil
}

func fits(c *storagev1.CSIStorageCapacity, want *resource.Quantity) bool {
	limit := c.Capacity
	if c.MaximumVolumeSize != nil {
		limit = c.MaximumVolumeSize
	}
	return limit != nil && limit.Cmp(*want) >= 0
}

func reaches(c *storagev1.CSIStorageCapacity, node *corev1.Node) bool {
	if c.NodeTopology == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	return err == nil && selector.Matches(labels.Set(node.Labels))
}
