// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

const reasonLimit = "node(s) exceed max volume count"

// Limits is upstream's NodeVolumeLimits: a node has no more volumes of a CSI driver than
// its CSINode allows. A volume that several of a node's pods use counts once.
type Limits struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	nodes   storagelisters.CSINodeLister
	drivers storagelisters.CSIDriverLister
}

// NewLimits makes the plugin.
func NewLimits(inf informers.SharedInformerFactory) *Limits {
	core, storage := inf.Core().V1(), inf.Storage().V1()
	return &Limits{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: storage.StorageClasses().Lister(), nodes: storage.CSINodes().Lister(), drivers: storage.CSIDrivers().Lister(),
	}
}

// Name implements framework.Plugin.
func (*Limits) Name() string { return "NodeVolumeLimits" }

// Hints implements framework.Hints.
func (*Limits) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.PodRemoved | framework.VolumesChanged
}

type limitsKey struct{}

// counted are volumes of CSI drivers: each, and whose it is.
type counted map[string]string

// PreFilter implements framework.PreFilter: it finds the pod's volumes.
func (l *Limits) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	wants := counted{}
	l.count(p.Pod, wants)
	if len(wants) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(limitsKey{}, wants)
	return nil, nil
}

// count adds the volumes of a pod. A claim that has no volume yet counts for itself: it
// will have one. What cannot be found is for VolumeBinding to speak about.
func (l *Limits) count(p *corev1.Pod, into counted) {
	for i := range p.Spec.Volumes {
		name, _ := claimOf(p, &p.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim, err := l.claims.PersistentVolumeClaims(p.Namespace).Get(name)
		if err != nil {
			continue
		}
		if claim.Spec.VolumeName == "" {
			if class, err := l.classes.Get(volume.GetPersistentVolumeClaimClass(claim)); err == nil {
				into[fmt.Sprintf("claim/%s/%s", p.Namespace, name)] = class.Provisioner
			}
			continue
		}
		if pv, err := l.volumes.Get(claim.Spec.VolumeName); err == nil && pv.Spec.CSI != nil {
			into["volume/"+pv.Spec.CSI.Driver+"/"+pv.Spec.CSI.VolumeHandle] = pv.Spec.CSI.Driver
		}
	}
}

// Filter implements framework.Filter.
func (l *Limits) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	wants, ok := s.Get(limitsKey{}).(counted)
	if !ok {
		return nil
	}
	node, err := l.nodes.Get(n.Node.Name)
	if err != nil {
		node = &storagev1.CSINode{} // without limits
	}
	most, there := map[string]int{}, map[string]bool{}
	for _, d := range node.Spec.Drivers {
		there[d.Name] = true
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			most[d.Name] = int(*d.Allocatable.Count)
		}
	}
	for _, driver := range wants {
		if !there[driver] && l.needed(driver) {
			return framework.NewStatus(framework.Unresolvable, driver+" CSI driver is not installed on the node")
		}
	}
	if len(most) == 0 {
		return nil
	}
	has := counted{}
	for _, other := range n.Pods {
		l.count(other.Pod, has)
	}
	sum := map[string]int{}
	for _, driver := range has {
		sum[driver]++
	}
	for v, driver := range wants {
		if _, shared := has[v]; shared {
			continue
		}
		sum[driver]++
		if limit, bounded := most[driver]; bounded && sum[driver] > limit {
			return framework.NewStatus(framework.Unschedulable, reasonLimit)
		}
	}
	return nil
}

// needed says whether a driver wants its pods only where it runs.
func (l *Limits) needed(name string) bool {
	d, err := l.drivers.Get(name)
	return err == nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing
}
