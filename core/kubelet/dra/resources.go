// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// ClaimsOf a container, as programs on the node are told.
func (n *Node) ClaimsOf(p *corev1.Pod, container string) (out []*podresources.DynamicResource) {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name != container {
			continue
		}
		requests, err := requestsOf(p, &c)
		if err != nil {
			return nil // it has not been prepared either
		}
		n.mu.Lock()
		for _, claim := range slices.Sorted(maps.Keys(requests)) {
			if known := n.claims[name{p.Namespace, claim}]; known != nil && slices.Contains(known.Pods, p.UID) {
				out = append(out, known.told(requests[claim]))
			}
		}
		n.mu.Unlock()
	}
	return out
}

func (c *prepared) told(requests []string) *podresources.DynamicResource {
	out := &podresources.DynamicResource{ClaimName: c.Name, ClaimNamespace: c.Namespace}
	for _, driver := range slices.Sorted(maps.Keys(c.Drivers)) {
		for _, d := range c.Drivers[driver] {
			if !d.meant(requests) {
				continue
			}
			one := &podresources.ClaimResource{DriverName: driver, PoolName: d.Pool, DeviceName: d.Device}
			for _, id := range d.CDI {
				one.CdiDevices = append(one.CdiDevices, &podresources.CDIDevice{Name: id})
			}
			out.ClaimResources = append(out.ClaimResources, one)
		}
	}
	return out
}
