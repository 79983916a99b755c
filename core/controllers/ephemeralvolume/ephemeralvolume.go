// SPDX-License-Identifier: Apache-2.0

// Package ephemeralvolume makes the claims of pods' generic ephemeral volumes
// (KEP-1698). A claim belongs to its pod, and the garbage collector removes it with
// the pod. A claim of that name which belongs to somebody else is left alone, and
// keeps the pod from running: it is not the pod's to use.
package ephemeralvolume

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Controller makes claims.
type Controller struct {
	client   kubernetes.Interface
	pods     corelisters.PodLister
	podIndex cache.Indexer
	claims   corelisters.PersistentVolumeClaimLister
	events   record.EventRecorder
	loop     *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	core := env.Informers.Core().V1()
	pods, claims := core.Pods(), core.PersistentVolumeClaims()
	if err := controllers.IndexByClaim(pods.Informer()); err != nil {
		return nil, fmt.Errorf("ephemeral-volume-controller: %w", err)
	}
	c := &Controller{
		client: env.Client, events: env.Recorder("ephemeral_volume"),
		pods: pods.Lister(), podIndex: pods.Informer().GetIndexer(), claims: claims.Lister(),
	}
	c.loop = controllers.NewLoop(env, "ephemeral-volume-controller", workers, c.reconcile)
	c.loop.Watch(pods.Informer(), controllers.Changes(func(_, current metav1.Object) {
		if pod, ok := current.(*corev1.Pod); ok && pod.DeletionTimestamp == nil && wants(pod) {
			c.loop.Add(cache.MetaObjectToName(pod))
		}
	}))
	c.loop.Watch(claims.Informer(), controllers.Changes(func(old, current metav1.Object) {
		// A pod whose claim is gone needs another one; so does one that another's claim stood in the way of.
		if current != nil {
			return
		}
		if owner := metav1.GetControllerOfNoCopy(old); owner != nil && owner.Kind == "Pod" {
			c.loop.Add(controllers.Key{Namespace: old.GetNamespace(), Name: owner.Name})
			return
		}
		c.addPods(old)
	}))
	return c, nil
}

// addPods queues the pods that name a claim which is gone.
func (c *Controller) addPods(gone metav1.Object) {
	pods, _ := controllers.PodsWithClaim(c.podIndex, cache.MetaObjectToName(gone)) // fails only without the index
	for _, pod := range pods {
		c.loop.Add(cache.MetaObjectToName(pod))
	}
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func wants(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	controllers.About(ctx, "Pod", pod)
	var all []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		if err := c.claim(ctx, pod, v); err != nil {
			c.events.Event(pod, corev1.EventTypeWarning, "FailedBinding", fmt.Sprintf("ephemeral volume %s: %v", v.Name, err))
			all = append(all, fmt.Errorf("ephemeral volume %s of pod %s: %w", v.Name, key, err))
		}
	}
	return errors.Join(all...)
}

// claim makes the claim of one volume, unless it is there.
func (c *Controller) claim(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	there, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(ephemeral.VolumeClaimName(pod, v))
	if err == nil {
		return ephemeral.VolumeIsForPod(pod, there)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	made, err := c.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, claimFor(pod, v), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// The cache is behind: whose it is, is to be seen when the cache shows it.
		return c.look(ctx, pod, v)
	}
	if err != nil {
		return err
	}
	controllers.Did(ctx, "made the claim of an ephemeral volume", "PersistentVolumeClaim", made)
	return nil
}

func (c *Controller) look(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	there, err := c.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, ephemeral.VolumeClaimName(pod, v), metav1.GetOptions{})
	if err != nil {
		return err
	}
	return ephemeral.VolumeIsForPod(pod, there)
}

// claimFor is the claim of a pod's volume.
func claimFor(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolumeClaim {
	template := v.Ephemeral.VolumeClaimTemplate
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: ephemeral.VolumeClaimName(pod, v),
			Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: *template.Spec.DeepCopy(),
	}
}
