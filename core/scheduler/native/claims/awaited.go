// SPDX-License-Identifier: Apache-2.0

package claims

import (
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Awaited implements framework.Awaiting.
func (b *Binding) Awaited(p *framework.PodInfo) []string { return awaited(b.claims, p) }

// Awaited implements framework.Awaiting.
func (r *Restrictions) Awaited(p *framework.PodInfo) []string { return awaited(r.claims, p) }

// Awaited implements framework.Awaiting.
func (l *Limits) Awaited(p *framework.PodInfo) []string { return awaited(l.claims, p) }

// awaited are a pod's claims, their classes and their volumes: what happens to others does not help it.
func awaited(claims corelisters.PersistentVolumeClaimLister, p *framework.PodInfo) []string {
	var keys []string
	for i := range p.Pod.Spec.Volumes {
		name, _ := claimOf(p.Pod, &p.Pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		keys = append(keys, framework.ClaimKey(p.Pod.Namespace, name))
		claim, err := claims.PersistentVolumeClaims(p.Pod.Namespace).Get(name)
		if err != nil {
			continue // it does not exist: it will have to come first
		}
		keys = append(keys, framework.ClassKey(volume.GetPersistentVolumeClaimClass(claim)))
		if v := claim.Spec.VolumeName; v != "" {
			keys = append(keys, framework.VolumeKey(v))
		}
	}
	return keys
}
