package wire

import (
	"fmt"
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// serviceResolver says where the server itself reaches a Service that is named
// as a webhook: one of its endpoints, so that the server's machine needs no rules
// for Services, or the Service's own address where it has no endpoints of ours.
// It implements webhook.ServiceResolver.
type serviceResolver struct {
	services corelisters.ServiceLister
	slices   proxy.EndpointSliceGetter
}

func newServiceResolver(f informers.SharedInformerFactory) (*serviceResolver, error) {
	slices, err := proxy.NewEndpointSliceIndexerGetter(f.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, fmt.Errorf("resolve Services for webhooks: %w", err)
	}
	return &serviceResolver{services: f.Core().V1().Services().Lister(), slices: slices}, nil
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (r *serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	service, err := r.services.Services(namespace).Get(name)
	if err != nil {
		return nil, fmt.Errorf("find the Service of a webhook: %w", err)
	}
	if service.Spec.Type == "ExternalName" || len(service.Spec.Selector) == 0 {
		return proxy.ResolveCluster(r.services, namespace, name, port)
	}
	return proxy.ResolveEndpoint(r.services, r.slices, namespace, name, port)
}
