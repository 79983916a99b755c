// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

const reasonZone = "node(s) had no available volume zone"

// ZoneName is the name of the plugin Zone.
const ZoneName = "VolumeZone"

// Zone is upstream's VolumeZone: a volume whose labels name zones or regions is reached from
// nodes of these only. Older volumes say so, of which no nodeAffinity does. A node without any such label is
// taken to be in every zone.
type Zone struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

// NewZone makes the plugin.
func NewZone(inf informers.SharedInformerFactory) *Zone {
	core := inf.Core().V1()
	return &Zone{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: inf.Storage().V1().StorageClasses().Lister(),
	}
}

// Name implements framework.Plugin.
func (*Zone) Name() string { return ZoneName }

// Hints implements framework.Hints.
func (*Zone) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.VolumesChanged
}

// Helped implements framework.Attentive. A class counts once it is there (its binding mode never changes), a
// volume when it comes and when its zones change.
func (*Zone) Helped(p *framework.PodInfo, old, now runtime.Object) bool {
	switch now := now.(type) {
	case *corev1.PersistentVolumeClaim:
		return p.Pod.Namespace == now.Namespace && slices.Contains(named(p.Pod), now.Name)
	case *corev1.PersistentVolume:
		was, ok := old.(*corev1.PersistentVolume)
		return !ok || !slices.EqualFunc(Zones(was), Zones(now), ZoneLabel.equal)
	case *storagev1.StorageClass:
		return old == nil && now.VolumeBindingMode != nil && *now.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	}
	return false
}

// named are the claims that a pod names. As upstream, those of ephemeral volumes are left to VolumeBinding.
func named(p *corev1.Pod) (names []string) {
	for i := range p.Spec.Volumes {
		if c := p.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			names = append(names, c.ClaimName)
		}
	}
	return names
}

// zoneLabels are the labels that are looked at, each with its successor.
var zoneLabels = []struct{ key, newer string }{
	{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
	{corev1.LabelTopologyZone, corev1.LabelTopologyZone},
	{corev1.LabelTopologyRegion, corev1.LabelTopologyRegion},
}

// ZoneLabel is a label of a volume: a node needs one of the values, under Key or, if it has no such label, Newer.
type ZoneLabel struct {
	Key, Newer string
	Values     []string
}

func (z ZoneLabel) equal(o ZoneLabel) bool { return z.Key == o.Key && slices.Equal(z.Values, o.Values) }

// Zones are the labels of a volume that say where it is reached. One with an empty value in its list counts for nothing.
func Zones(pv *corev1.PersistentVolume) (out []ZoneLabel) {
	for _, label := range zoneLabels {
		text, ok := pv.Labels[label.key]
		if !ok {
			continue
		}
		values := strings.Split(text, "__")
		for i := range values {
			values[i] = strings.TrimSpace(values[i])
		}
		if !slices.Contains(values, "") {
			slices.Sort(values)
			out = append(out, ZoneLabel{label.key, label.newer, slices.Compact(values)})
		}
	}
	return out
}

type zoneKey struct{}

// PreFilter implements framework.PreFilter: it finds the zones of the pod's bound volumes.
func (z *Zone) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	var all []ZoneLabel
	for _, name := range named(p.Pod) {
		pv, st := z.volume(p.Pod.Namespace, name)
		if st != nil {
			return nil, st
		}
		if pv != nil {
			all = append(all, Zones(pv)...)
		}
	}
	if len(all) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(zoneKey{}, all)
	return nil, nil
}

// volume of a claim; nil for one that is bound with its first consumer.
func (z *Zone) volume(namespace, name string) (*corev1.PersistentVolume, *framework.Status) {
	claim, err := z.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, missing(err)
	}
	if claim.Spec.VolumeName != "" {
		pv, err := z.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			return nil, missing(err)
		}
		return pv, nil
	}
	of := volume.GetPersistentVolumeClaimClass(claim)
	if of == "" {
		return nil, unresolvable("PersistentVolumeClaim had no pv name and storageClass name")
	}
	class, err := z.classes.Get(of)
	switch {
	case err != nil:
		return nil, missing(err)
	case class.VolumeBindingMode == nil:
		return nil, unresolvable("VolumeBindingMode not set for StorageClass %q", of)
	case *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return nil, unresolvable("PersistentVolume had no name")
	}
	return nil, nil
}

// missing: what is not there may come, anything else is an error.
func missing(err error) *framework.Status {
	if apierrors.IsNotFound(err) {
		return unresolvable("%s", err)
	}
	return framework.AsStatus(fmt.Errorf("look up the zones of volumes: %w", err))
}

// Filter implements framework.Filter.
func (*Zone) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	want, ok := s.Get(zoneKey{}).([]ZoneLabel)
	if !ok || !slices.ContainsFunc(zoneLabels, func(l struct{ key, newer string }) bool {
		_, has := n.Node.Labels[l.key]
		return has
	}) {
		return nil
	}
	for _, label := range want {
		value, has := n.Node.Labels[label.Key]
		if !has {
			value, has = n.Node.Labels[label.Newer]
		}
		if !has || !slices.Contains(label.Values, value) {
			return framework.NewStatus(framework.Unresolvable, reasonZone)
		}
	}
	return nil
}

// Sign implements framework.Signed.
func (*Zone) Sign(p *framework.PodInfo, _ *framework.Signature) bool { return !hasClaims(p) }

// Awaited implements framework.Awaiting.
func (z *Zone) Awaited(p *framework.PodInfo) []string { return awaited(z.claims, p) }
