// SPDX-License-Identifier: Apache-2.0

// Package claims are the scheduler's plugins for persistent volumes: VolumeBinding
// chooses the volumes of a pod together with its node, and binds them before the
// pod is bound, on nodes whose storage has the most room, or as configured; VolumeRestrictions keeps a ReadWriteOncePod claim to one pod;
// NodeVolumeLimits gives a node no more volumes of a CSI driver than it takes; VolumeZone
// keeps to the zones that volumes are labelled with.
//
// A claim is bound already, or is bound with its first consumer (a volume that exists
// and can be reached from the node, or one that is provisioned there), or is somebody
// else's to bind first. Nothing is written before a node is chosen. What was chosen
// is assumed (see assumed.go) until the API shows it, so that two pods never choose
// one volume.
package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/shape"
)

// Upstream's words, by which tools and people know these reasons.
const (
	reasonNoVolumes = "node(s) didn't find available persistent volumes to bind"
	reasonAffinity  = "node(s) didn't match PersistentVolume's node affinity"
	reasonNoSpace   = "node(s) did not have enough free storage"
	reasonNoVolume  = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
	reasonUnbound   = "pod has unbound immediate PersistentVolumeClaims"
)

// DefaultTimeout is how long a pod that has its node waits for its volumes.
const DefaultTimeout = 10 * time.Minute

// Binding is upstream's VolumeBinding.
type Binding struct {
	client  kubernetes.Interface
	timeout time.Duration
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	nodes   corelisters.NodeLister
	classes storagelisters.StorageClassLister
	drivers storagelisters.CSIDriverLister
	room    storagelisters.CSIStorageCapacityLister
	assumed *Assumed
	shape   shape.Shape
}

// Settings of Binding; the zero value is upstream's default.
type Settings struct {
	// Timeout is how long a pod that has its node waits for its volumes; 0 = DefaultTimeout.
	Timeout time.Duration
	// Assumed is which volumes pods have chosen, shared with other profiles; nil = those of this one.
	Assumed *Assumed
	// Shape is the score of a node at the share of its storage that the pod would use; nil = the emptiest is the best.
	Shape shape.Shape
}

// NewBinding makes the plugin.
func NewBinding(client kubernetes.Interface, inf informers.SharedInformerFactory, with Settings) *Binding {
	if with.Assumed == nil {
		with.Assumed = &Assumed{}
	}
	if with.Shape == nil {
		with.Shape = emptiest
	}
	core, storage := inf.Core().V1(), inf.Storage().V1()
	return &Binding{
		assumed: with.Assumed, client: client, timeout: cmp.Or(with.Timeout, DefaultTimeout), shape: with.Shape,
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(), nodes: core.Nodes().Lister(),
		classes: storage.StorageClasses().Lister(), drivers: storage.CSIDrivers().Lister(), room: storage.CSIStorageCapacities().Lister(),
	}
}

// Name implements framework.Plugin.
func (*Binding) Name() string { return "VolumeBinding" }

// Hints implements framework.Hints.
func (*Binding) Hints() framework.ClusterEvent {
	return framework.VolumesChanged | framework.NodeAdded | framework.NodeLabelsChanged
}

type bindingKey struct{}

// wanted are the volumes of a pod, as PreFilter found them. Nobody changes it.
type wanted struct {
	bound    []*corev1.PersistentVolumeClaim
	consumer []unbound // those that are bound with their first consumer
	missing  bool      // a claim is bound to a volume that is not there
	volumes  []*corev1.PersistentVolume
}

// unbound is a claim with its class, and the volumes of that class.
type unbound struct {
	claim   *corev1.PersistentVolumeClaim
	class   *storagev1.StorageClass
	volumes []*corev1.PersistentVolume
}

// PreFilter implements framework.PreFilter: it sorts the pod's claims.
func (b *Binding) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	var w wanted
	immediate, bound := false, false
	for i := range p.Pod.Spec.Volumes {
		name, ephemeral := claimOf(p.Pod, &p.Pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		bound = true
		claim, st := b.claim(p.Pod, name, ephemeral)
		if st != nil {
			return nil, st
		}
		switch class, waits := b.waits(claim); {
		case fullyBound(claim):
			w.bound = append(w.bound, claim)
		case waits && claim.Spec.VolumeName == "":
			w.consumer = append(w.consumer, unbound{claim, class, b.candidates(class.Name)})
		default:
			immediate = true
		}
	}
	if !bound {
		return nil, framework.NewStatus(framework.Skip)
	}
	if immediate {
		return nil, framework.NewStatus(framework.Unresolvable, reasonUnbound)
	}
	b.look(&w)
	s.Set(bindingKey{}, &w)
	return nil, nil
}

// claimOf is the name of the claim that a volume uses; "" where it uses none.
func claimOf(p *corev1.Pod, v *corev1.Volume) (name string, isEphemeral bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, false
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(p, v), true
	}
	return "", false
}

func unresolvable(format string, args ...any) *framework.Status {
	return framework.NewStatus(framework.Unresolvable, fmt.Sprintf(format, args...))
}

func (b *Binding) claim(p *corev1.Pod, name string, isEphemeral bool) (*corev1.PersistentVolumeClaim, *framework.Status) {
	cached, err := b.claims.PersistentVolumeClaims(p.Namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err) && isEphemeral:
		return nil, unresolvable("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case apierrors.IsNotFound(err):
		return nil, unresolvable("persistentvolumeclaim %q not found", name)
	case err != nil:
		return nil, framework.AsStatus(err)
	}
	claim := b.assumed.claim(cached)
	switch {
	case claim.Status.Phase == corev1.ClaimLost:
		return nil, unresolvable("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
	case claim.DeletionTimestamp != nil:
		return nil, unresolvable("persistentvolumeclaim %q is being deleted", name)
	}
	if isEphemeral {
		// Whoever may make claims must not lend a pod one that is not its own.
		if err := ephemeral.VolumeIsForPod(p, claim); err != nil {
			return nil, unresolvable("%s", err)
		}
	}
	return claim, nil
}

// fullyBound: the volume has the claim's name, and the claim the volume's.
func fullyBound(c *corev1.PersistentVolumeClaim) bool {
	_, done := c.Annotations[volume.AnnBindCompleted]
	return c.Spec.VolumeName != "" && done
}

// waits says whether a claim is bound with its first consumer.
func (b *Binding) waits(c *corev1.PersistentVolumeClaim) (*storagev1.StorageClass, bool) {
	name := volume.GetPersistentVolumeClaimClass(c)
	if name == "" {
		return nil, false
	}
	class, err := b.classes.Get(name)
	if err != nil {
		return nil, false
	}
	return class, class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// look finds the volumes of bound claims, once for all nodes.
func (b *Binding) look(w *wanted) {
	// The largest first: what is left over fits the small ones rather than the other way round.
	slices.SortStableFunc(w.consumer, func(x, y unbound) int { return size(y.claim).Cmp(*size(x.claim)) })
	for _, c := range w.bound {
		pv, err := b.volumes.Get(c.Spec.VolumeName)
		if err != nil {
			w.missing = true
			continue
		}
		w.volumes = append(w.volumes, pv)
	}
}

// Filter implements framework.Filter.
func (b *Binding) Filter(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	w, ok := s.Get(bindingKey{}).(*wanted)
	if !ok {
		return nil
	}
	_, st := b.choose(w, n.Node)
	return st
}

// choice is what is to be bound and provisioned for a pod on a node.
type choice struct {
	bind      []match
	provision []*corev1.PersistentVolumeClaim
	room      []*resource.Quantity // of the storage in which each of provision is made; nil = nobody says
}

// match is a claim and the volume that it gets.
type match struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

func (b *Binding) choose(w *wanted, node *corev1.Node) (*choice, *framework.Status) {
	if w.missing {
		return nil, framework.NewStatus(framework.Unresolvable, reasonNoVolume)
	}
	for _, pv := range w.volumes {
		if err := volume.CheckNodeAffinity(pv, node.Labels); err != nil {
			return nil, framework.NewStatus(framework.Unresolvable, reasonAffinity)
		}
	}
	var c choice
	var left []unbound
	taken := map[string]*corev1.PersistentVolume{}
	for _, u := range w.consumer {
		// Another pod has chosen the node already: this one goes there too, or nowhere.
		if chosen, ok := u.claim.Annotations[volume.AnnSelectedNode]; ok {
			if chosen != node.Name {
				return nil, framework.NewStatus(framework.Unresolvable, reasonNoVolumes)
			}
			left = append(left, u)
			continue
		}
		pv, err := volume.FindMatchingVolume(u.claim, u.volumes, node, taken, true, true)
		switch {
		case err != nil:
			return nil, framework.AsStatus(err)
		case pv == nil:
			left = append(left, u)
		default:
			taken[pv.Name] = pv
			c.bind = append(c.bind, match{u.claim, pv})
		}
	}
	for _, u := range left {
		room, reason, err := b.provisionable(u, node)
		switch {
		case err != nil:
			return nil, framework.AsStatus(err)
		case reason != "":
			return nil, framework.NewStatus(framework.Unresolvable, reason)
		}
		c.provision, c.room = append(c.provision, u.claim), append(c.room, room)
	}
	return &c, nil
}

// candidates are the volumes of a class, as they will be.
func (b *Binding) candidates(class string) []*corev1.PersistentVolume {
	all, err := b.volumes.List(everything)
	if err != nil {
		return nil
	}
	var out []*corev1.PersistentVolume
	for _, pv := range all {
		if volume.GetPersistentVolumeClass(pv) == class {
			out = append(out, b.assumed.volume(pv))
		}
	}
	return out
}

// Reserve implements framework.Reserve: the choice is made again, for what Filter saw
// may have been chosen by another pod since, and is assumed.
func (b *Binding) Reserve(_ context.Context, s *framework.State, p *framework.PodInfo, node string) *framework.Status {
	w, ok := s.Get(bindingKey{}).(*wanted)
	if !ok || len(w.consumer) == 0 {
		return nil
	}
	n, err := b.nodes.Get(node)
	if err != nil {
		return framework.AsStatus(fmt.Errorf("look up node %s for its volumes: %w", node, err))
	}
	now := *w
	now.consumer = nil
	for _, u := range w.consumer {
		now.consumer = append(now.consumer, unbound{b.assumed.claim(u.claim), u.class, b.candidates(u.class.Name)})
	}
	c, st := b.choose(&now, n)
	if st != nil {
		return st
	}
	if err := b.assumed.assume(p.Pod.UID, c, node); err != nil {
		return framework.AsStatus(err)
	}
	s.Set(chosenKey{}, c)
	return nil
}

type chosenKey struct{}

// Unreserve implements framework.Reserve. What PreBind has written stays written: a
// claim that is being provisioned for a node keeps its pod there.
func (b *Binding) Unreserve(_ context.Context, _ *framework.State, p *framework.PodInfo, _ string) {
	b.assumed.forget(p.Pod.UID)
}

// Patience implements framework.Patient.
func (b *Binding) Patience() time.Duration { return b.timeout }

// Prepares implements framework.Preparing.
func (b *Binding) Prepares(s *framework.State, _ *framework.PodInfo, _ string) bool {
	c, ok := s.Get(chosenKey{}).(*choice)
	return ok && len(c.bind)+len(c.provision) > 0
}

// PreBind implements framework.PreBind: it writes what was chosen, and waits until
// all of it is bound.
func (b *Binding) PreBind(ctx context.Context, s *framework.State, p *framework.PodInfo, node string) *framework.Status {
	c, ok := s.Get(chosenKey{}).(*choice)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, errors.New("the volumes of the pod were not bound in time"))
	defer cancel()
	written, err := b.write(ctx, c, node)
	if err == nil {
		err = b.await(ctx, c, written, node)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// What was chosen has changed since; that is an event, which brings the pod again.
		return framework.NewStatus(framework.Unschedulable, fmt.Sprintf("binding volumes: %s", err))
	}
	if err != nil {
		return framework.AsStatus(fmt.Errorf("binding volumes: %w", err))
	}
	// From here on the API knows it all, and the caches will.
	b.assumed.forget(p.Pod.UID)
	return nil
}
