// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/wasmplane/wasmplane/core/registry"
)

// proxyPod passes a request on to a port of a pod: NAME, NAME:PORT or SCHEME:NAME:PORT.
func (c *connection) proxyPod(path string) error {
	urlScheme, name, port, ok := utilnet.SplitSchemeNamePort(c.Info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", c.Info.Name))
	}
	pod, err := c.tunnel.registries.ReadPod(c.Req.Context(), c.Info.Namespace, name)
	if err != nil {
		return err
	}
	for i := 0; port == "" && i < len(pod.Spec.Containers); i++ {
		if ports := pod.Spec.Containers[i].Ports; len(ports) > 0 {
			port = strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	ip := net.ParseIP(pod.Status.PodIP)
	if ip == nil || !ip.IsGlobalUnicast() {
		return apierrors.NewBadRequest(errLoopback.Error())
	}
	return c.proxy(&url.URL{Scheme: urlScheme, Host: hostPort(pod.Status.PodIP, port), Path: path}, c.tunnel.backends.pods)
}

func hostPort(host, port string) string {
	if port != "" {
		return net.JoinHostPort(host, port)
	}
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

func (c *connection) proxy(location *url.URL, transport http.RoundTripper) error {
	c.upgrade(location, transport, false).ServeHTTP(c.W, c.Req)
	return nil
}

// proxyNode passes a request on to a kubelet, or to another port of its node.
func (c *connection) proxyNode(path string) error {
	urlScheme, name, port, ok := utilnet.SplitSchemeNamePort(c.Info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", c.Info.Name))
	}
	location, err := c.node(name)
	if err != nil {
		return err
	}
	transport := c.tunnel.backends.kubelet.Transport()
	if port != "" && port != location.Port() {
		address, err := proxyable(c.Req.Context(), location.Hostname())
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		location = &url.URL{Scheme: urlScheme, Host: net.JoinHostPort(address, port)}
		transport = c.tunnel.backends.pods
	}
	location.Path = path
	return c.proxy(location, transport)
}

// proxyService passes a request on to one of a Service's ready endpoints.
func (c *connection) proxyService(path string) error {
	urlScheme, name, port, ok := utilnet.SplitSchemeNamePort(c.Info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", c.Info.Name))
	}
	service, err := registry.Read[*corev1.Service](c.Req.Context(), c.tunnel.registries, schema.GroupResource{Resource: "services"},
		c.Info.Namespace, name)
	if err != nil {
		return err
	}
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == number })
		if i < 0 {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
		}
		port = service.Spec.Ports[i].Name
	}
	host, err := c.endpoint(name, port)
	if err != nil {
		return err
	}
	return c.proxy(&url.URL{Scheme: urlScheme, Host: host, Path: path}, c.tunnel.backends.pods)
}

// endpoint picks a ready address of a Service that has the port.
func (c *connection) endpoint(service, port string) (string, error) {
	reg, ok := c.tunnel.registries.For(discoveryv1.Resource("endpointslices"))
	if !ok {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service))
	}
	list, err := reg.List(c.Req.Context(), &registry.Request{Version: "v1", Namespace: c.Info.Namespace},
		registry.ListOptions{Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})})
	if err != nil {
		return "", err
	}
	var hosts []string
	for _, item := range list.Items {
		versioned, err := item.Object.Versioned()
		if err != nil {
			return "", apierrors.NewInternalError(err)
		}
		if s, ok := versioned.(*discoveryv1.EndpointSlice); ok {
			hosts = append(hosts, c.readyHosts(s, port)...)
		}
	}
	if len(hosts) == 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service))
	}
	return hosts[rand.IntN(len(hosts))], nil
}

// readyHosts are a slice's ready addresses with the port. Only pods count, at
// the address that the pod has: whoever may write an EndpointSlice must not be
// able to point the server anywhere.
func (c *connection) readyHosts(s *discoveryv1.EndpointSlice, port string) []string {
	var number string
	for _, p := range s.Ports {
		if p.Port != nil && (p.Name == nil && port == "" || p.Name != nil && *p.Name == port || port == "" && len(s.Ports) == 1) {
			number = strconv.Itoa(int(*p.Port))
		}
	}
	if number == "" {
		return nil
	}
	var hosts []string
	for _, e := range s.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready || e.TargetRef == nil || e.TargetRef.Kind != "Pod" || len(e.Addresses) == 0 {
			continue
		}
		pod, err := c.tunnel.registries.ReadPod(c.Req.Context(), s.Namespace, e.TargetRef.Name)
		if err != nil || !slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == e.Addresses[0] }) {
			continue
		}
		if ip := net.ParseIP(e.Addresses[0]); ip != nil && ip.IsGlobalUnicast() {
			hosts = append(hosts, net.JoinHostPort(e.Addresses[0], number))
		}
	}
	return hosts
}
