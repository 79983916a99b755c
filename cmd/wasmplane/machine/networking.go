// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/dns"
	"github.com/wasmplane/wasmplane/core/dns/announce"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/loadbalancer/neighbor"
	"github.com/wasmplane/wasmplane/core/proxy"
	"github.com/wasmplane/wasmplane/core/run"
)

// Networking makes Services reachable on this machine, by address and by name.
type Networking struct {
	component            *process.Component
	set                  *client.Set
	dnsConfig            *rest.Config
	service              *proxy.Proxy
	neighbor             *neighbor.Announcer // nil: nobody here answers for load balancer addresses
	informers            informers.SharedInformerFactory
	ownNode              informers.SharedInformerFactory
	proxyReady, dnsReady chan struct{}
}

// NewNetworking is the networking of the machine that c works at. The DNS has an
// identity of its own, or, where that is nil, works as the machine's node, which may not
// write EndpointSlices: the controllers announce it.
func NewNetworking(c *process.Component, dnsConfig *rest.Config) (*Networking, error) {
	set, err := client.New(c.Config)
	if err != nil {
		return nil, err
	}
	pods, err := config.ParseNetworks(c.Options.Config.Cluster.PodCIDR)
	if err != nil {
		return nil, fmt.Errorf("cluster.podCIDR: %w", err)
	}
	services, err := config.ParseNetworks(c.Options.Config.Cluster.ServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("cluster.serviceCIDR: %w", err)
	}
	n := &Networking{
		component: c, set: set, dnsConfig: dnsConfig, informers: informers.NewSharedInformerFactory(set.Kube, 0),
		ownNode:    ownNode(set.Kube, c.Options.Config.Node.Name),
		proxyReady: make(chan struct{}), dnsReady: make(chan struct{}),
	}
	if dnsConfig == nil {
		n.dnsConfig = c.Config
	}
	if !c.Options.Config.Proxy.Enabled {
		close(n.proxyReady)
		return n, nil
	}
	n.service, err = proxy.New(proxy.Config{
		Table: linuxhost.NamesOf(c.Options.Config.Cluster.Name).Table("services"), Node: c.Options.Config.Node.Name,
		Informers: n.informers, OwnNode: n.ownNode, PodCIDRs: pods, ServiceCIDRs: services, Log: c.Options.Logger,
		ReservedTCPPorts: ReservedPorts(c.Options.Config),
	})
	if err != nil {
		return nil, err
	}
	if err := c.Metrics.Register(n.service); err != nil {
		return nil, fmt.Errorf("register the proxy's metrics: %w", err)
	}
	if lb := c.Options.Config.LoadBalancer; lb.Enabled && lb.Announce {
		n.neighbor, err = neighbor.New(neighbor.Config{Node: c.Options.Config.Node.Name, Informers: n.informers, Log: c.Options.Logger})
	}
	return n, err
}

// Proxy routes Services, and answers for load balancer addresses on the machine's links.
func (n *Networking) Proxy(ctx context.Context) error {
	if n.service == nil {
		<-ctx.Done()
		return nil
	}
	watching, cancel := context.WithCancel(ctx)
	nodes := n.ownNode.Core().V1().Nodes().Lister() // its informer is made before the factory starts
	defer n.informers.Shutdown()
	defer n.ownNode.Shutdown()
	defer cancel()
	n.informers.Start(watching.Done())
	n.ownNode.Start(watching.Done())
	parts := []func(context.Context) error{n.service.Run, closeWhen(n.service.Ready(), n.proxyReady), n.proxyHealth(nodes)}
	if n.neighbor != nil {
		parts = append(parts, n.neighbor.Run)
	}
	return run.Parallel(parts...)(ctx)
}

// Status tells programs of this machine, at the port of the proxy's metrics, what upstream's proxy tells
// them: /proxyMode, its health, and its own metrics. Those of the other parts of the process are not for everybody.
func (n *Networking) Status(ctx context.Context) error {
	l, err := n.listen(ctx, "the proxy's status (proxy.metricsListen)", n.component.Options.Config.Proxy.MetricsListen, "127.0.0.1:10249")
	if err != nil {
		return err
	}
	if l == nil {
		<-ctx.Done()
		return nil
	}
	return n.service.ServeStatus(ctx, l)
}

// listen is Component.Listen, and nowhere without Services.
func (n *Networking) listen(ctx context.Context, what, configured, usual string) (net.Listener, error) {
	if n.service == nil {
		return nil, nil
	}
	return n.component.Listen(ctx, what, configured, usual)
}

// proxyHealth answers load balancers' and probes' questions about this node.
func (n *Networking) proxyHealth(nodes corelisters.NodeLister) func(context.Context) error {
	return func(ctx context.Context) error {
		l, err := n.listen(ctx, "the proxy's health (proxy.healthListen)", n.component.Options.Config.Proxy.HealthListen, ":10256")
		if err != nil {
			return err
		}
		if l == nil {
			<-ctx.Done()
			return nil
		}
		return n.service.ServeHealth(ctx, l, func() bool {
			node, err := nodes.Get(n.component.Options.Config.Node.Name)
			return err == nil && proxy.Stays(node)
		})
	}
}

// closeWhen closes one channel when another is closed.
func closeWhen(first <-chan struct{}, then chan<- struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-first:
			close(then)
			<-ctx.Done()
		case <-ctx.Done():
		}
		return nil
	}
}

// DNS answers names at the addresses that this node's pods have their gateways at.
func (n *Networking) DNS(ctx context.Context) error {
	if !n.component.Options.Config.DNS.Enabled {
		close(n.dnsReady)
		<-ctx.Done()
		return nil
	}
	return followPodCIDRs(ctx, n.set.Kube, n.component.Options.Config.Node.Name, func(ctx context.Context, own []netip.Prefix) error {
		return n.serveNames(ctx, announce.Addresses(own))
	})
}

// serveNames serves at addresses. The pod network, which the kubelet sets up, may come
// later than this.
func (n *Networking) serveNames(ctx context.Context, addresses []netip.Addr) error {
	clients := n.component.Options.Config.Cluster.PodNetworks()
	var listen []netip.AddrPort
	for _, a := range addresses {
		clients = append(clients, netip.PrefixFrom(a, a.BitLen()))
		listen = append(listen, netip.AddrPortFrom(a, 53))
	}
	upstream, err := resolvers(n.component.Options.Config.DNS.Upstream)
	if err != nil {
		return err
	}
	backoff := run.Backoff{First: 20 * time.Millisecond, Longest: time.Second}
	for {
		s, err := dns.New(dns.Config{
			Client: n.dnsConfig, Listen: listen, Domain: n.component.Options.Config.Cluster.Domain,
			Upstream: upstream, Clients: clients, Log: n.component.Options.Logger,
		})
		if err != nil {
			return err
		}
		err = run.Parallel(s.Run, func(ctx context.Context) error { return n.announce(ctx, s, addresses) })(ctx)
		if !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return err
		}
		if !backoff.Wait(ctx) {
			return nil
		}
	}
}

func resolvers(configured []string) ([]netip.AddrPort, error) {
	var out []netip.AddrPort
	for i, s := range configured {
		if addr, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.AddrPortFrom(addr, 53))
			continue
		}
		addr, err := netip.ParseAddrPort(s)
		if err != nil {
			return nil, fmt.Errorf("dns.upstream[%d]: expected an address with or without a port, found %q", i, s)
		}
		out = append(out, addr)
	}
	return out, nil
}

// announce puts this node's DNS behind the Service, under the DNS's identity.
func (n *Networking) announce(ctx context.Context, s *dns.Server, addresses []netip.Addr) error {
	if !run.Await(ctx, s.Ready()) {
		return nil
	}
	if n.dnsConfig == n.component.Config {
		if announce.Mark(ctx, n.set.Kube, n.component.Options.Config.Node.Name, n.component.Options.Logger) {
			n.announced()
		}
		<-ctx.Done()
		return nil
	}
	set, err := client.New(n.dnsConfig)
	if err != nil {
		return err
	}
	announce.Keep(ctx, set.Kube, n.component.Options.Config.Node.Name, addresses, n.component.Options.Logger, n.announced)
	return nil
}

func (n *Networking) announced() {
	select {
	case <-n.dnsReady: // announced before, at another address
	default:
		close(n.dnsReady)
	}
}

// ProxyReady is closed when Services are routed.
func (n *Networking) ProxyReady() <-chan struct{} { return n.proxyReady }

// DNSReady is closed when names are answered.
func (n *Networking) DNSReady() <-chan struct{} { return n.dnsReady }
