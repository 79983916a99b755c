// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/readiness"
	"github.com/wasmplane/wasmplane/core/run"
)

// repairEvery is how often claims are compared with Services, as upstream does.
const repairEvery = 3 * time.Minute

// repairServices keeps claims of cluster IPs and node ports in step with Services.
func (r *resources) repairServices(b base, begun <-chan struct{}, working *readiness.Milestone) func(context.Context) error {
	return func(ctx context.Context) error {
		if run.Await(ctx, begun) {
			working.Reach()
			r.registries.RepairServices(ctx, serviceCluster{b.internal.Kube}, repairEvery)
		}
		return nil
	}
}

// serviceCluster implements services.Cluster by consistent lists.
type serviceCluster struct{ kube kubernetes.Interface }

// Services implements services.Cluster.
func (c serviceCluster) Services(ctx context.Context) ([]corev1.Service, error) {
	l, err := c.kube.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// IPAddresses implements services.Cluster.
func (c serviceCluster) IPAddresses(ctx context.Context) ([]networkingv1.IPAddress, error) {
	l, err := c.kube.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}
