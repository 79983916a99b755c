// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/lru"

	"github.com/wasmplane/wasmplane/core/dial"
)

const (
	// maxClients is how many different webhooks keep their connections.
	maxClients = 200
	// idle connections to Services end soon, so that the load follows the endpoints.
	idleFor = 30 * time.Second
	dialFor = 10 * time.Second
)

// clients holds one HTTP client, with its connections, per place and trust.
type clients struct {
	services resolver
	// credentials say as whom a place is asked; nil: as nobody.
	credentials webhookutil.AuthenticationInfoResolver
	to          dial.Policy
	mu          sync.Mutex
	byConfig    *lru.Cache
}

// client of one webhook.
type client struct {
	url       string // without a query
	http      *http.Client
	transport *http.Transport // below what adds credentials
}

func newClients(kube kubernetes.Interface, credentials webhookutil.AuthenticationInfoResolver, to dial.Policy) *clients {
	return &clients{
		services: resolver{kube}, credentials: credentials, to: to,
		byConfig: lru.NewWithEvictionFunc(maxClients, func(_ lru.Key, c any) {
			c.(*client).transport.CloseIdleConnections()
		}),
	}
}

// of finds or makes the client of a webhook.
func (c *clients) of(cc *admissionregistrationv1.WebhookClientConfig) (*client, error) {
	key, err := json.Marshal(cc)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.byConfig.Get(string(key)); ok {
		return known.(*client), nil
	}
	made, err := c.make(cc)
	if err != nil {
		return nil, err
	}
	c.byConfig.Add(string(key), made)
	return made, nil
}

func (c *clients) make(cc *admissionregistrationv1.WebhookClientConfig) (*client, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(cc.CABundle) > 0 {
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(cc.CABundle) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	connect := c.to.Within(dialFor)
	transport := &http.Transport{
		TLSClientConfig: trust, DialContext: connect, TLSHandshakeTimeout: dialFor,
		MaxIdleConnsPerHost: 32, IdleConnTimeout: idleFor, MaxResponseHeaderBytes: 64 << 10,
		DisableCompression: true, // a small answer must not unfold into a large one
	}
	out := &client{transport: transport, http: &http.Client{
		Transport: transport,
		// A webhook's place is what its configuration says. It must not send the
		// server, which may reach more than it does, anywhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	switch {
	case cc.Service != nil:
		c.service(cc.Service, out, transport, connect)
	case cc.URL != nil:
		u, err := url.Parse(*cc.URL)
		if err != nil {
			return nil, fmt.Errorf("Unparsable URL: %w", err) //nolint:staticcheck // upstream's words
		}
		out.url = u.Scheme + "://" + u.Host + u.EscapedPath()
		transport.Proxy = http.ProxyFromEnvironment
		// HTTP/2 would send everything over one connection, past a load balancer.
		transport.ForceAttemptHTTP2 = isLocal(u.Hostname())
	default:
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	return out, c.identify(cc, out)
}

// identify lets the client show the credentials that its place is to get. A
// redirect, which would carry them elsewhere, is never followed.
func (c *clients) identify(cc *admissionregistrationv1.WebhookClientConfig, to *client) error {
	if c.credentials == nil {
		return nil
	}
	u, err := url.Parse(to.url)
	if err != nil {
		return err
	}
	var config *rest.Config
	if s := cc.Service; s != nil {
		config, err = c.credentials.ClientConfigForService(s.Name, s.Namespace, int(servicePort(s)))
	} else {
		config, err = c.credentials.ClientConfigFor(u.Host)
	}
	if err != nil {
		return fmt.Errorf("find the credentials for %s: %w", u.Host, err)
	}
	trust, err := rest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("read the credentials for %s: %w", u.Host, err)
	}
	if trust != nil {
		to.transport.TLSClientConfig.Certificates = trust.Certificates
		to.transport.TLSClientConfig.GetClientCertificate = trust.GetClientCertificate
	}
	if to.http.Transport, err = rest.HTTPWrappersForConfig(config, to.transport); err != nil {
		return fmt.Errorf("read the credentials for %s: %w", u.Host, err)
	}
	return nil
}

// servicePort is where a Service's webhook is served.
func servicePort(s *admissionregistrationv1.ServiceReference) int32 {
	if s.Port != nil {
		return *s.Port
	}
	return 443
}

// service makes the client speak to a Service by its name, over connections to
// one of its endpoints.
func (c *clients) service(s *admissionregistrationv1.ServiceReference, out *client, transport *http.Transport,
	connect func(context.Context, string, string) (net.Conn, error),
) {
	port := servicePort(s)
	name := s.Name + "." + s.Namespace + ".svc"
	transport.TLSClientConfig.ServerName = name
	host := net.JoinHostPort(name, strconv.Itoa(int(port)))
	out.url = "https://" + host
	if s.Path != nil {
		out.url += "/" + strings.TrimPrefix(*s.Path, "/")
	}
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		addr, err := c.services.resolve(ctx, s.Namespace, s.Name, port)
		if err != nil {
			return nil, err
		}
		return connect(ctx, network, addr)
	}
}

func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// resolver finds where a Service is served.
type resolver struct{ kube kubernetes.Interface }

// resolve picks one ready endpoint. It reads from the server, not from an
// informer: it runs once per connection, and a cluster has many endpoints.
func (r resolver) resolve(ctx context.Context, namespace, name string, port int32) (string, error) {
	svc, err := r.kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	var served *corev1.ServicePort
	for i := range svc.Spec.Ports {
		if svc.Spec.Ports[i].Port == port {
			served = &svc.Spec.Ports[i]
		}
	}
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
	case served == nil:
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", port, name))
	}
	slices, err := r.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		return "", err
	}
	ready := endpoints(slices.Items, served.Name)
	if len(ready) == 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	return ready[rand.IntN(len(ready))], nil //nolint:gosec // any one will do
}

// endpoints that are ready, as addresses of the port of that name.
func endpoints(slices []discoveryv1.EndpointSlice, port string) (out []string) {
	for i := range slices {
		for _, p := range slices[i].Ports {
			if p.Port == nil || p.Name == nil && port != "" || p.Name != nil && *p.Name != port {
				continue
			}
			for _, e := range slices[i].Endpoints {
				if (e.Conditions.Ready == nil || *e.Conditions.Ready) && len(e.Addresses) > 0 && slices[i].AddressType != discoveryv1.AddressTypeFQDN {
					out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	return out
}
