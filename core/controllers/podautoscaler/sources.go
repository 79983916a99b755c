// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

const (
	resourceMetrics = "/apis/metrics.k8s.io/v1beta1"
	customMetrics   = "custom.metrics.k8s.io"
	externalMetrics = "/apis/external.metrics.k8s.io/v1beta1"
	// answerMost bounds what a metrics server may send.
	answerMost = 32 << 20
	// usualWindow is that of custom metrics whose server names none.
	usualWindow = time.Minute
)

// sources are the servers of the three metrics APIs, as the cluster's API leads to them.
type sources struct {
	discovery discovery.DiscoveryInterface
}

// read asks for one metric. pods are those of the target.
func (s *sources) read(ctx context.Context, namespace string, spec *autoscalingv2.MetricSpec, pods labels.Selector) reading {
	var r reading
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		r.pods, r.err = s.resource(ctx, namespace, spec.Resource.Name, "", pods)
	case autoscalingv2.ContainerResourceMetricSourceType:
		r.pods, r.err = s.resource(ctx, namespace, spec.ContainerResource.Name, spec.ContainerResource.Container, pods)
	case autoscalingv2.PodsMetricSourceType:
		r.pods, r.err = s.ofPods(ctx, namespace, spec.Pods.Metric, pods)
	case autoscalingv2.ObjectMetricSourceType:
		r.total, r.err = s.ofObject(ctx, namespace, spec.Object)
	case autoscalingv2.ExternalMetricSourceType:
		r.total, r.err = s.external(ctx, namespace, spec.External.Metric)
	}
	return r
}

func (s *sources) resource(ctx context.Context, namespace string, name corev1.ResourceName, container string,
	pods labels.Selector,
) (samples, error) {
	var list struct {
		Items []struct {
			Metadata   struct{ Name string }
			Timestamp  metav1.Time
			Window     metav1.Duration
			Containers []struct {
				Name  string
				Usage map[corev1.ResourceName]resource.Quantity
			}
		}
	}
	err := s.get(ctx, &list, params{"labelSelector": pods.String()}, resourceMetrics, "namespaces", namespace, "pods")
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	out := make(samples, len(list.Items))
	for _, pod := range list.Items {
		sum, known := int64(0), len(pod.Containers) > 0 && container == ""
		for _, c := range pod.Containers {
			if container != "" && container != c.Name {
				continue
			}
			value, has := c.Usage[name]
			if known = has; !has {
				break // half of a pod is not known
			}
			sum = add(sum, value.MilliValue())
		}
		if known {
			out[pod.Metadata.Name] = sample{value: sum, at: pod.Timestamp.Time, window: pod.Window.Duration}
		}
	}
	return out, nil
}

// metricValues are those of custom metrics in both of their versions.
type metricValues struct {
	Items []struct {
		DescribedObject struct{ Name string }
		Timestamp       metav1.Time
		Window          *int64 // v1beta1
		WindowSeconds   *int64 // v1beta2
		Value           resource.Quantity
	}
}

func (s *sources) ofPods(ctx context.Context, namespace string, metric autoscalingv2.MetricIdentifier,
	pods labels.Selector,
) (samples, error) {
	var list metricValues
	if err := s.custom(ctx, &list, metric, params{"labelSelector": pods.String()}, "namespaces", namespace, "pods", "*",
		metric.Name); err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	out := make(samples, len(list.Items))
	for _, m := range list.Items {
		window := usualWindow
		for _, given := range []*int64{m.Window, m.WindowSeconds} {
			if given != nil {
				window = time.Duration(*given) * time.Second
			}
		}
		out[m.DescribedObject.Name] = sample{value: m.Value.MilliValue(), at: m.Timestamp.Time, window: window}
	}
	return out, nil
}

func (s *sources) ofObject(ctx context.Context, namespace string, of *autoscalingv2.ObjectMetricSource) (int64, error) {
	path := []string{"namespaces", namespace, "metrics", of.Metric.Name}
	gvk := schema.FromAPIVersionAndKind(of.DescribedObject.APIVersion, of.DescribedObject.Kind)
	// An autoscaler sees its own namespace, whatever name the reference has.
	if gvk.GroupKind() != (schema.GroupKind{Kind: "Namespace"}) {
		found, err := s.resourceOf(gvk)
		if err != nil {
			return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
		}
		path = []string{"namespaces", namespace, found.GroupResource().String(), of.DescribedObject.Name, of.Metric.Name}
	}
	var list metricValues
	if err := s.custom(ctx, &list, of.Metric, params{}, path...); err != nil {
		return 0, err
	}
	if len(list.Items) != 1 {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: the custom metrics API server returned %d results when we asked for exactly one", len(list.Items))
	}
	return list.Items[0].Value.MilliValue(), nil
}

// custom asks in the version that the server of custom metrics prefers.
func (s *sources) custom(ctx context.Context, into *metricValues, metric autoscalingv2.MetricIdentifier, query params,
	path ...string,
) error {
	selector, err := metav1.LabelSelectorAsSelector(metric.Selector)
	if err != nil {
		return err
	}
	if metric.Selector != nil {
		query["metricLabelSelector"] = selector.String()
	}
	var group metav1.APIGroup
	if err = s.get(ctx, &group, nil, "/apis", customMetrics); err == nil {
		err = s.get(ctx, into, query, append([]string{"/apis", customMetrics, group.PreferredVersion.Version}, path...)...)
	} else if apierrors.IsNotFound(err) {
		err = fmt.Errorf("no custom metrics API (%s) registered", customMetrics)
	}
	if err != nil {
		return fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return nil
}

func (s *sources) external(ctx context.Context, namespace string, metric autoscalingv2.MetricIdentifier) (int64, error) {
	selector, err := metav1.LabelSelectorAsSelector(metric.Selector)
	if err != nil {
		return 0, err
	}
	var list struct {
		Items []struct{ Value resource.Quantity }
	}
	if err := s.get(ctx, &list, params{"labelSelector": selector.String()}, externalMetrics, "namespaces", namespace,
		metric.Name); err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return 0, errors.New("unable to fetch metrics from external metrics API: no metrics returned from external metrics API")
	}
	var sum int64
	for _, m := range list.Items {
		sum = add(sum, m.Value.MilliValue())
	}
	return sum, nil
}

type params map[string]string

// get reads JSON, which every server of metrics speaks.
func (s *sources) get(ctx context.Context, into any, query params, path ...string) error {
	for _, segment := range path[1:] {
		if bad := rest.IsValidPathSegmentName(segment); len(bad) > 0 {
			return fmt.Errorf("invalid name %q: %s", segment, bad[0])
		}
	}
	req := s.discovery.RESTClient().Get().AbsPath(path...).SetHeader("Accept", runtime.ContentTypeJSON)
	for k, v := range query {
		req = req.Param(k, v)
	}
	body, err := req.Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, answerMost+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case len(data) > answerMost:
		return fmt.Errorf("the answer has more than %d bytes", answerMost)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("the answer cannot be read: %w", err)
	}
	return nil
}

// resourceOf finds the resource of a kind, in the version that is named or in
// whichever its group prefers.
func (s *sources) resourceOf(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	found, err := s.inVersion(gvk)
	if err == nil || !noSuch(err) || gvk.Group == "" {
		return found, err
	}
	groups, groupsErr := s.discovery.ServerGroups()
	if groupsErr != nil {
		return found, groupsErr
	}
	for _, g := range groups.Groups {
		if g.Name != gvk.Group {
			continue
		}
		for _, v := range g.Versions {
			if other, err := s.inVersion(gvk.GroupKind().WithVersion(v.Version)); err == nil || !noSuch(err) {
				return other, err
			}
		}
	}
	return found, err
}
