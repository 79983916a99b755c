// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

const reasonOnePod = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"

// Restrictions is upstream's VolumeRestrictions, as far as it is not about the disks
// of single clouds: a ReadWriteOncePod claim is one pod's. A pod of higher priority
// may take its place.
type Restrictions struct {
	claims corelisters.PersistentVolumeClaimLister
}

// NewRestrictions makes the plugin.
func NewRestrictions(inf informers.SharedInformerFactory) *Restrictions {
	return &Restrictions{inf.Core().V1().PersistentVolumeClaims().Lister()}
}

// Name implements framework.Plugin.
func (*Restrictions) Name() string { return "VolumeRestrictions" }

// Hints implements framework.Hints.
func (*Restrictions) Hints() framework.ClusterEvent {
	return framework.PodRemoved | framework.VolumesChanged
}

type restrictionsKey struct{}

// users counts the uses of the pod's ReadWriteOncePod claims, by all pods that have a node.
type users struct {
	namespace string
	claims    []string
	uses      int
}

// Clone implements framework.Cloner.
func (u *users) Clone() any {
	c := *u
	return &c
}

func (u *users) of(p *corev1.Pod) (n int) {
	if p.Namespace != u.namespace {
		return 0
	}
	for i := range p.Spec.Volumes {
		if name, _ := claimOf(p, &p.Spec.Volumes[i]); name != "" && slices.Contains(u.claims, name) {
			n++
		}
	}
	return n
}

// PreFilter implements framework.PreFilter.
func (r *Restrictions) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	snap *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	u := &users{namespace: p.Pod.Namespace}
	for i := range p.Pod.Spec.Volumes {
		name, _ := claimOf(p.Pod, &p.Pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim, err := r.claims.PersistentVolumeClaims(p.Pod.Namespace).Get(name)
		switch {
		case apierrors.IsNotFound(err):
			return nil, unresolvable("persistentvolumeclaim %q not found", name)
		case err != nil:
			return nil, framework.AsStatus(err)
		case slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod):
			u.claims = append(u.claims, name)
		}
	}
	if len(u.claims) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	for _, n := range snap.Nodes {
		for _, other := range n.Pods {
			u.uses += u.of(other.Pod)
		}
	}
	s.Set(restrictionsKey{}, u)
	return nil, nil
}

// AddPod implements framework.PreFilterExtensions.
func (*Restrictions) AddPod(_ context.Context, s *framework.State, _, added *framework.PodInfo, _ *framework.NodeInfo) *framework.Status {
	if u, ok := s.Get(restrictionsKey{}).(*users); ok {
		u.uses += u.of(added.Pod)
	}
	return nil
}

// RemovePod implements framework.PreFilterExtensions.
func (*Restrictions) RemovePod(_ context.Context, s *framework.State, _, removed *framework.PodInfo,
	_ *framework.NodeInfo,
) *framework.Status {
	if u, ok := s.Get(restrictionsKey{}).(*users); ok {
		u.uses -= u.of(removed.Pod)
	}
	return nil
}

// Filter implements framework.Filter.
func (*Restrictions) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, _ *framework.NodeInfo) *framework.Status {
	if u, ok := s.Get(restrictionsKey{}).(*users); ok && u.uses > 0 {
		return framework.NewStatus(framework.Unschedulable, reasonOnePod)
	}
	return nil
}
