// SPDX-License-Identifier: Apache-2.0

// Package podgc removes pods that no kubelet will: those bound to a node that is
// gone, those deleted before they were bound, those stuck on a node declared out of
// service, and finished ones beyond a limit.
package podgc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// quarantine is how long a node must be gone: one that is replaced under its name
	// keeps its pods.
	quarantine = 40 * time.Second
	// sweep is how often finished pods are counted.
	sweep = time.Minute
	// defaultFinishedLimit is upstream's --terminated-pod-gc-threshold.
	defaultFinishedLimit = 12500
)

// Controller removes pods.
type Controller struct {
	client  kubernetes.Interface
	limit   int
	pods    corelisters.PodLister
	indexer cache.Indexer
	nodes   corelisters.NodeLister
	byPod   *controllers.Loop[controllers.Key]
	byNode  *controllers.Loop[string]
}

// New makes the controller. finishedLimit is how many finished pods are kept, in
// the whole cluster; 0 = 12500, negative = all.
func New(env controllers.Env, workers, finishedLimit int) (*Controller, error) {
	if finishedLimit == 0 {
		finishedLimit = defaultFinishedLimit
	}
	core := env.Informers.Core().V1()
	pods := core.Pods().Informer()
	if err := controllers.IndexByNode(pods); err != nil {
		return nil, fmt.Errorf("pod-garbage-collector-controller: indexing pods by node: %w", err)
	}
	c := &Controller{
		client: env.Client, limit: finishedLimit, pods: core.Pods().Lister(), indexer: pods.GetIndexer(),
		nodes: core.Nodes().Lister(),
	}
	c.byPod = controllers.NewLoop(env, "pod-garbage-collector-controller", workers, c.reconcilePod)
	c.byNode = controllers.NewLoop(env, "pod-garbage-collector-controller-nodes", workers, c.reconcileNode)
	c.byPod.Watch(pods, controllers.Changes(func(_, current metav1.Object) {
		pod, ok := current.(*corev1.Pod)
		if !ok {
			return
		}
		if pod.DeletionTimestamp != nil {
			c.byPod.Add(cache.MetaObjectToName(pod))
		}
		if pod.Spec.NodeName != "" {
			if _, err := c.nodes.Get(pod.Spec.NodeName); apierrors.IsNotFound(err) {
				c.byNode.AddAfter(pod.Spec.NodeName, quarantine)
			}
		}
	}))
	c.byPod.Needs(core.Nodes().Informer())
	c.byPod.Beside(c.sweep)
	c.byNode.Watch(core.Nodes().Informer(), controllers.Changes(func(old, current metav1.Object) {
		switch node, ok := current.(*corev1.Node); {
		case !ok:
			c.byNode.AddAfter(old.GetName(), quarantine)
		case outOfService(node):
			c.byNode.Add(node.Name)
		}
	}))
	c.byNode.Needs(pods)
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	return run.Together(ctx, c.byPod.Run, c.byNode.Run)
}

// reconcilePod removes a pod that is being deleted and that no kubelet ever had.
func (c *Controller) reconcilePod(ctx context.Context, key controllers.Key) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if pod.DeletionTimestamp == nil {
		return nil
	}
	if pod.Spec.NodeName == "" {
		return c.remove(ctx, pod, corev1.PodCondition{})
	}
	node, err := c.nodes.Get(pod.Spec.NodeName)
	if err == nil && outOfService(node) {
		return c.remove(ctx, pod, corev1.PodCondition{})
	}
	return nil
}

// outOfService: an operator vouches, by a taint, that the machine is off.
func outOfService(node *corev1.Node) bool {
	return !controllers.NodeReady(node) && slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// reconcileNode removes the pods of a node that is gone, or the deleted ones of a
// node that is out of service.
func (c *Controller) reconcileNode(ctx context.Context, name string) error {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return fmt.Errorf("looking for node %s: %w", name, err)
	}
	if !gone && !outOfService(node) {
		return nil
	}
	pods, err := controllers.PodsOn(c.indexer, name)
	if err != nil {
		return err
	}
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
	}
	var errs []error
	for _, pod := range pods {
		switch {
		case gone:
			condition.ObservedGeneration = pod.Generation
			errs = append(errs, c.remove(ctx, pod, condition))
		case pod.DeletionTimestamp != nil:
			errs = append(errs, c.remove(ctx, pod, corev1.PodCondition{}))
		}
	}
	return errors.Join(errs...)
}

// remove marks a pod as failed, so that whoever waits for its end learns of it, and
// deletes it at once.
func (c *Controller) remove(ctx context.Context, pod *corev1.Pod, condition corev1.PodCondition) error {
	if !controllers.PodFinished(pod) {
		if err := controllers.PatchPodStatus(ctx, c.client, pod, corev1.PodFailed, condition); err != nil {
			return err
		}
	}
	opts := controllers.DeleteExactly(pod)
	opts.GracePeriodSeconds = ptr.To[int64](0)
	err := c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, opts)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	controllers.Did(ctx, "removed", "Pod", pod)
	return nil
}

// sweep removes finished pods beyond the limit, evicted and old ones first.
func (c *Controller) sweep(ctx context.Context) {
	if c.limit < 0 {
		return
	}
	tick := time.NewTicker(sweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pods, err := c.pods.List(labels.Everything())
		if err != nil {
			continue
		}
		for _, pod := range surplus(pods, c.limit) {
			if err := c.remove(ctx, pod, corev1.PodCondition{}); err != nil {
				c.byPod.Log().WarnContext(ctx, "a finished pod could not be removed", "kind", "Pod", "namespace", pod.Namespace, "name", pod.Name,
					"error", err)
			}
		}
	}
}

func surplus(pods []*corev1.Pod, limit int) []*corev1.Pod {
	finished := controllers.Filter(pods, controllers.PodFinished)
	if len(finished) <= limit {
		return nil
	}
	slices.SortFunc(finished, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return finished[:len(finished)-limit]
}

func rank(pod *corev1.Pod) int {
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted" {
		return 0
	}
	return 1
}
