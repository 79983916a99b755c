// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Volumes refuses nodes from which a volume of the pod cannot be reached, and
// pods whose claims are not bound yet.
type Volumes struct {
	Claims  corelisters.PersistentVolumeClaimLister
	Volumes corelisters.PersistentVolumeLister
	Classes storagelisters.StorageClassLister
}

// Name implements framework.Plugin.
func (Volumes) Name() string { return "VolumeBinding" }

// Hints implements framework.Hints.
func (Volumes) Hints() framework.ClusterEvent {
	return framework.VolumesChanged | framework.NodeAdded | framework.NodeLabelsChanged
}

type volumesKey struct{}

// PreFilter implements framework.PreFilter: it finds the pod's volumes.
func (v Volumes) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo, _ *framework.Snapshot) (map[string]bool, *framework.Status) {
	var bound []*corev1.PersistentVolume
	for i := range p.Pod.Spec.Volumes {
		name := claimName(p.Pod, &p.Pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		pv, st := v.find(p.Pod.Namespace, name)
		if !st.IsSuccess() {
			return nil, st
		}
		bound = append(bound, pv)
	}
	if len(bound) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(volumesKey{}, bound)
	return nil, nil
}

func claimName(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}

func (v Volumes) find(namespace, name string) (*corev1.PersistentVolume, *framework.Status) {
	claim, err := v.Claims.PersistentVolumeClaims(namespace).Get(name)
	switch {
	case err != nil:
		return nil, framework.NewStatus(framework.Unresolvable, fmt.Sprintf("persistentvolumeclaim %q not found", name))
	case claim.DeletionTimestamp != nil:
		return nil, framework.NewStatus(framework.Unresolvable, fmt.Sprintf("persistentvolumeclaim %q is being deleted", name))
	case claim.Spec.VolumeName == "":
		if v.waits(claim) {
			return nil, framework.NewStatus(framework.Unresolvable, "pod has claims that wait for their first consumer and are not bound yet")
		}
		return nil, framework.NewStatus(framework.Unresolvable, "pod has unbound immediate PersistentVolumeClaims")
	}
	pv, err := v.Volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return nil, framework.NewStatus(framework.Unresolvable, fmt.Sprintf("persistentvolume %q bound to claim %q not found", claim.Spec.VolumeName, name))
	}
	return pv, nil
}

func (v Volumes) waits(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Spec.StorageClassName == nil {
		return false
	}
	class, err := v.Classes.Get(*claim.Spec.StorageClassName)
	return err == nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Filter implements framework.Filter.
func (Volumes) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	bound, _ := s.Get(volumesKey{}).([]*corev1.PersistentVolume)
	for _, pv := range bound {
		if err := volume.CheckNodeAffinity(pv, n.Node.Labels); err != nil {
			return framework.NewStatus(framework.Unresolvable, "node(s) didn't match PersistentVolume's node affinity")
		}
	}
	return nil
}
