// SPDX-License-Identifier: Apache-2.0

// Package volumeprotection lets claims, volumes and volume attributes classes go
// only when nobody uses them: a claim when no pod that may run mounts it, a volume
// when no claim is bound to it, a class when no claim and no volume names it.
// Until then a finalizer, put on by admission, holds up their deletion. Bound claims
// say by a condition whether any pod names them.
package volumeprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
)

// Claims protects PersistentVolumeClaims.
type Claims struct {
	client kubernetes.Interface
	claims corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
	loop   *controllers.Loop[controllers.Key]
}

// NewClaims makes the controller of claims.
func NewClaims(env controllers.Env, workers int) (*Claims, error) {
	core := env.Informers.Core().V1()
	pods, claims := core.Pods().Informer(), core.PersistentVolumeClaims()
	if err := controllers.IndexByClaim(pods); err != nil {
		return nil, fmt.Errorf("pvc-protection-controller: %w", err)
	}
	c := &Claims{client: env.Client, claims: claims.Lister(), pods: pods.GetIndexer()}
	c.loop = controllers.NewLoop(env, "pvc-protection-controller", workers, c.reconcile)
	c.loop.Watch(claims.Informer(), controllers.KeyHandler(c.loop))
	c.loop.Watch(pods, controllers.Changes(func(old, current metav1.Object) {
		now, _ := current.(*corev1.Pod)
		before, _ := old.(*corev1.Pod)
		switch {
		case before == nil && now != nil:
			before = now // its claims are used from now on
		case now != nil && !controllers.PodFinished(now):
			return
		}
		if before == nil {
			return
		}
		for _, key := range controllers.PodClaims(before) {
			c.loop.Add(key) // the pod was perhaps the last that used it
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Claims) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// uses reports whether a pod may have the claim mounted: it is bound to a node and
// has not ended. One that waits for a node doesn't; it will not get to one, for a
// claim that is being deleted keeps it from being scheduled.
func uses(pod *corev1.Pod, claim controllers.Key) bool {
	return pod.Spec.NodeName != "" && !controllers.PodFinished(pod) && slices.Contains(controllers.PodClaims(pod), claim)
}

func (c *Claims) reconcile(ctx context.Context, key controllers.Key) error {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.updateUnused(ctx, claim); err != nil {
		return err
	}
	return controllers.Guard(ctx, controllers.Protection[*corev1.PersistentVolumeClaim]{
		Kind: "PersistentVolumeClaim", Finalizer: claimFinalizer, Update: c.client.CoreV1().PersistentVolumeClaims(key.Namespace).Update,
		Used: func(ctx context.Context) (bool, error) { return c.anyPod(ctx, key, uses) },
	}, claim)
}

// anyPod asks the cache first, and the server before it says that no pod does.
func (c *Claims) anyPod(ctx context.Context, key controllers.Key, does func(*corev1.Pod, controllers.Key) bool) (bool, error) {
	cached, err := controllers.PodsWithClaim(c.pods, key)
	if err != nil {
		return false, err
	}
	for _, pod := range cached {
		if does(pod, key) {
			return true, nil
		}
	}
	live, err := c.client.CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("looking for pods that use claim %s: %w", key, err)
	}
	for i := range live.Items {
		if does(&live.Items[i], key) {
			return true, nil
		}
	}
	return false, nil
}

// Volumes protects PersistentVolumes.
type Volumes struct {
	client  kubernetes.Interface
	volumes corelisters.PersistentVolumeLister
	loop    *controllers.Loop[string]
}

// NewVolumes makes the controller of volumes.
func NewVolumes(env controllers.Env, workers int) (*Volumes, error) {
	volumes := env.Informers.Core().V1().PersistentVolumes()
	v := &Volumes{client: env.Client, volumes: volumes.Lister()}
	v.loop = controllers.NewLoop(env, "pv-protection-controller", workers, v.reconcile)
	v.loop.Watch(volumes.Informer(), controllers.EachObject(func(o metav1.Object) { v.loop.Add(o.GetName()) }))
	return v, nil
}

// Run works until ctx ends.
func (v *Volumes) Run(ctx context.Context) error { return v.loop.Run(ctx) }

func (v *Volumes) reconcile(ctx context.Context, name string) error {
	volume, err := v.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return controllers.Guard(ctx, controllers.Protection[*corev1.PersistentVolume]{
		Kind: "PersistentVolume", Finalizer: volumeFinalizer, Update: v.client.CoreV1().PersistentVolumes().Update,
		Used: func(context.Context) (bool, error) { return volume.Status.Phase == corev1.VolumeBound, nil },
	}, volume)
}
