// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// Persistent is an optional power of a Plugin: it sets up PersistentVolumes of its
// kind too. Request.Persistent is the volume then.
type Persistent interface {
	SupportsPersistent(pv *corev1.PersistentVolume) bool
}

// claimOf is the name of the claim that a volume uses, and whether the pod may only
// read; "" where it uses none.
func claimOf(p *corev1.Pod, v *corev1.Volume) (name string, readOnly bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(p, v), false
	}
	return "", false
}

// persistent follows a pod's claim to its volume. Both have to name each other: a
// claim that lost its volume, or a volume that was given to another claim meanwhile,
// is not the pod's.
func (m *Manager) persistent(ctx context.Context, p *corev1.Pod, v *corev1.Volume,
	name string,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	core := m.cfg.Client.CoreV1()
	claim, err := core.PersistentVolumeClaims(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(p, claim); err != nil {
			return nil, nil, err
		}
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return nil, nil, fmt.Errorf("PVC %s/%s has non-bound phase (%q) or empty pvc.Spec.VolumeName (%q)", claim.Namespace, claim.Name,
			claim.Status.Phase, claim.Spec.VolumeName)
	}
	pv, err := core.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("failed to fetch PV %s from API server: %w", claim.Spec.VolumeName, err)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		return nil, nil, fmt.Errorf("PV %s is not bound to PVC %s/%s (its claimRef is another's)", pv.Name, claim.Namespace, claim.Name)
	}
	return claim, pv, nil
}

// resolve finds out what a volume of a pod is, and who sets it up.
func (m *Manager) resolve(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (Plugin, Request, error) {
	name, readOnly := claimOf(p, v)
	if name == "" {
		pl, err := m.plugin(v)
		if err != nil {
			return nil, Request{}, err
		}
		return pl, m.request(p, v, pl), nil
	}
	claim, pv, err := m.persistent(ctx, p, v, name)
	if err != nil {
		return nil, Request{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : error processing PVC %s/%s: %w", v.Name, p.Namespace, name,
			err)
	}
	for _, pl := range m.plugins {
		if takes, ok := pl.(Persistent); ok && takes.SupportsPersistent(pv) {
			if _, devices := pl.(Blocks); block(pv) && !devices {
				return nil, Request{}, fmt.Errorf("MapVolume.SetUp failed for volume %q : PV %s has volumeMode Block, and volumes of kind %s are file systems", v.Name, pv.Name, pl.Name())
			}
			r := m.request(p, v, pl)
			// As upstream, by the volume's name: what is set up outlives what pods call it.
			r.Dir, r.Persistent, r.Claim, r.ReadOnly = filepath.Join(filepath.Dir(r.Dir), pv.Name), pv, claim, readOnly
			return pl, r, nil
		}
	}
	return nil, Request{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : no volume plugin of this node takes %s of PV %s", v.Name, kindOf(pv), pv.Name)
}

// sole refuses a volume of a single pod that another has on this node: scheduled there by
// its name, or from before this kubelet began.
func (m *Manager) sole(p *corev1.Pod, r *Request) error {
	if r.Persistent == nil || !slices.Contains(r.Persistent.Spec.AccessModes, corev1.ReadWriteOncePod) {
		return nil
	}
	// As upstream says it.
	inUse := errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	m.mu.Lock()
	defer m.mu.Unlock()
	switch owner, known := m.owners[r.Persistent.Name]; {
	case owner == p.UID:
		return nil
	case known:
		return inUse
	}
	// Where pods have it set up: pods/UID/volumes/KIND/NAME.
	at, err := filepath.Rel(m.podDir(p.UID), r.Dir)
	if err != nil {
		return fmt.Errorf("look for other pods with the volume: %w", err)
	}
	others, err := filepath.Glob(filepath.Join(m.podDir("*"), at))
	if err != nil {
		return fmt.Errorf("look for other pods with the volume: %w", err)
	}
	if slices.ContainsFunc(others, func(dir string) bool { return dir != r.Dir }) {
		return inUse
	}
	m.owners[r.Persistent.Name] = p.UID
	return nil
}

func block(pv *corev1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// kindOf names the source of a volume, for messages.
func kindOf(pv *corev1.PersistentVolume) string {
	s := &pv.Spec.PersistentVolumeSource
	switch {
	case s.CSI != nil:
		return "csi " + s.CSI.Driver
	case s.ISCSI != nil:
		return "iscsi"
	case s.FC != nil:
		return "fc"
	}
	return "the source"
}
