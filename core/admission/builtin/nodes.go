// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// taintNodesByCondition makes new nodes not ready until a controller finds them
// ready: otherwise pods would be placed on a node in the moment before.
type taintNodesByCondition struct{}

func (taintNodesByCondition) Name() string { return "TaintNodesByCondition" }

func (taintNodesByCondition) Handles(r *admission.Request) bool {
	return reading.On("", "nodes", "", admission.Create).Handles(r)
}

func (taintNodesByCondition) Mutate(_ context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.Node](r.Object)
	if err != nil {
		return admission.Forbidden(r, err)
	}
	if slices.ContainsFunc(given.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady && t.Effect == corev1.TaintEffectNoSchedule
	}) {
		return nil
	}
	node := reading.Copied(given)
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	r.Object.SetVersioned(node)
	return nil
}

// podTopologyLabels copies a node's zone and region to the pods that are placed
// on it, so that the downward API can tell a pod where it is.
type podTopologyLabels struct {
	nodes listers.NodeLister
	warm  reading.Warm
}

func newPodTopologyLabels(d Deps) *podTopologyLabels {
	nodes := d.Informers.Core().V1().Nodes()
	return &podTopologyLabels{nodes.Lister(), reading.WarmOf(d.Warm, nodes.Informer())}
}

func (*podTopologyLabels) Name() string { return "PodTopologyLabels" }

func (*podTopologyLabels) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create).Handles(r) || reading.On("", "pods", "binding", admission.Create).Handles(r)
}

func (p *podTopologyLabels) Mutate(ctx context.Context, r *admission.Request) error {
	if r.Subresource == "binding" {
		binding, err := reading.Typed[*corev1.Binding](r.Object)
		if err != nil || binding.Target.Kind != "Node" {
			return err
		}
		labels, err := p.labels(ctx, r, binding.Target.Name)
		if err != nil || contains(binding.Labels, labels) {
			return err
		}
		binding = reading.Copied(binding)
		binding.Labels = merged(binding.Labels, labels)
		r.Object.SetVersioned(binding)
		return nil
	}
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil || pod.Spec.NodeName == "" {
		return err
	}
	labels, err := p.labels(ctx, r, pod.Spec.NodeName)
	if err != nil || contains(pod.Labels, labels) {
		return err
	}
	pod = reading.Copied(pod)
	pod.Labels = merged(pod.Labels, labels)
	r.Object.SetVersioned(pod)
	return nil
}

// labels of a node that is not known are none.
func (p *podTopologyLabels) labels(ctx context.Context, r *admission.Request, node string) (map[string]string, error) {
	if err := p.warm.Wait(ctx, r); err != nil {
		return nil, err
	}
	n, err := p.nodes.Get(node)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, k := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if v, ok := n.Labels[k]; ok {
			found[k] = v
		}
	}
	return found, nil
}

func contains(all, some map[string]string) bool {
	for k, v := range some {
		if has, ok := all[k]; !ok || has != v {
			return false
		}
	}
	return true
}

func merged(into, from map[string]string) map[string]string {
	if into == nil {
		into = map[string]string{}
	}
	for k, v := range from {
		into[k] = v
	}
	return into
}
