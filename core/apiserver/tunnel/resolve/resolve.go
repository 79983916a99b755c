// SPDX-License-Identifier: Apache-2.0

// Package resolve says where the server itself reaches a Service that a webhook or a conversion names: at one of its
// endpoints, so that the server's machine needs no rules for Services, or at the Service's own address where it has no
// endpoints that the server knows.
package resolve

import (
	"errors"
	"fmt"
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Resolver implements webhook.ServiceResolver.
type Resolver struct {
	services corelisters.ServiceLister
	slices   proxy.EndpointSliceGetter
}

// New makes a Resolver that knows what the informers have seen.
func New(f informers.SharedInformerFactory) (*Resolver, error) {
	slices, err := proxy.NewEndpointSliceIndexerGetter(f.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, fmt.Errorf("resolve Services for webhooks: %w", err)
	}
	return &Resolver{services: f.Core().V1().Services().Lister(), slices: slices}, nil
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (r *Resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	endpoint, err := proxy.ResolveEndpoint(r.services, r.slices, namespace, name, port)
	if err == nil {
		return endpoint, nil
	}
	address, clusterErr := proxy.ResolveCluster(r.services, namespace, name, port)
	if clusterErr != nil {
		return nil, fmt.Errorf("find the Service %s/%s: %w", namespace, name, errors.Join(err, clusterErr))
	}
	return address, nil
}
