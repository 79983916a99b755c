// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// StorageLimit of a pod is the most that its containers and volumes may take of the node's disk, the sum of its
// containers' limits; false if none of them has one.
func StorageLimit(p *corev1.Pod) (int64, bool) {
	q, ok := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return q.Value(), ok
}

// OverStorage says, in upstream's words, which limit of ephemeral storage a pod is beyond; empty if it is within
// all, or may not go. u is of the disk: what its containers' files and logs take, and its volumes.
func OverStorage(u Usage) string {
	if Critical(u.Pod) {
		return ""
	}
	limits := resourcehelper.PodLimits(u.Pod, resourcehelper.PodResourcesOptions{})
	if limit, ok := limits[corev1.ResourceEphemeralStorage]; ok && u.total() > limit.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for i := range u.Pod.Spec.InitContainers {
		if c := &u.Pod.Spec.InitContainers[i]; pod.IsSidecar(c) {
			if msg := containerOver(c, u.Containers[c.Name]); msg != "" {
				return msg
			}
		}
	}
	for i := range u.Pod.Spec.Containers {
		c := &u.Pod.Spec.Containers[i]
		if msg := containerOver(c, u.Containers[c.Name]); msg != "" {
			return msg
		}
	}
	return ""
}

func containerOver(c *corev1.Container, used int64) string {
	limit := c.Resources.Limits.StorageEphemeral()
	if limit.IsZero() || used <= limit.Value() {
		return ""
	}
	return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
}
