// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/dns"
	"github.com/wasmplane/wasmplane/core/dns/announce"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/proxy"
	"github.com/wasmplane/wasmplane/core/run"
)

// networking makes Services reachable on this machine, by address and by name.
type networking struct {
	*component
	set                  *client.Set
	dnsConfig            *rest.Config
	service              *proxy.Proxy
	informers            informers.SharedInformerFactory
	proxyReady, dnsReady chan struct{}
}

func newNetworking(c *component, dnsConfig *rest.Config) (*networking, error) {
	set, err := client.New(c.config)
	if err != nil {
		return nil, err
	}
	pods, err := netip.ParsePrefix(c.o.Config.Cluster.PodCIDR)
	if err != nil {
		return nil, fmt.Errorf("cluster.podCIDR: %w", err)
	}
	services, err := netip.ParsePrefix(c.o.Config.Cluster.ServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("cluster.serviceCIDR: %w", err)
	}
	n := &networking{
		component: c, set: set, dnsConfig: dnsConfig, informers: informers.NewSharedInformerFactory(set.Kube, 0),
		proxyReady: make(chan struct{}), dnsReady: make(chan struct{}),
	}
	if !c.o.Config.Proxy.Enabled {
		close(n.proxyReady)
		return n, nil
	}
	n.service, err = proxy.New(proxy.Config{
		Table: linuxhost.NamesOf(c.o.Config.Cluster.Name).Table("services"), Node: c.o.Config.Node.Name,
		Informers: n.informers, PodCIDRs: []netip.Prefix{pods}, ServiceCIDRs: []netip.Prefix{services}, Log: c.o.Logger,
	})
	return n, err
}

func (n *networking) proxy(ctx context.Context) error {
	if n.service == nil {
		<-ctx.Done()
		return nil
	}
	watching, cancel := context.WithCancel(ctx)
	defer n.informers.Shutdown()
	defer cancel()
	n.informers.Start(watching.Done())
	return run.Parallel(n.service.Run, closeWhen(n.service.Ready(), n.proxyReady))(ctx)
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

// dns answers names at the address that this node's pods have their gateway at.
func (n *networking) dns(ctx context.Context) error {
	if !n.o.Config.DNS.Enabled {
		close(n.dnsReady)
		<-ctx.Done()
		return nil
	}
	return followPodCIDR(ctx, n.set.Kube, n.o.Config.Node.Name, func(ctx context.Context, own netip.Prefix) error {
		return n.serveNames(ctx, own.Masked().Addr().Next())
	})
}

// serveNames serves at address. The pod network, which the kubelet sets up, may come
// later than this.
func (n *networking) serveNames(ctx context.Context, address netip.Addr) error {
	pods := netip.MustParsePrefix(n.o.Config.Cluster.PodCIDR) // checked by Complete
	upstream, err := resolvers(n.o.Config.DNS.Upstream)
	if err != nil {
		return err
	}
	backoff := run.Backoff{First: 20 * time.Millisecond, Longest: time.Second}
	for {
		s, err := dns.New(dns.Config{
			Client: n.dnsConfig, Listen: []netip.AddrPort{netip.AddrPortFrom(address, 53)}, Domain: n.o.Config.Cluster.Domain,
			Upstream: upstream, Clients: []netip.Prefix{pods, netip.PrefixFrom(address, address.BitLen())}, Log: n.o.Logger,
		})
		if err != nil {
			return err
		}
		err = run.Parallel(s.Run, func(ctx context.Context) error { return n.announce(ctx, s, address) })(ctx)
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
func (n *networking) announce(ctx context.Context, s *dns.Server, address netip.Addr) error {
	if !run.Await(ctx, s.Ready()) {
		return nil
	}
	set, err := client.New(n.dnsConfig)
	if err != nil {
		return err
	}
	announce.Keep(ctx, set.Kube, n.o.Config.Node.Name, address, n.o.Logger, func() {
		select {
		case <-n.dnsReady: // announced before, at another address
		default:
			close(n.dnsReady)
		}
	})
	return nil
}

// dnsService makes the Service of the cluster's DNS, where the configuration wants one.
func (s *server) dnsService(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	if s.o.Config.DNS.Enabled {
		if err := announce.Service(ctx, s.internal.Kube, dnsAddress(s.o.Config)); err != nil && ctx.Err() == nil {
			s.o.Logger.ErrorContext(ctx, "the Service of the cluster's DNS could not be made", "error", err)
		}
	}
	<-ctx.Done()
	return nil
}

// addNetworking adds the service proxy and the DNS of this machine.
func (s *server) addNetworking(ctx context.Context, g *run.Group) error {
	c, err := s.component(ctx, parts.proxy)
	if err != nil {
		return err
	}
	n, err := newNetworking(c, client.InMemory(s.local, bootstrap.CoreDNS(), parts.dns.name))
	if err != nil {
		return err
	}
	g.Add(run.Unit{Name: "services", Run: n.proxy, Ready: n.proxyReady})
	g.Add(run.Unit{Name: "dns", Run: n.dns, Ready: n.dnsReady})
	return nil
}
