// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typeddiscovery "k8s.io/client-go/kubernetes/typed/discovery/v1"
)

// counted is a client whose creations and updates of slices are counted, and whose writes
// end with the controller. The library asks without a context: where the API does not
// answer, what it asked for would wait for as long as it takes, and be done after another
// process leads.
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
func (c countedSlices) Create(_ context.Context, s *discoveryv1.EndpointSlice,
	o metav1.CreateOptions,
) (*discoveryv1.EndpointSlice, error) {
	made, err := c.EndpointSliceInterface.Create(c.writes.until(), s, o) //nolint:contextcheck // the library that calls has none to give
	if err == nil {
		c.writes.add(made)
	}
	return made, err
}

// Update updates and counts.
func (c countedSlices) Update(_ context.Context, s *discoveryv1.EndpointSlice,
	o metav1.UpdateOptions,
) (*discoveryv1.EndpointSlice, error) {
	made, err := c.EndpointSliceInterface.Update(c.writes.until(), s, o) //nolint:contextcheck // the library that calls has none to give
	if err == nil {
		c.writes.add(made)
	}
	return made, err
}

// Delete deletes.
func (c countedSlices) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	return c.EndpointSliceInterface.Delete(c.writes.until(), name, o) //nolint:contextcheck // the library that calls has none to give
}
