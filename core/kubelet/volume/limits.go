// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
)

// Exceeded are the pods whose emptyDir volumes on disk hold more than their
// limits, with what to say of it.
func (m *Manager) Exceeded(ctx context.Context) map[types.UID]string {
	m.mu.Lock()
	var pods []*corev1.Pod
	for _, pv := range m.pods {
		if !pv.gone {
			pods = append(pods, pv.pod)
		}
	}
	m.mu.Unlock()
	out := map[types.UID]string{}
	for _, p := range pods {
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 ||
				v.EmptyDir.Medium != corev1.StorageMediumDefault {
				continue
			}
			limit := v.EmptyDir.SizeLimit
			if diskusage.Of(ctx, m.request(p, v, &emptyDir{}).Dir, limit.Value()) > limit.Value() {
				out[p.UID] = fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
			}
		}
	}
	return out
}

// OnDisk is what a pod's emptyDir volumes on disk hold, in bytes; counting stops once it is more than enough.
func (m *Manager) OnDisk(ctx context.Context, p *corev1.Pod, enough int64) (total int64) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault && total <= enough {
			total += diskusage.Of(ctx, m.request(p, v, &emptyDir{}).Dir, enough-total)
		}
	}
	return total
}
