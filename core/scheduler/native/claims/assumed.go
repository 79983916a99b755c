// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// Assumed are claims and volumes as they will be once what the scheduler decided is
// written. An assumption stands for the object in the cache as long as the cache has
// the version on which it was made: anything newer is the truth. It is safe for
// concurrent use; the zero value is empty. All profiles of a scheduler have the same one, for as
// long as it runs: they choose among the same volumes, and a pod that waits for its volumes
// outlives a change of the profiles.
type Assumed struct {
	mu      sync.Mutex
	volumes map[types.UID]assumption[*corev1.PersistentVolume]
	claims  map[types.UID]assumption[*corev1.PersistentVolumeClaim]
}

type assumption[T any] struct {
	pod types.UID
	of  string // the resourceVersion that it was made on
	as  T
}

// volume is pv as it will be.
func (a *Assumed) volume(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	a.mu.Lock()
	defer a.mu.Unlock()
	if is, ok := a.volumes[pv.UID]; ok && is.of == pv.ResourceVersion {
		return is.as
	}
	return pv
}

// claim is c as it will be.
func (a *Assumed) claim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	a.mu.Lock()
	defer a.mu.Unlock()
	if is, ok := a.claims[c.UID]; ok && is.of == c.ResourceVersion {
		return is.as
	}
	return c
}

// assume replaces the parts of a choice by what they become with it: volumes that
// name their claims, claims that name the node.
func (a *Assumed) assume(pod types.UID, c *choice, node string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.volumes == nil {
		a.volumes = map[types.UID]assumption[*corev1.PersistentVolume]{}
		a.claims = map[types.UID]assumption[*corev1.PersistentVolumeClaim]{}
	}
	for i, m := range c.bind {
		pv, _, err := volume.GetBindVolumeToClaim(m.volume, m.claim)
		if err != nil {
			return fmt.Errorf("bind volume %s to claim %s/%s: %w", m.volume.Name, m.claim.Namespace, m.claim.Name, err)
		}
		a.volumes[pv.UID] = assumption[*corev1.PersistentVolume]{pod, pv.ResourceVersion, pv}
		c.bind[i].volume = pv
	}
	for i, claim := range c.provision {
		next := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnSelectedNode, node)
		a.claims[next.UID] = assumption[*corev1.PersistentVolumeClaim]{pod, next.ResourceVersion, next}
		c.provision[i] = next
	}
	return nil
}

// forget drops what was assumed for a pod.
func (a *Assumed) forget(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.volumes, func(_ types.UID, is assumption[*corev1.PersistentVolume]) bool { return is.pod == pod })
	maps.DeleteFunc(a.claims, func(_ types.UID, is assumption[*corev1.PersistentVolumeClaim]) bool { return is.pod == pod })
}
