// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

// free is an address of loopback that nobody uses.
func free(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return netip.MustParseAddrPort(l.Addr().String())
}

// resolver is the host's resolver: it knows one name, and counts.
type resolver struct {
	at    netip.AddrPort
	asked atomic.Int64
}

func newResolver(t *testing.T) *resolver {
	t.Helper()
	r := &resolver{at: free(t)}
	for _, network := range []string{"udp", "tcp"} {
		up := make(chan struct{})
		s := &dns.Server{Addr: r.at.String(), Net: network, Handler: r, NotifyStartedFunc: func() { close(up) }}
		go func() { _ = s.ListenAndServe() }()
		<-up
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return r
}

func (r *resolver) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	r.asked.Add(1)
	m := new(dns.Msg).SetReply(q)
	switch name := q.Question[0].Name; {
	case strings.EqualFold(name, "example.com."):
		rr, _ := dns.NewRR("example.com. 300 IN A 192.0.2.80")
		m.Answer = append(m.Answer, rr)
	case name == "big.example.com.":
		for i := range 100 {
			rr, _ := dns.NewRR(fmt.Sprintf("big.example.com. 300 IN A 192.0.2.%d", i))
			m.Answer = append(m.Answer, rr)
		}
		if w.RemoteAddr().Network() == "udp" {
			m.Truncate(dns.MinMsgSize)
		}
	default:
		m.Rcode = dns.RcodeNameError
		soa, _ := dns.NewRR("example.com. 60 IN SOA ns. root. 1 1 1 1 60")
		m.Ns = append(m.Ns, soa)
	}
	_ = w.WriteMsg(m)
}

// running is the cluster's DNS beside a real API.
type running struct {
	t    *testing.T
	at   netip.AddrPort
	stop func() error
}

func start(t *testing.T, client *rest.Config, change ...func(*Config)) *running {
	t.Helper()
	r := &running{t: t, at: free(t)}
	cfg := Config{Client: client, Listen: []netip.AddrPort{r.at}}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r.stop = func() error { cancel(); return <-done }
	t.Cleanup(cancel)
	wait := s.Ready()
	if client.Host == nowhere {
		wait = s.Listening()
	}
	select {
	case <-wait:
	case err := <-done:
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("not ready after a minute")
	}
	return r
}

const nowhere = "http://127.0.0.1:1"

// ask returns the rcode and the answers' values.
func (r *running) ask(network, name string, kind uint16) (string, []string) {
	r.t.Helper()
	m, _, err := (&dns.Client{Net: network, Timeout: 30 * time.Second}).Exchange(new(dns.Msg).SetQuestion(name, kind), r.at.String())
	if err != nil {
		r.t.Fatalf("%s %s: %v", network, name, err)
	}
	var values []string
	for _, rr := range m.Answer {
		values = append(values, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	rcode := dns.RcodeToString[m.Rcode]
	if m.Truncated {
		rcode += " truncated"
	}
	return rcode, values
}

func cluster(t *testing.T) (kubernetes.Interface, *rest.Config) {
	t.Helper()
	s := apiservertest.Start(t, apiservertest.Options{})
	admin, err := kubernetes.NewForConfig(s.Config("admin", user.SystemPrivilegedGroup))
	if err != nil {
		t.Fatal(err)
	}
	return admin, s.Config("system:serviceaccount:kube-system:coredns")
}

func TestNamesOfTheClusterAndOfTheWorld(t *testing.T) {
	admin, client := cluster(t)
	ctx := t.Context()
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*corev1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}},
	} {
		if _, err := admin.CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "db-x", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.244.0.7"}, Hostname: ptr.To("db-0"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("sql"), Port: ptr.To(int32(5432)), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	web, err := admin.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip := web.Spec.ClusterIP
	up := newResolver(t)
	r := start(t, client, func(c *Config) { c.Upstream = []netip.AddrPort{up.at} })
	reverse, _ := dns.ReverseAddr(ip)
	for _, c := range []struct {
		name  string
		kind  uint16
		rcode string
		want  string
	}{
		{"web.default.svc.cluster.local.", dns.TypeA, "NOERROR", ip},
		{"WEB.default.svc.Cluster.Local.", dns.TypeA, "NOERROR", ip},
		{"db.default.svc.cluster.local.", dns.TypeA, "NOERROR", "10.244.0.7"},
		{"db-0.db.default.svc.cluster.local.", dns.TypeA, "NOERROR", "10.244.0.7"},
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, "NOERROR", "0 100 80 web.default.svc.cluster.local."},
		{"10-244-0-5.default.pod.cluster.local.", dns.TypeA, "NOERROR", "10.244.0.5"},
		{"far.default.svc.cluster.local.", dns.TypeA, "NOERROR", "example.com. 192.0.2.80"},
		{reverse, dns.TypePTR, "NOERROR", "web.default.svc.cluster.local."},
		{"gone.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN", ""},
		{"web.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR", ""},
		{"example.com.", dns.TypeA, "NOERROR", "192.0.2.80"},
		{"nothing.example.com.", dns.TypeA, "NXDOMAIN", ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if rcode, got := r.ask(network, c.name, c.kind); rcode != c.rcode || strings.Join(got, " ") != c.want {
				t.Errorf("%s %s: %s %q, want %s %q", network, c.name, rcode, got, c.rcode, c.want)
			}
		}
	}
	t.Run("answers are kept", func(t *testing.T) {
		before := up.asked.Load()
		for range 5 {
			r.ask("udp", "example.com.", dns.TypeA)
			r.ask("udp", "nothing.example.com.", dns.TypeA)
		}
		if asked := up.asked.Load() - before; asked != 0 {
			t.Errorf("the host's resolver was asked %d times more", asked)
		}
	})
	t.Run("what does not fit is truncated, and whole by TCP", func(t *testing.T) {
		if rcode, _ := r.ask("udp", "big.example.com.", dns.TypeA); rcode != "NOERROR truncated" {
			t.Error(rcode)
		}
		if rcode, got := r.ask("tcp", "big.example.com.", dns.TypeA); rcode != "NOERROR" || len(got) != 100 {
			t.Errorf("%s, %d answers", rcode, len(got))
		}
	})
	t.Run("a new Service has a name at once", func(t *testing.T) {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		if _, err := admin.CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(time.Minute)
		for {
			if rcode, _ := r.ask("udp", "late.default.svc.cluster.local.", dns.TypeA); rcode == "NOERROR" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("no name after a minute")
			}
		}
	})
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

func TestWithoutAnAPITheWorldStillHasNames(t *testing.T) {
	up := newResolver(t)
	leaks := goleak.IgnoreCurrent()
	r := start(t, &rest.Config{Host: nowhere}, func(c *Config) { c.Upstream = []netip.AddrPort{up.at} })
	if rcode, got := r.ask("udp", "example.com.", dns.TypeA); rcode != "NOERROR" || len(got) != 1 {
		t.Errorf("%s %q", rcode, got)
	}
	if rcode, _ := r.ask("udp", "web.default.svc.cluster.local.", dns.TypeA); rcode != "SERVFAIL" {
		t.Errorf("a name of the cluster: %s; a denial would be kept by clients", rcode)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	// CoreDNS's informers end in their own time, when their wait for the API is over.
	var err error
	for range 20 {
		if err = goleak.Find(leaks); err == nil {
			return
		}
	}
	t.Error(err)
}

func TestATakenAddressIsAClearErrorAndNothingStaysOpen(t *testing.T) {
	taken, other := free(t), free(t)
	l, err := net.Listen("tcp", taken.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	s, err := New(Config{Client: &rest.Config{Host: nowhere}, Listen: []netip.AddrPort{other, taken}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another server has that address") {
		t.Errorf("error %v", err)
	}
	again, err := net.Listen("tcp", other.String())
	if err != nil {
		t.Fatalf("the first address is still taken: %v", err)
	}
	_ = again.Close()
	s, err = New(Config{Client: &rest.Config{Host: nowhere}, Listen: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:5353")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no interface of this machine") {
		t.Errorf("error %v", err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	looks, now := 0, time.Unix(1, 0)
	h := &handler{clients: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, own: &own{
		list: func() ([]net.Addr, error) {
			looks++
			return []net.Addr{&net.IPNet{IP: net.ParseIP("198.51.100.7"), Mask: net.CIDRMask(24, 32)}}, nil
		},
		now: func() time.Time { return now },
	}}
	for from, want := range map[string]bool{
		"10.244.3.4:999": true, "127.0.0.1:999": true, "192.0.2.1:999": false,
		"198.51.100.7:999": true, "198.51.100.8:999": false, "[::ffff:198.51.100.7]:999": true, // pods in the machine's network
		"[::ffff:10.244.1.1]:999": true,
	} {
		if got := h.welcome(net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from))); got != want {
			t.Errorf("%s: %v", from, got)
		}
	}
	if looks != 1 {
		t.Errorf("strangers made us look for our addresses %d times", looks)
	}
	h.own.list = func() ([]net.Addr, error) { return nil, nil }
	now = now.Add(ownFor)
	if h.welcome(net.UDPAddrFromAddrPort(netip.MustParseAddrPort("198.51.100.7:999"))) {
		t.Error("an address that the machine has no longer is welcome")
	}
}

func TestTheHostsResolvers(t *testing.T) {
	dir := t.TempDir()
	usual, upstream := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "systemd.conf")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(upstream, "nameserver 192.0.2.2\n")
	write(usual, "# a comment\nsearch x\nnameserver 127.0.0.53 # stub\n")
	if got := hostResolvConf(usual, upstream); got != upstream {
		t.Errorf("a stub on loopback is used: %s", got)
	}
	write(usual, "nameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver nonsense\n")
	if got := hostResolvConf(usual, upstream); got != usual {
		t.Errorf("used %s", got)
	}
	f := newForwarder(Config{ResolvConf: usual, Listen: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}})
	if got := fmt.Sprint(f.resolvers()); got != "[[fe80::1%eth0]:53]" {
		t.Errorf("resolvers %s; our own address must not be among them", got)
	}
}

func TestBadNamesOfTheDomainAreRefused(t *testing.T) {
	for _, domain := range []string{"a b", "x {", "a\nb"} {
		if _, err := New(Config{
			Client: &rest.Config{}, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")},
			Domain: domain,
		}); err == nil {
			t.Errorf("%q was taken", domain)
		}
	}
}

func FuzzNameserver(f *testing.F) {
	f.Add("nameserver 1.1.1.1")
	f.Add("nameserver fe80::1%eth0 # x")
	f.Fuzz(func(t *testing.T, line string) {
		if a, ok := nameserver(line); ok && (!a.IsValid() || a.Port() != 53) {
			t.Errorf("%q made %s", line, a)
		}
	})
}
