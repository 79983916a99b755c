// SPDX-License-Identifier: Apache-2.0

// Package volumeexpand writes on claims that are to be expanded which resizer does it.
// Volumes of CSI drivers are expanded by their driver's own resizer, and then by the node;
// no kind of volume is left that the control plane expands itself, as upstream.
package volumeexpand

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Controller tells claims.
type Controller struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	events  record.EventRecorder
	loop    *controllers.Loop[controllers.Key]

	mu   sync.Mutex
	told map[types.UID]string // the size about which a claim was told
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	core := env.Informers.Core().V1()
	claims, volumes := core.PersistentVolumeClaims(), core.PersistentVolumes()
	c := &Controller{claims: claims.Lister(), volumes: volumes.Lister(), events: env.Recorder("volume_expand"), told: map[types.UID]string{}}
	c.loop = controllers.NewLoop(env, "persistentvolume-expander-controller", workers, c.reconcile)
	c.loop.Watch(claims.Informer(), controllers.Changes(func(old, current metav1.Object) {
		if current == nil {
			c.mu.Lock()
			delete(c.told, old.GetUID())
			c.mu.Unlock()
			return
		}
		if claim, ok := current.(*corev1.PersistentVolumeClaim); ok && wants(claim) {
			c.loop.Add(controllers.Key{Namespace: claim.Namespace, Name: claim.Name})
		}
	}))
	c.loop.Needs(volumes.Informer())
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// wants says whether a bound claim asks for more than it has.
func wants(c *corev1.PersistentVolumeClaim) bool {
	asked, has := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	return c.DeletionTimestamp == nil && c.Status.Phase == corev1.ClaimBound && asked.Cmp(has) > 0
}

// word is what a claim is to be told of its volume.
func word(pv *corev1.PersistentVolume) (kind, message string) {
	if pv.Spec.CSI != nil {
		return corev1.EventTypeNormal, fmt.Sprintf("waiting for an external controller to expand this PVC: the resizer of CSI driver %s", pv.Spec.CSI.Driver)
	}
	return corev1.EventTypeWarning, fmt.Sprintf("volume %s is of a kind that the control plane does not expand: make a larger claim and copy the data, unless another controller expands it", pv.Name)
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && !wants(claim) {
		return nil
	}
	if err != nil {
		return err
	}
	pv, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && (pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID) {
		return nil // a claim that lost its volume; the binder speaks about it
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "PersistentVolumeClaim", claim)
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	c.mu.Lock()
	known := c.told[claim.UID] == size.String()
	c.told[claim.UID] = size.String()
	c.mu.Unlock()
	if !known {
		kind, message := word(pv)
		c.events.Event(claim, kind, "ExternalExpanding", message)
	}
	return nil
}
