// SPDX-License-Identifier: Apache-2.0

package volume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Local is a volume of a pod that lives as long as the pod, on the node's disk.
type Local struct {
	Name, Dir string
	// Limit of what it may hold; nil: none.
	Limit *resource.Quantity
}

// OnDisk are a pod's emptyDir volumes on the node's disk.
func (m *Manager) OnDisk(p *corev1.Pod) (out []Local) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
			continue
		}
		l := Local{Name: v.Name, Dir: m.request(p, v, &emptyDir{}).Dir}
		if v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Sign() > 0 {
			l.Limit = v.EmptyDir.SizeLimit
		}
		out = append(out, l)
	}
	return out
}
