// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// podsNode finds the node of a pod that is changed, for plugins that ask whether the node can follow.
type podsNode struct {
	nodes listers.NodeLister
	warm  reading.Warm
}

func newPodsNode(d Deps) podsNode {
	nodes := d.Informers.Core().V1().Nodes()
	return podsNode{nodes.Lister(), reading.WarmOf(d.Warm, nodes.Informer())}
}

// of waits until the nodes are known. Its errors are refusals of the request.
func (p podsNode) of(ctx context.Context, r *admission.Request, pod *corev1.Pod) (*corev1.Node, error) {
	if err := p.warm.Wait(ctx, r); err != nil {
		return nil, err
	}
	node, err := p.nodes.Get(pod.Spec.NodeName)
	switch {
	case apierrors.IsNotFound(err):
		return nil, admission.Forbidden(r, fmt.Errorf("node %q not found", pod.Spec.NodeName))
	case err != nil:
		return nil, admission.Forbidden(r, fmt.Errorf("failed to get node %q: %w", pod.Spec.NodeName, err))
	}
	return node, nil
}

// changedPod is what an update makes of a pod, and what it was.
func changedPod(r *admission.Request) (pod, old *corev1.Pod, err error) {
	if pod, err = reading.Typed[*corev1.Pod](r.Object); err != nil {
		return nil, nil, err
	}
	old, err = reading.Typed[*corev1.Pod](r.OldObject)
	return pod, old, err
}
