// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/controllers"
)

func (b *Binder) syncClaim(ctx context.Context, key controllers.Key) error {
	c, err := b.cached.claim(key.Namespace, key.Name)
	if err != nil || c == nil {
		return err
	}
	if !b.written.Seen(c) {
		return controllers.ErrStale
	}
	controllers.About(ctx, "PersistentVolumeClaim", c)
	p, err := planClaim(b.cached, c)
	if err != nil {
		return fmt.Errorf("claim %s: %w", key, err)
	}
	if p.event != nil {
		b.recorder.Event(c, p.event.kind, p.event.reason, p.event.message)
	}
	switch {
	case p.class != "":
		next := c.DeepCopy()
		next.Spec.StorageClassName = &p.class
		_, err = b.updateClaim(ctx, next, "class set")
	case p.bind != nil:
		err = b.bind(ctx, p.bind, c)
	case p.provisioner != "":
		if c, err = b.askProvisioner(ctx, c, p.provisioner); err == nil {
			err = b.claimStatus(ctx, c, nil, p.phase)
		}
	case p.phase != "":
		err = b.claimStatus(ctx, c, nil, p.phase)
	}
	if apierrors.IsNotFound(err) {
		return nil // its deletion is an event of its own
	}
	if err != nil {
		return fmt.Errorf("claim %s: %w", key, err)
	}
	return nil
}

// askProvisioner names the one that is to make a volume, in the two annotations that
// provisioners look for.
func (b *Binder) askProvisioner(ctx context.Context, c *corev1.PersistentVolumeClaim,
	provisioner string,
) (*corev1.PersistentVolumeClaim, error) {
	if c.Annotations[volume.AnnStorageProvisioner] == provisioner && c.Annotations[volume.AnnBetaStorageProvisioner] == provisioner {
		return c, nil
	}
	next := c.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnStorageProvisioner, provisioner)
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnBetaStorageProvisioner, provisioner)
	return b.updateClaim(ctx, next, "provisioner asked")
}

// bind writes the volume's half, then the claim's. Each step that is done already is
// left out, so that binding again is how a bound pair is kept.
func (b *Binder) bind(ctx context.Context, pv *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) error {
	next, changed, err := volume.GetBindVolumeToClaim(pv, c)
	if err != nil {
		return err
	}
	if changed {
		if pv, err = b.updateVolume(ctx, next, "bound"); err != nil {
			return err
		}
	}
	if err := b.volumeStatus(ctx, pv, corev1.VolumeBound, ""); err != nil {
		return err
	}
	bound := c.DeepCopy()
	if bound.Spec.VolumeName != pv.Name {
		bound.Spec.VolumeName = pv.Name
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, volume.AnnBoundByController, "yes")
	}
	if !metav1.HasAnnotation(bound.ObjectMeta, volume.AnnBindCompleted) {
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
	if !apiequality.Semantic.DeepEqual(bound, c) {
		if c, err = b.updateClaim(ctx, bound, "bound"); err != nil {
			return err
		}
	}
	return b.claimStatus(ctx, c, pv, corev1.ClaimBound)
}

// preResize is the annotation by which external-resizer says how large the file system of
// a volume is, until a node has let it follow.
const preResize = "volume.alpha.kubernetes.io/pre-resize-capacity"

// bindCapacity is what a claim has of a volume when the two are bound: less than the
// volume, where its file system has to grow yet.
func bindCapacity(pv *corev1.PersistentVolume) corev1.ResourceList {
	before, err := resource.ParseQuantity(pv.Annotations[preResize])
	if err != nil {
		return pv.Spec.Capacity // it is not there, or somebody else's
	}
	has := maps.Clone(pv.Spec.Capacity)
	if has == nil {
		has = corev1.ResourceList{}
	}
	has[corev1.ResourceStorage] = before
	return has
}

// claimStatus writes the phase, and what the claim has of its volume. The capacity of
// a claim that is bound already is whoever's resizes the volume.
func (b *Binder) claimStatus(ctx context.Context, c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	phase corev1.PersistentVolumeClaimPhase,
) error {
	next := c.DeepCopy()
	next.Status.Phase = phase
	if pv == nil {
		next.Status.AccessModes, next.Status.Capacity, next.Status.CurrentVolumeAttributesClassName = nil, nil, nil
	} else {
		next.Status.AccessModes = pv.Spec.AccessModes
		if _, has := c.Status.Capacity[corev1.ResourceStorage]; !has || c.Status.Phase != corev1.ClaimBound {
			next.Status.Capacity = bindCapacity(pv)
		}
		if c.Status.Phase != corev1.ClaimBound {
			next.Status.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
		}
	}
	if apiequality.Semantic.DeepEqual(next.Status, c.Status) {
		return nil
	}
	got, err := b.client.CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	b.written.Record(got)
	controllers.Did(ctx, string(phase), "PersistentVolumeClaim", got)
	return nil
}

func (b *Binder) updateClaim(ctx context.Context, c *corev1.PersistentVolumeClaim, did string) (*corev1.PersistentVolumeClaim, error) {
	got, err := b.client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	b.written.Record(got)
	controllers.Did(ctx, did, "PersistentVolumeClaim", got)
	return got, nil
}

func (b *Binder) syncVolume(ctx context.Context, name string) error {
	pv, err := b.cached.volume(name)
	if err != nil || pv == nil {
		return err
	}
	if !b.written.Seen(pv) {
		return controllers.ErrStale
	}
	controllers.About(ctx, "PersistentVolume", pv)
	p, err := planVolume(b.cached, pv, func(ref *corev1.ObjectReference) (bool, error) { return b.claimIsGone(ctx, ref) })
	if err != nil {
		return fmt.Errorf("volume %s: %w", name, err)
	}
	if p.event != nil && (p.phase == "" || p.phase != pv.Status.Phase) {
		b.recorder.Event(pv, p.event.kind, p.event.reason, p.event.message)
		if p.claim != nil {
			b.recorder.Event(p.claim, p.event.kind, p.event.reason, p.event.message)
		}
	}
	if p.claim != nil && p.event == nil {
		b.claims.Add(controllers.Key{Namespace: p.claim.Namespace, Name: p.claim.Name})
	}
	if p.free {
		pv, err = b.updateVolume(ctx, freed(pv), "freed")
	}
	if err == nil && p.phase != "" {
		err = b.volumeStatus(ctx, pv, p.phase, p.message)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("volume %s: %w", name, err)
	}
	return nil
}

// freed is a volume without its claim; one that somebody meant for a claim keeps the
// name of it.
func freed(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	next := pv.DeepCopy()
	if metav1.HasAnnotation(next.ObjectMeta, volume.AnnBoundByController) {
		next.Spec.ClaimRef = nil
		delete(next.Annotations, volume.AnnBoundByController)
	} else {
		next.Spec.ClaimRef.UID = ""
	}
	return next
}

// claimIsGone asks the server.
func (b *Binder) claimIsGone(ctx context.Context, ref *corev1.ObjectReference) (bool, error) {
	c, err := b.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return c.UID != ref.UID, nil
}

func (b *Binder) updateVolume(ctx context.Context, pv *corev1.PersistentVolume, did string) (*corev1.PersistentVolume, error) {
	got, err := b.client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	b.written.Record(got)
	controllers.Did(ctx, did, "PersistentVolume", got)
	return got, nil
}

// volumeStatus writes the phase where it is another one.
func (b *Binder) volumeStatus(ctx context.Context, pv *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) error {
	if pv.Status.Phase == phase && pv.Status.Message == message {
		return nil
	}
	next := pv.DeepCopy()
	next.Status.Phase, next.Status.Message, next.Status.Reason = phase, message, ""
	got, err := b.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	b.written.Record(got)
	controllers.Did(ctx, string(phase), "PersistentVolume", got)
	return nil
}
