// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/component-helpers/storage/volume"
)

// written are the versions that write made, by the objects' UIDs.
type written map[types.UID]string

// write tells the API what was chosen. Every write is bound to the version on which
// the choice was made.
func (b *Binding) write(ctx context.Context, c *choice, node string) (written, error) {
	versions := written{}
	for _, m := range c.bind {
		now, err := b.client.CoreV1().PersistentVolumes().Update(ctx, m.volume, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("bind volume %s to claim %s: %w", m.volume.Name, m.claim.Name, err)
		}
		versions[m.volume.UID] = now.ResourceVersion
	}
	for _, claim := range c.provision {
		now, err := b.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("choose node %s for claim %s: %w", node, claim.Name, err)
		}
		versions[claim.UID] = now.ResourceVersion
	}
	return versions, nil
}

// look is how often the caches are asked whether all is bound.
const look = 50 * time.Millisecond

// await returns when everything is bound, or cannot be any more.
func (b *Binding) await(ctx context.Context, c *choice, versions written, node string) error {
	again := time.NewTicker(look)
	defer again.Stop()
	for {
		if done, err := b.allBound(c, versions, node); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}

func (b *Binding) allBound(c *choice, versions written, node string) (bool, error) {
	n, err := b.nodes.Get(node)
	if err != nil {
		return false, fmt.Errorf("node %s has gone: %w", node, err)
	}
	all := true
	for _, m := range c.bind {
		pv, err := b.volumes.Get(m.volume.Name)
		if err != nil {
			return false, fmt.Errorf("volume %s has gone: %w", m.volume.Name, err)
		}
		if older(pv.ResourceVersion, versions[m.volume.UID]) {
			all = false
			continue
		}
		if !volume.IsVolumeBoundToClaim(pv, m.claim) {
			return false, fmt.Errorf("volume %s was taken from claim %s", pv.Name, m.claim.Name)
		}
		claim, err := b.current(m.claim)
		if err != nil {
			return false, err
		}
		all = all && fullyBound(claim)
	}
	for _, wanted := range c.provision {
		done, err := b.provisioned(wanted, versions[wanted.UID], n)
		if err != nil {
			return false, err
		}
		all = all && done
	}
	return all, nil
}

func (b *Binding) current(c *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	now, err := b.claims.PersistentVolumeClaims(c.Namespace).Get(c.Name)
	if err != nil {
		return nil, fmt.Errorf("claim %s has gone: %w", c.Name, err)
	}
	if now.UID != c.UID {
		return nil, fmt.Errorf("claim %s is another than the one that was looked at", c.Name)
	}
	return now, nil
}

// provisioned says whether a claim has its volume, on the node.
func (b *Binding) provisioned(wanted *corev1.PersistentVolumeClaim, version string, node *corev1.Node) (bool, error) {
	claim, err := b.current(wanted)
	if err != nil {
		return false, err
	}
	if older(claim.ResourceVersion, version) {
		return false, nil
	}
	chosen, ok := claim.Annotations[volume.AnnSelectedNode]
	switch {
	case !ok:
		// The provisioner gave up on this node: the pod may go elsewhere.
		return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
	case chosen != node.Name:
		return false, fmt.Errorf("provisioning failed for PVC %q: another pod chose node %s for it", claim.Name, chosen)
	case claim.Spec.VolumeName == "":
		return false, nil
	}
	pv, err := b.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return false, nil //nolint:nilerr // the claim names it before the cache shows it
	}
	if err := volume.CheckNodeAffinity(pv, node.Labels); err != nil {
		return false, fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, node.Name, err)
	}
	return fullyBound(claim), nil
}

// older says whether the cache has not seen a write yet.
func older(cached, written string) bool {
	order, err := resourceversion.CompareResourceVersion(cached, written)
	return err == nil && order < 0
}
