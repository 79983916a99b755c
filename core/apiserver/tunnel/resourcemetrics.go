// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
)

// ResourceMetrics asks kubelets for what their node and its pods use.
type ResourceMetrics struct{ backends *backends }

// NewResourceMetrics makes a reader of kubelets' /metrics/resource.
func NewResourceMetrics(k *KubeletClient) *ResourceMetrics {
	return &ResourceMetrics{backends: newBackends(k)}
}

// Page is what the kubelet answers. The caller bounds how much of it is read, and closes it.
func (m *ResourceMetrics) Page(ctx context.Context, node *corev1.Node) (io.ReadCloser, error) {
	if m.backends == nil {
		return nil, errNoNodes()
	}
	at, err := m.backends.client.URL(node)
	if err != nil {
		return nil, err
	}
	at.Path = "/metrics/resource"
	// One process may be the kubelet of many nodes; others pass the question over.
	at.RawQuery = url.Values{"node": {node.Name}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask node %s: %w", node.Name, err)
	}
	// The transport itself follows no redirect.
	res, err := m.backends.kubelet.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return nil, fmt.Errorf("the kubelet of node %s answers %s", node.Name, res.Status)
	}
	return res.Body, nil
}
