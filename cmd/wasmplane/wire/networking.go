package wire

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/dns"
	"github.com/wasmplane/wasmplane/core/kubelet/machine"
	"github.com/wasmplane/wasmplane/core/pki"
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
		Table: machine.NamesOf(c.o.Config.Cluster.Name).Table("services"), Node: c.o.Config.Node.Name,
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
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		s, err := dns.New(dns.Config{
			Client: n.dnsConfig, Listen: []netip.AddrPort{netip.AddrPortFrom(address, 53)}, Domain: n.o.Config.Cluster.Domain,
			Upstream: upstream, Clients: []netip.Prefix{pods, netip.PrefixFrom(address, address.BitLen())}, Log: n.o.Logger,
		})
		if err != nil {
			return err
		}
		err = run.Parallel(s.Run, func(ctx context.Context) error { return n.announceDNS(ctx, s, address) })(ctx)
		if !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
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

// dnsServiceName is where every distribution has it: clients look for it there.
const dnsServiceName = "kube-dns"

// announceDNS puts this node's DNS behind the Service, under the DNS's identity.
func (n *networking) announceDNS(ctx context.Context, s *dns.Server, address netip.Addr) error {
	select {
	case <-s.Ready():
	case <-ctx.Done():
		return nil
	}
	set, err := client.New(n.dnsConfig)
	if err != nil {
		return err
	}
	slices := set.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	want := dnsSlice(n.o.Config.Node.Name, address)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		_, err := slices.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = slices.Update(ctx, want, metav1.UpdateOptions{})
		}
		if err == nil {
			break
		}
		n.o.Logger.Warn("the DNS cannot say where it listens; trying again", "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
	select {
	case <-n.dnsReady:
	default:
		close(n.dnsReady)
	}
	<-ctx.Done()
	return nil
}

func dnsSlice(node string, address netip.Addr) *discoveryv1.EndpointSlice {
	port := int32(53)
	ready := true
	named := func(name string, protocol corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: dnsServiceName + "-" + node,
			Labels: map[string]string{discoveryv1.LabelServiceName: dnsServiceName, discoveryv1.LabelManagedBy: "wasmplane-dns"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{address.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
		Ports: []discoveryv1.EndpointPort{named("dns", corev1.ProtocolUDP), named("dns-tcp", corev1.ProtocolTCP)},
	}
}

// dnsService makes the Service of the cluster's DNS, at the address that pods'
// resolv.conf names. It has no selector: each node's DNS announces itself.
func (s *server) dnsService(ctx context.Context) error {
	select {
	case <-s.boot.Ready():
	case <-ctx.Done():
		return nil
	}
	if s.o.Config.DNS.Enabled {
		port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
			return corev1.ServicePort{Name: name, Protocol: protocol, Port: 53, TargetPort: intstr.FromInt32(53)}
		}
		api := s.internal.Kube.CoreV1().Services(metav1.NamespaceSystem)
		if _, err := api.Get(ctx, dnsServiceName, metav1.GetOptions{}); err == nil {
			<-ctx.Done()
			return nil
		}
		_, err := api.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespaceSystem, Name: dnsServiceName,
				Labels: map[string]string{"k8s-app": dnsServiceName, "kubernetes.io/name": "CoreDNS"},
			},
			Spec: corev1.ServiceSpec{
				ClusterIP: dnsAddress(s.o.Config).String(),
				Ports:     []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
			},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			s.o.Logger.Error("the Service of the cluster's DNS could not be made", "error", err)
		}
	}
	<-ctx.Done()
	return nil
}

// addNetworking adds the service proxy and the DNS of this machine.
func (s *server) addNetworking(ctx context.Context, g *run.Group) error {
	c, err := s.component(ctx, "proxy", pki.Proxy().User)
	if err != nil {
		return err
	}
	n, err := newNetworking(c, client.InMemory(s.local, bootstrap.CoreDNS(), "dns"))
	if err != nil {
		return err
	}
	g.Add(run.Unit{Name: "services", Run: n.proxy, Ready: n.proxyReady})
	g.Add(run.Unit{Name: "dns", Run: n.dns, Ready: n.dnsReady})
	return nil
}
