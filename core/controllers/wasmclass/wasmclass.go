// SPDX-License-Identifier: Apache-2.0

// Package wasmclass makes the RuntimeClass under which any image of a pod may be a WebAssembly module,
// once in the life of a cluster, when the first node says that it has the handler for it. Whoever deletes the class
// has it deleted for good.
package wasmclass

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	// Name of the class, and of its handler.
	Name = "wasm"
	// MarkerName of the ConfigMap in kube-system by which it is remembered that the class was made. Whoever
	// deletes the marker has the class made again.
	MarkerName = "wasm-runtime-class"
)

// Controller makes the class.
type Controller struct {
	client kubernetes.Interface
	loop   *controllers.Loop[string]
}

// New makes the controller.
func New(env controllers.Env) *Controller {
	c := &Controller{client: env.Client}
	c.loop = controllers.NewLoop(env, "wasm-class-controller", 1, c.reconcile)
	c.loop.Watch(env.Informers.Core().V1().Nodes().Informer(), controllers.Changes(func(old, current metav1.Object) {
		if offers(current) && !offers(old) {
			c.loop.Add(Name)
		}
	}))
	return c
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func offers(o metav1.Object) bool {
	node, ok := o.(*corev1.Node)
	return ok && slices.ContainsFunc(node.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool { return h.Name == Name })
}

func (c *Controller) reconcile(ctx context.Context, _ string) error {
	markers := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	if _, err := markers.Get(ctx, MarkerName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: Name}, Handler: Name}
	made, err := c.client.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make runtime class %s: %w", Name, err)
	}
	if err == nil {
		controllers.Did(ctx, "made the class of WebAssembly modules", "RuntimeClass", made)
	}
	// Last: after a crash in between, the class is found and the marker made.
	_, err = markers.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: MarkerName},
		Data:       map[string]string{"made": Name},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("remember that runtime class %s was made: %w", Name, err)
	}
	return nil
}
