// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/netlab"
)

const (
	testTable = "wp-test-proxy"
	vip       = "10.96.0.10"
)

// running is a proxy on the lab's node.
type running struct {
	*lab
	client *fake.Clientset
	stop   func()
	took   time.Duration // from nothing to ready
}

func start(t *testing.T, l *lab, objects ...runtime.Object) *running {
	t.Helper()
	return startChecking(t, l, 50*time.Millisecond, objects...)
}

func startChecking(t *testing.T, l *lab, check time.Duration, objects ...runtime.Object) *running {
	t.Helper()
	r := &running{lab: l, client: fake.NewClientset(objects...)}
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(r.client, 0)
	made := make(chan *Proxy, 1)
	done := make(chan error, 1)
	go func() {
		done <- l.In("node", func() error {
			p, err := New(Config{
				Table: testTable, Node: "n1", Informers: factory, OwnNode: factory, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
				ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, ReservedTCPPorts: []int32{22, 6443}, Check: check,
			})
			made <- p
			if err != nil {
				return err
			}
			factory.Start(ctx.Done())
			return p.Run(ctx)
		})
	}()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	}
	t.Cleanup(cancel)
	p := <-made
	if p == nil {
		t.Fatal(<-done)
	}
	select {
	case <-p.Ready():
		r.took = time.Since(began)
	case <-time.After(2 * time.Minute):
		t.Fatal("the proxy is not ready after two minutes")
	}
	return r
}

// put creates or updates an object.
func (r *running) put(o any) {
	r.t.Helper()
	var err error
	ctx := context.Background()
	switch o := o.(type) {
	case *corev1.Service:
		api := r.client.CoreV1().Services(o.Namespace)
		if _, err = api.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			_, err = api.Update(ctx, o, metav1.UpdateOptions{})
		}
	case *corev1.Node:
		api := r.client.CoreV1().Nodes()
		if _, err = api.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			_, err = api.Update(ctx, o, metav1.UpdateOptions{})
		}
	case *networkingv1.ServiceCIDR:
		api := r.client.NetworkingV1().ServiceCIDRs()
		if _, err = api.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			_, err = api.Update(ctx, o, metav1.UpdateOptions{})
		}
	case *discoveryv1.EndpointSlice:
		api := r.client.DiscoveryV1().EndpointSlices(o.Namespace)
		if _, err = api.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			_, err = api.Update(ctx, o, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func service(name, ip string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func nodePort(n int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, n
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
}

func localOnly(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func slice(service string, node string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: service + "-x",
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(8080))}},
	}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
	}
	return s
}

func (r *running) want(from, to, answer string) {
	r.t.Helper()
	got, err := r.get(from, to)
	if err != nil || !strings.HasPrefix(got, answer) {
		r.t.Errorf("%s to %s: %q, %v; want %q", from, to, got, err, answer)
	}
}

func (r *running) refused(from, to string) {
	r.t.Helper()
	if got, err := r.get(from, to); !errors.Is(err, syscall.ECONNREFUSED) { // and not a silence that times out
		r.t.Errorf("%s to %s: %q, %v; want a refusal", from, to, got, err)
	}
}

func TestServicesAreReachedFromEverywhere(t *testing.T) {
	l := newLab(t)
	one, oneIP := l.pod(5)
	two, twoIP := l.pod(6)
	l.serve(one, "tcp", ":8080")
	l.serve(two, "tcp", ":8080")
	r := start(t, l,
		service("web", vip, nodePort(30080)), slice("web", "n1", oneIP, twoIP),
		service("self", "10.96.0.11"), slice("self", "n1", oneIP),
		service("kept", "10.96.0.12", nodePort(30081), localOnly), slice("kept", "n1", twoIP),
		service("away", "10.96.0.13", nodePort(30082), localOnly), slice("away", "n2", twoIP),
		service("nobody", "10.96.0.14", nodePort(30083)),
	)
	defer r.stop()

	t.Run("a pod reaches all endpoints, with its own address", func(t *testing.T) {
		seen := map[string]bool{}
		for range 40 {
			got, err := r.get(two, vip+":80")
			if err != nil {
				t.Fatal(err)
			}
			seen[got] = true
		}
		// What two sends to itself comes from the node: that is the hairpin.
		if len(seen) != 2 || !seen[one+" "+twoIP] {
			t.Errorf("answers %v", seen)
		}
	})
	t.Run("the node", func(*testing.T) { r.want("node", vip+":80", "pod") })
	t.Run("the node, with the address of the link that leads to the pod", func(*testing.T) {
		r.want("node", "10.96.0.11:80", one+" 10.244.0.1") // to the Service's address it goes by the other link
	})
	t.Run("a pod that reaches itself", func(*testing.T) { r.want(one, "10.96.0.11:80", one) })
	t.Run("a node port from outside, with the node's address", func(*testing.T) { r.want("client", nodeIP+":30080", "pod") })
	t.Run("a node port whose policy keeps the client's address", func(*testing.T) {
		r.want("client", nodeIP+":30081", two+" "+clientIP)
	})
	t.Run("such a port without endpoints here is silent, so that a load balancer goes elsewhere", func(t *testing.T) {
		if got, err := r.getWithin(1500*time.Millisecond, "client", nodeIP+":30082"); !timedOut(err) {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("but from inside it leads anywhere", func(*testing.T) {
		r.want(one, nodeIP+":30082", two)
		r.want("node", nodeIP+":30082", two)
	})
	t.Run("without endpoints connections are refused", func(*testing.T) {
		for _, from := range []string{one, "node"} {
			r.refused(from, "10.96.0.14:80")
			r.refused(from, nodeIP+":30083")
		}
		r.refused("client", nodeIP+":30083")
	})
	t.Run("until there is one", func(t *testing.T) {
		r.put(slice("nobody", "n1", oneIP))
		netlab.Eventually(t, "the new endpoint answers", func() bool { _, err := r.get(two, "10.96.0.14:80"); return err == nil })
		r.want("client", nodeIP+":30083", one)
	})
	t.Run("what no Service has is refused, and does not leave the node", func(*testing.T) {
		for _, from := range []string{one, "node"} {
			r.refused(from, vip+":81")
			r.refused(from, "10.96.99.99:80")
		}
	})
}

// A further range of Services is the cluster's while it is ready, and no longer: its Services
// answer, what no Service has there is refused, and a range that is not ready takes nothing away.
func TestFurtherRanges(t *testing.T) {
	l := newLab(t)
	one, oneIP := l.pod(5)
	l.serve(one, "tcp", ":8080")
	r := start(t, l, service("web", "203.0.113.7"), slice("web", "n1", oneIP), service("sticky", vip, func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}), slice("sticky", "n1", oneIP))
	defer r.stop()
	further := func(ready metav1.ConditionStatus, cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "further"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
			Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: ready}}},
		}
	}
	has := func(want bool, text string) {
		t.Helper()
		netlab.Eventually(t, fmt.Sprint("the set has ", text, ": ", want), func() bool {
			return strings.Contains(r.Run("node", "sh", "-c", "nft list set ip "+testTable+" "+setRanges+" || true"), text) == want
		})
	}
	has(true, "10.96.0.0/16")
	r.want(one, "203.0.113.7:80", one) // whatever is known of its range
	// Within the configured one, and of the other family: neither makes a difference, nor an error.
	r.put(further(metav1.ConditionTrue, "203.0.113.0/24"))
	has(true, "203.0.113.0/24")
	for _, from := range []string{one, "node"} {
		r.refused(from, "203.0.113.9:80")
		r.refused(from, "203.0.113.7:81")
		r.want(from, "203.0.113.7:80", one)
	}
	other := further(metav1.ConditionTrue, "10.96.7.0/24", "fd00:7::/112")
	other.Name = "within"
	r.put(other)
	wider := further(metav1.ConditionTrue, "10.96.0.0/12")
	wider.Name = "wider"
	r.put(wider)
	has(true, "10.96.0.0/12")
	has(false, "10.96.0.0/16")
	r.want(one, vip+":80", one)
	r.put(further(metav1.ConditionFalse, "203.0.113.0/24"))
	has(false, "203.0.113.0/24")
	r.want(one, "203.0.113.7:80", one)
	// Somebody flushes the table: it comes back with the ranges of now.
	r.Run("node", "nft", "delete", "table", "ip", testTable)
	has(true, "10.96.0.0/12")
	for _, name := range []string{"wider", "within"} {
		if err := r.client.NetworkingV1().ServiceCIDRs().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	has(true, "10.96.0.0/16")
}

func TestAClientStaysWithItsEndpoint(t *testing.T) {
	l := newLab(t)
	one, oneIP := l.pod(5)
	two, twoIP := l.pod(6)
	asker, _ := l.pod(7)
	l.serve(one, "tcp", ":8080")
	l.serve(two, "tcp", ":8080")
	sticky := service("web", vip, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	r := start(t, l, sticky, slice("web", "n1", oneIP, twoIP))
	defer r.stop()
	first, err := r.get(asker, vip+":80")
	if err != nil {
		t.Fatal(err)
	}
	for range 12 {
		r.want(asker, vip+":80", first)
	}
	// The timeout changes, then the affinity goes altogether.
	sticky = sticky.DeepCopy()
	sticky.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(100))}}
	r.put(sticky)
	netlab.Eventually(t, "the timeout is 100 s", func() bool {
		return strings.Contains(r.Run("node", "nft", "list", "table", "ip", testTable), "timeout 1m40s")
	})
	r.want(asker, vip+":80", "pod")
	plain := sticky.DeepCopy()
	plain.Spec.SessionAffinity, plain.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	r.put(plain)
	netlab.Eventually(t, "the sets are gone", func() bool {
		return !strings.Contains(r.Run("node", "nft", "list", "table", "ip", testTable), "set aff-")
	})
	r.want(asker, vip+":80", "pod")
}

// A UDP client never stops sending from one port; its endpoint goes away.
func TestUDPClientsFollowTheEndpoints(t *testing.T) {
	l := newLab(t)
	one, oneIP := l.pod(5)
	two, twoIP := l.pod(6)
	asker, _ := l.pod(7)
	l.serve(one, "udp", ":8080")
	l.serve(two, "udp", ":8080")
	udp := service("dns", vip, func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP })
	at := func(ip string) *discoveryv1.EndpointSlice {
		s := slice("dns", "n1", ip)
		s.Ports[0].Protocol = ptr.To(corev1.ProtocolUDP)
		return s
	}
	r := start(t, l, udp, at(oneIP))
	defer r.stop()
	var conn net.Conn
	if err := l.In(asker, func() (err error) { conn, err = net.Dial("udp4", vip+":80"); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ask := func() string {
		_ = conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := conn.Write([]byte("x")); err != nil {
			return err.Error()
		}
		buf := make([]byte, 64)
		n, _ := conn.Read(buf)
		return string(buf[:n])
	}
	netlab.Eventually(t, "the first endpoint answers", func() bool { return strings.HasPrefix(ask(), one) })
	r.put(at(twoIP))
	netlab.Eventually(t, "the other endpoint answers", func() bool { return strings.HasPrefix(ask(), two) })
}

func TestOthersTablesAreLeftAloneAndOursIsRepaired(t *testing.T) {
	l := newLab(t)
	one, oneIP := l.pod(5)
	l.serve(one, "tcp", ":8080")
	l.Run("node", "nft", "add table ip theirs; add chain ip theirs c { type filter hook forward priority 0; policy accept; }; add rule ip theirs c counter")
	theirs := func() string { return l.Run("node", "nft", "-s", "list", "table", "ip", "theirs") }
	before := theirs()
	r := start(t, l, service("web", vip), slice("web", "n1", oneIP))
	r.want("node", vip+":80", one)
	l.Run("node", "nft", "delete", "table", "ip", testTable)
	netlab.Eventually(t, "the table is back", func() bool { _, err := r.get("node", vip+":80"); return err == nil })
	r.stop()
	r.want("node", vip+":80", one) // with the proxy gone Services work on
	for range 2 {
		if err := l.In("node", func() error { return Cleanup(t.Context(), testTable) }); err != nil {
			t.Fatal(err)
		}
	}
	if left := l.Run("node", "nft", "list", "tables"); strings.Contains(left, testTable) {
		t.Errorf("left behind: %s", left)
	}
	if after := theirs(); after != before {
		t.Errorf("their table was\n%s\nand is\n%s", before, after)
	}
}

func TestHealthCheckNodePort(t *testing.T) {
	l := newLab(t)
	leaks := goleak.IgnoreCurrent()
	r := start(t, l, service("web", vip, nodePort(30080), localOnly, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 31000
	}), slice("web", "n2", "10.244.1.5"))
	status := func() string {
		var line string
		err := l.In("client", func() error {
			c, err := net.DialTimeout("tcp4", nodeIP+":31000", 10*time.Second)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintf(c, "GET /healthz HTTP/1.0\r\n\r\n")
			buf := make([]byte, 16)
			n, err := c.Read(buf)
			line = string(buf[:n])
			return err
		})
		if err != nil {
			return err.Error()
		}
		return line
	}
	if got := status(); !strings.Contains(got, "503") {
		t.Errorf("without local endpoints: %q", got)
	}
	r.put(slice("web", "n1", "10.244.0.5"))
	netlab.Eventually(t, "healthy", func() bool { return strings.Contains(status(), "200") })
	r.stop()
	goleak.VerifyNone(t, leaks)
}

// The cost of one change among thousands of Services, which is logged.
func TestAChangeAmongThousandsOfServices(t *testing.T) {
	l := newLab(t)
	one, oneIP := l.pod(5)
	l.serve(one, "tcp", ":8080")
	var objects []runtime.Object
	const count = 3000
	for i := range count {
		ip := fmt.Sprintf("10.97.%d.%d", i/250, i%250+1)
		name := fmt.Sprintf("s%d", i)
		objects = append(objects, service(name, ip), slice(name, "n1", fmt.Sprintf("10.244.%d.%d", 1+i/250, i%250+1), "10.244.9.9"))
	}
	r := startChecking(t, l, time.Hour, objects...)
	defer r.stop()
	t.Logf("%d services: ready after %s", count, r.took)
	r.put(service("late", "10.98.0.1"))
	netlab.Eventually(t, "the late one is refused",
		func() bool { _, err := r.get("node", "10.98.0.1:80"); return errors.Is(err, syscall.ECONNREFUSED) })
	began := time.Now()
	r.put(slice("late", "n1", oneIP))
	netlab.Eventually(t, "the late one answers", func() bool { _, err := r.get("node", "10.98.0.1:80"); return err == nil })
	t.Logf("one more: reachable after %s", time.Since(began))
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("one change took %s", took)
	}
}

// nft and the kernel take what is planned for IPv6, of every kind.
func TestIPv6TablesAreTaken(t *testing.T) {
	l := newLab(t)
	v6 := func(change ...func(*corev1.Service)) *corev1.Service { return service("web", "fd00:96::1", change...) }
	endpoints := slice("web", "n1", "fd00:244::5", "fd00:244::6")
	endpoints.AddressType = discoveryv1.AddressTypeIPv6
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	pl := planner{family: family{ip6: true, word: "ip6"}, node: "n1", pods: []netip.Prefix{netip.MustParsePrefix("fd00:244::/64")}}
	err := l.In("node", func() error {
		tab, err := openTable(pl.family, testTable, nil, nil)
		if err != nil {
			return err
		}
		s := newState()
		if err := tab.rewrite(t.Context(), s.whole()); err != nil {
			return err
		}
		for _, svc := range []*corev1.Service{v6(), v6(nodePort(30080)), v6(nodePort(30080), localOnly), v6(sticky), nil} {
			plans := map[types.NamespacedName]*plan{{Namespace: "default", Name: "web"}: pl.plan(svc, []*discoveryv1.EndpointSlice{endpoints})}
			if err := tab.update(t.Context(), s.apply(plans)); err != nil {
				return err
			}
		}
		ok, err := tab.intact(t.Context())
		if err == nil && !ok {
			err = errors.New("the table is not as it was written")
		}
		return errors.Join(err, tab.remove(t.Context()))
	})
	if err != nil {
		t.Error(err)
	}
}
