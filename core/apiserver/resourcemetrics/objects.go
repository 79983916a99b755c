// SPDX-License-Identifier: Apache-2.0

package resourcemetrics

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Nodes are the NodeMetrics of the nodes that a selector matches, or of the one
// that has a name. Nodes of which nothing is known are left out.
func (s *Source) Nodes(ctx context.Context, _, name string, selector labels.Selector) ([]runtime.Object, error) {
	return s.objects(ctx, "Node", "", name, selector, func(o runtime.Object) runtime.Object {
		if node, ok := o.(*corev1.Node); ok {
			return s.node(node)
		}
		return nil
	})
}

// Pods are the PodMetrics of the pods of a namespace, or of all, that a selector
// matches, or of the one that has a name. Pods of which nothing is known are left out.
func (s *Source) Pods(ctx context.Context, namespace, name string, selector labels.Selector) ([]runtime.Object, error) {
	return s.objects(ctx, "Pod", namespace, name, selector, func(o runtime.Object) runtime.Object {
		if pod, ok := o.(*corev1.Pod); ok {
			return s.pod(pod)
		}
		return nil
	})
}

func (s *Source) objects(ctx context.Context, kind, namespace, name string, selector labels.Selector,
	build func(runtime.Object) runtime.Object,
) ([]runtime.Object, error) {
	s.look()
	of := corev1.SchemeGroupVersion.WithKind(kind)
	var found []runtime.Object
	var err error
	if name != "" {
		found, err = s.one(ctx, of, namespace, name)
	} else {
		found, err = s.cfg.Cluster.List(ctx, of, namespace, selector)
	}
	if err != nil {
		return nil, err
	}
	var out []runtime.Object
	for _, o := range found {
		if m := build(o); m != nil {
			out = append(out, m)
		}
	}
	return out, nil
}

// one is the object of a name, or nothing.
func (s *Source) one(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) ([]runtime.Object, error) {
	o, err := s.cfg.Cluster.Get(ctx, kind, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []runtime.Object{o}, nil
}

func (s *Source) meta(of metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: of.GetName(), Namespace: of.GetNamespace(), Labels: of.GetLabels(), CreationTimestamp: metav1.NewTime(s.cfg.Now()),
	}
}

func (s *Source) node(node *corev1.Node) runtime.Object {
	last, earlier := s.of(node.Name)
	if last == nil || earlier == nil {
		return nil
	}
	u, ok := rate(&last.node, &earlier.node)
	if !ok {
		return nil
	}
	return &metricsv1beta1.NodeMetrics{
		TypeMeta:   metav1.TypeMeta{APIVersion: metricsv1beta1.SchemeGroupVersion.String(), Kind: "NodeMetrics"},
		ObjectMeta: s.meta(node),
		Timestamp:  metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window}, Usage: u.resources(),
	}
}

// pod is nil unless each of its containers is known: half a pod would look like one
// that uses half.
func (s *Source) pod(pod *corev1.Pod) runtime.Object {
	last, earlier := s.of(pod.Spec.NodeName)
	if last == nil || pod.Status.Phase != corev1.PodRunning {
		return nil
	}
	name := podName{pod.Namespace, pod.Name}
	m := &metricsv1beta1.PodMetrics{
		TypeMeta:   metav1.TypeMeta{APIVersion: metricsv1beta1.SchemeGroupVersion.String(), Kind: "PodMetrics"},
		ObjectMeta: s.meta(pod),
	}
	for container, p := range last.pods[name] {
		var before *point
		if earlier != nil {
			before = earlier.pods[name][container]
		}
		if p.has == 0 {
			continue // it has started, and has not been measured
		}
		u, ok := rate(p, before)
		if !ok {
			return nil
		}
		if m.Timestamp.IsZero() || u.at.Before(m.Timestamp.Time) {
			m.Timestamp, m.Window.Duration = metav1.NewTime(u.at), u.window
		}
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: container, Usage: u.resources()})
	}
	if len(m.Containers) == 0 {
		return nil
	}
	slices.SortFunc(m.Containers, func(a, b metricsv1beta1.ContainerMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return m
}
