// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/dial"
)

// KubeletClient says how to reach the kubelets.
type KubeletClient struct {
	// TLS has our client certificate and whom to trust at the moment. It answers the same
	// pointer as long as both are the same: by another one, connections are made anew.
	TLS func() *tls.Config
	// AddressTypes of a node that are tried, in order; nil = InternalIP,
	// ExternalIP, Hostname, InternalDNS, ExternalDNS.
	AddressTypes []corev1.NodeAddressType
	// Dial connects to kubelets; nil = by an operator's policy: their addresses stand in objects.
	Dial dial.Connect
	// DialPods connects to pods; nil = as Dial does.
	DialPods dial.Connect
}

// backends are the transports for what the server passes requests on to.
type backends struct {
	client  *KubeletClient
	kubelet *dial.Renewed[*tls.Config]
	// unverified skips the check of a kubelet's certificate: a client may ask
	// for it, for logs only, where it accepts that they may be forged.
	unverified *dial.Renewed[*tls.Config]
	// pods: what runs in them has a certificate of nobody we know.
	pods *http.Transport
}

func newBackends(k *KubeletClient) *backends {
	if k == nil {
		return nil
	}
	connect := k.Dial
	if connect == nil {
		connect = dial.Operator(nil).Context()
	}
	pods := k.DialPods
	if pods == nil {
		pods = connect
	}
	transport := func(cfg *tls.Config, connect dial.Connect) *http.Transport {
		return &http.Transport{
			DialContext:         dial.ToTheEnd(connect), // streams pass through: what a kubelet says last is the exit code
			TLSClientConfig:     cfg,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 4,
			// As much as a client may send.
			MaxResponseHeaderBytes: 1 << 20,
			IdleConnTimeout:        90 * time.Second,
			// Upgrades need HTTP/1.1, and a stream apiece is what logs are anyway.
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		}
	}
	b := &backends{
		client:  k,
		kubelet: dial.NewRenewed(k.TLS, func(verified *tls.Config) *http.Transport { return transport(verified, connect) }),
		unverified: dial.NewRenewed(k.TLS, func(verified *tls.Config) *http.Transport {
			lax := verified.Clone()
			lax.InsecureSkipVerify = true //nolint:gosec // asked for by the client, see the field
			return transport(lax, connect)
		}),
		pods: transport(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, pods), //nolint:gosec // see the field
	}
	return b
}

// URL is where a node's kubelet listens.
func (k *KubeletClient) URL(node *corev1.Node) (*url.URL, error) {
	types := k.AddressTypes
	if types == nil {
		types = []corev1.NodeAddressType{
			corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalDNS,
			corev1.NodeExternalDNS,
		}
	}
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		port = 10250
	}
	for _, t := range types {
		for _, a := range node.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return &url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, strconv.Itoa(int(port)))}, nil
			}
		}
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %s has no address yet at which its kubelet could be reached", node.Name))
}

// node finds a node's kubelet.
func (c *connection) node(name string) (*url.URL, error) {
	node, err := c.tunnel.registries.ReadNode(c.Req.Context(), name)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
		}
		return nil, err
	}
	return c.tunnel.backends.client.URL(node)
}

var errLoopback = errors.New("address not allowed")

// proxyable refuses addresses by which a client could reach what listens on the
// server's own machine or on its link. It returns the address to connect to: the
// name might lead elsewhere when it is asked for again.
func proxyable(ctx context.Context, host string) (string, error) {
	ips := []net.IP{net.ParseIP(host)}
	if ips[0] == nil {
		found, err := net.DefaultResolver.LookupIPAddr(ctx, host)
		if err != nil {
			return "", fmt.Errorf("resolve %s: %w", host, err)
		}
		if len(found) == 0 {
			return "", fmt.Errorf("resolve %s: it has no address", host)
		}
		ips = ips[:0]
		for _, a := range found {
			ips = append(ips, a.IP)
		}
	}
	for _, ip := range ips {
		if !ip.IsGlobalUnicast() {
			return "", errLoopback
		}
	}
	return ips[0].String(), nil
}
