// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typeddiscovery "k8s.io/client-go/kubernetes/typed/discovery/v1"
)

// counted is a client whose creations and updates of slices are counted.
type counted struct {
	kubernetes.Interface
	writes *writes
}

// DiscoveryV1 is the client's, counted.
func (c counted) DiscoveryV1() typeddiscovery.DiscoveryV1Interface {
	return countedDiscovery{c.Interface.DiscoveryV1(), c.writes}
}

type countedDiscovery struct {
	typeddiscovery.DiscoveryV1Interface
	writes *writes
}

// EndpointSlices is the client's, counted.
func (c countedDiscovery) EndpointSlices(namespace string) typeddiscovery.EndpointSliceInterface {
	return countedSlices{c.DiscoveryV1Interface.EndpointSlices(namespace), c.writes}
}

type countedSlices struct {
	typeddiscovery.EndpointSliceInterface
	writes *writes
}

// Create creates and counts.
func (c countedSlices) Create(ctx context.Context, s *discoveryv1.EndpointSlice,
	o metav1.CreateOptions,
) (*discoveryv1.EndpointSlice, error) {
	made, err := c.EndpointSliceInterface.Create(ctx, s, o)
	if err == nil {
		c.writes.add(made)
	}
	return made, err
}

// Update updates and counts.
func (c countedSlices) Update(ctx context.Context, s *discoveryv1.EndpointSlice,
	o metav1.UpdateOptions,
) (*discoveryv1.EndpointSlice, error) {
	made, err := c.EndpointSliceInterface.Update(ctx, s, o)
	if err == nil {
		c.writes.add(made)
	}
	return made, err
}
