// SPDX-License-Identifier: Apache-2.0

// Package podgroupprotection lets a PodGroup go only when none of its pods may still run:
// who places pods all or nothing could not say any more which ones belong together.
// Until then a finalizer, put on by admission, holds up the deletion.
package podgroupprotection

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1beta1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	finalizer = "scheduling.k8s.io/podgroup-protection"
	// byGroup is the index of the pods that have not ended, by namespace and name of their group.
	byGroup = "podgroupprotection-group"
)

// Controller protects PodGroups.
type Controller struct {
	client kubernetes.Interface
	groups schedulinglisters.PodGroupLister
	pods   cache.Indexer
	loop   *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	pods, groups := env.Informers.Core().V1().Pods().Informer(), env.Informers.Scheduling().V1beta1().PodGroups()
	c := &Controller{client: env.Client, groups: groups.Lister(), pods: pods.GetIndexer()}
	if err := controllers.AddIndex(pods, byGroup, activeIn); err != nil {
		return nil, fmt.Errorf("podgroup-protection-controller: %w", err)
	}
	c.loop = controllers.NewLoop(env, "podgroup-protection-controller", workers, c.reconcile)
	c.loop.Watch(groups.Informer(), controllers.KeyHandler(c.loop))
	c.loop.Watch(pods, controllers.Changes(func(old, current metav1.Object) {
		now, _ := current.(*corev1.Pod)
		if before, ok := old.(*corev1.Pod); ok && (now == nil || controllers.PodFinished(now)) {
			if key, member := groupOf(before); member {
				c.loop.Add(key) // the pod was perhaps the last of the group
			}
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// groupOf is the group that a pod belongs to.
func groupOf(p *corev1.Pod) (controllers.Key, bool) {
	if g := p.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return controllers.Key{Namespace: p.Namespace, Name: *g.PodGroupName}, true
	}
	return controllers.Key{}, false
}

func activeIn(obj any) ([]string, error) {
	if p, ok := obj.(*corev1.Pod); ok && !controllers.PodFinished(p) {
		if key, member := groupOf(p); member {
			return []string{key.String()}, nil
		}
	}
	return nil, nil
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	group, err := c.groups.PodGroups(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return controllers.Guard(ctx, controllers.Protection[*schedulingv1beta1.PodGroup]{
		Kind: "PodGroup", Finalizer: finalizer, Update: c.client.SchedulingV1beta1().PodGroups(key.Namespace).Update,
		Used: func(ctx context.Context) (bool, error) { return c.used(ctx, key) },
	}, group)
}

// used asks the cache first, and the server before a group is let go.
func (c *Controller) used(ctx context.Context, key controllers.Key) (bool, error) {
	cached, err := c.pods.IndexKeys(byGroup, key.String())
	if err != nil || len(cached) > 0 {
		return len(cached) > 0, err
	}
	live, err := c.client.CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("looking for pods of group %s: %w", key, err)
	}
	for i := range live.Items {
		p := &live.Items[i]
		if of, member := groupOf(p); member && of == key && !controllers.PodFinished(p) {
			return true, nil
		}
	}
	return false, nil
}
