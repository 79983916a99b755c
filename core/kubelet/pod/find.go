// SPDX-License-Identifier: Apache-2.0

package pod

import corev1 "k8s.io/api/core/v1"

// Find is the container of a pod with a name, and its kind; nil where there is none.
func Find(p *corev1.Pod, name string) (*corev1.Container, Kind) {
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.Name == name {
			if IsSidecar(c) {
				return c, Sidecar
			}
			return c, Init
		}
	}
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; c.Name == name {
			return c, Regular
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == name {
			c := corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			return &c, Ephemeral
		}
	}
	return nil, 0
}
