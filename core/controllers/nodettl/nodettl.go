// SPDX-License-Identifier: Apache-2.0

// Package nodettl publishes, as an annotation of nodes, for how long they may keep Secrets
// and ConfigMaps without reading them again: the more nodes there are, the longer. Ours
// watch what their pods use; upstream's kubelets may be told to go by this annotation.
package nodettl

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// step is what holds for clusters of a size. Sizes overlap, so that a cluster at the
// edge of two does not change its mind with every node.
type step struct{ least, most, seconds int }

// steps are upstream's.
func steps() []step {
	return []step{{0, 100, 0}, {90, 500, 15}, {450, 1000, 30}, {900, 2000, 60}, {1800, math.MaxInt, 300}}
}

// next is the step for a number of nodes, for a cluster that was at another.
func next(at, nodes int) int {
	all := steps()
	for nodes > all[at].most {
		at++
	}
	for nodes < all[at].least {
		at--
	}
	return at
}

// Controller annotates nodes.
type Controller struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	loop   *controllers.Loop[string]

	mu    sync.Mutex
	count int // of nodes
	at    int // the step
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	nodes := env.Informers.Core().V1().Nodes()
	c := &Controller{client: env.Client, nodes: nodes.Lister()}
	c.loop = controllers.NewLoop(env, "ttl-controller", workers, c.reconcile)
	c.loop.Watch(nodes.Informer(), controllers.Changes(func(old, current metav1.Object) {
		switch {
		case current == nil:
			c.counted(-1)
		case old == nil:
			c.counted(1)
			c.loop.Add(current.GetName())
		case old.GetAnnotations()[corev1.ObjectTTLAnnotationKey] != current.GetAnnotations()[corev1.ObjectTTLAnnotationKey]:
			c.loop.Add(current.GetName())
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// counted looks whether a node more or less makes another step, of which all learn.
func (c *Controller) counted(by int) {
	c.mu.Lock()
	was := c.at
	c.count += by
	c.at = next(c.at, c.count)
	changed := c.at != was
	c.mu.Unlock()
	if !changed {
		return
	}
	all, _ := c.nodes.List(labels.Everything()) // an index of the cache: it does not fail
	for _, node := range all {
		c.loop.Add(node.Name)
	}
}

func (c *Controller) reconcile(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	want := strconv.Itoa(steps()[c.at].seconds)
	c.mu.Unlock()
	if has, ok := node.Annotations[corev1.ObjectTTLAnnotationKey]; ok && has == want {
		return nil
	}
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"annotations": map[string]string{corev1.ObjectTTLAnnotationKey: want}}})
	if err != nil {
		return err
	}
	controllers.About(ctx, "Node", node)
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fmt.Errorf("annotating the node with how long it may keep what it read: %w", err)
	}
	return nil
}
