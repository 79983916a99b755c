// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

func pool(tb testing.TB, name string, texts ...string) loadbalancer.Pool {
	tb.Helper()
	p := loadbalancer.Pool{Name: name}
	for _, text := range texts {
		r, err := loadbalancer.ParseRange(text)
		if err != nil {
			tb.Fatal(err)
		}
		p.Ranges = append(p.Ranges, r)
	}
	return p
}

func balanced(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy:        ptr.To(corev1.IPFamilyPolicySingleStack),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func wants(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerIP = ip }
}

func has(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func onPort(n int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port = n }
}

func dual(policy corev1.IPFamilyPolicy) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, ptr.To(policy)
	}
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func node(name string, ready bool, addresses ...string) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}},
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	return n
}

func endpointsOn(service string, nodes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: service + "-x",
		Labels: map[string]string{discoveryv1.LabelServiceName: service},
	}}
	for i, n := range nodes {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)}, NodeName: &n,
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	return s
}

// got is what a Service has, or the reason why it has nothing.
func got(o outcome) string {
	if o.problem != nil {
		return o.problem.reason
	}
	return join(o.addresses)
}

func TestPools(t *testing.T) {
	nodes := []*corev1.Node{node("a", true, "192.0.2.1"), node("b", true, "192.0.2.11")}
	team := pool(t, "team", "198.51.100.1")
	team.Namespaces = []string{"team"}
	for _, c := range []struct {
		name    string
		held    []*corev1.Service
		service *corev1.Service
		want    string
	}{
		{"the first that is free", nil, balanced("s"), "192.0.2.10"},
		{"not one that another has, nor a node's", []*corev1.Service{balanced("o", has("192.0.2.10"))}, balanced("s"), "192.0.2.12"},
		{"the one that it has", []*corev1.Service{balanced("s", has("192.0.2.12"))}, balanced("s", has("192.0.2.12")), "192.0.2.12"},
		{"not one that it has and is in no pool", []*corev1.Service{balanced("s", has("203.0.113.1"))}, balanced("s", has("203.0.113.1")), "192.0.2.10"},
		{"the one that it wants", nil, balanced("s", wants("192.0.2.12")), "192.0.2.12"},
		{"and leaves the one that it had", []*corev1.Service{balanced("s", has("192.0.2.10"))}, balanced("s", wants("192.0.2.12"), has("192.0.2.10")), "192.0.2.12"},
		{"not one that another has", []*corev1.Service{balanced("o", has("192.0.2.12"))}, balanced("s", wants("192.0.2.12")), "AddressTaken"},
		{"a node's is nobody's", nil, balanced("s", wants("192.0.2.11")), "NoSuchAddress"},
		{"in no pool", nil, balanced("s", wants("192.0.2.1")), "NoSuchAddress"},
		{"in another namespace's pool", nil, balanced("s", wants("198.51.100.1")), "NoSuchAddress"},
		{"in its namespace's pool", nil, balanced("s", wants("198.51.100.1"), func(s *corev1.Service) { s.Namespace = "team" }), "198.51.100.1"},
		{"no address", nil, balanced("s", wants("x")), "NoSuchAddress"},
		{"of another family", nil, balanced("s", wants("2001:db8::1")), "NoSuchAddress"},
		{"nothing is left", []*corev1.Service{balanced("o", has("192.0.2.10")), balanced("p", has("192.0.2.12"))}, balanced("s"), "NoFreeAddress"},
		{"one of each family", nil, balanced("s", dual(corev1.IPFamilyPolicyRequireDualStack)), "192.0.2.10, 2001:db8::"},
		{"at least one", []*corev1.Service{balanced("o", has("192.0.2.10", "192.0.2.12"))}, balanced("s", dual(corev1.IPFamilyPolicyPreferDualStack)), "2001:db8::"},
		{"both or none", []*corev1.Service{balanced("o", has("192.0.2.10", "192.0.2.12"))}, balanced("s", dual(corev1.IPFamilyPolicyRequireDualStack)), "NoFreeAddress"},
		{"two that it wants", nil, balanced("s", dual(corev1.IPFamilyPolicyRequireDualStack), func(s *corev1.Service) {
			s.Annotations = map[string]string{loadbalancer.AddressesAnnotation: "2001:db8::1,192.0.2.12"}
		}), "192.0.2.12, 2001:db8::1"},
		{"two of a family", nil, balanced("s", func(s *corev1.Service) {
			s.Annotations = map[string]string{loadbalancer.AddressesAnnotation: "192.0.2.10,192.0.2.12"}
		}), "NoSuchAddress"},
	} {
		l := newLedger(Config{Pools: []loadbalancer.Pool{pool(t, "lan", "192.0.2.10-192.0.2.12", "2001:db8::/126"), team}})
		for _, s := range c.held {
			l.adopt(s)
		}
		out := l.decide(c.service, nodes, nil)
		if got(out) != c.want {
			t.Errorf("%s: %q (%v), want %q", c.name, got(out), out.problem, c.want)
		}
		if out.problem != nil && slices.Contains(slices.Collect(maps.Values(l.addresses)), ownerOf(c.service)) {
			t.Errorf("%s: it has an address all the same", c.name)
		}
	}
}

func TestNodesAddresses(t *testing.T) {
	external := node("c", true, "192.0.2.3")
	external.Status.Addresses = append(external.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.3"})
	excluded := node("d", true, "192.0.2.4")
	excluded.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
	nodes := []*corev1.Node{external, node("b", false, "192.0.2.2"), node("a", true, "192.0.2.1"), excluded}
	for _, c := range []struct {
		name    string
		held    []*corev1.Service
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		want    string
	}{
		{"of those that are ready and not excluded", nil, balanced("s"), nil, "192.0.2.1, 203.0.113.3"},
		{"with an endpoint", nil, balanced("s", local), []*discoveryv1.EndpointSlice{endpointsOn("s", "a", "b")}, "192.0.2.1"},
		{"without endpoints", nil, balanced("s", local), nil, "NoNode"},
		{"the one that it wants", nil, balanced("s", wants("203.0.113.3")), nil, "203.0.113.3"},
		{"one that is no node's", nil, balanced("s", wants("192.0.2.77")), nil, "NoSuchAddress"},
		{"another Service has the port", []*corev1.Service{balanced("o", has("192.0.2.1"))}, balanced("s"), nil, "PortTaken"},
		{"another one has another port", []*corev1.Service{balanced("o", onPort(81), has("192.0.2.1"))}, balanced("s"), nil, "192.0.2.1, 203.0.113.3"},
		{"another one has the port of another protocol", []*corev1.Service{balanced("o", has("192.0.2.1"), func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP })}, balanced("s"), nil, "192.0.2.1, 203.0.113.3"},
		{"ssh", nil, balanced("s", onPort(22)), nil, "PortReserved"},
		{"the kubelet", nil, balanced("s", onPort(10250)), nil, "PortReserved"},
		{"a node port", nil, balanced("s", onPort(30080)), nil, "PortReserved"},
		{"its own node port", nil, balanced("s", onPort(30080), func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 }), nil, "192.0.2.1, 203.0.113.3"},
		{"IPv6", nil, balanced("s", func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }), nil, "NoNode"},
	} {
		l := newLedger(Config{ReservedPorts: []int32{22, 6443}})
		for _, s := range c.held {
			l.adopt(s)
		}
		if out := l.decide(c.service, nodes, c.slices); got(out) != c.want {
			t.Errorf("%s: %q (%v), want %q", c.name, got(out), out.problem, c.want)
		}
	}
}

// The node that announces stays as long as it can; where traffic stays on the node it has an
// endpoint.
func TestWhoAnnounces(t *testing.T) {
	cfg := Config{Pools: []loadbalancer.Pool{pool(t, "lan", "192.0.2.10")}}
	both := []*corev1.Node{node("a", true), node("b", true)}
	announced := func(by string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations = map[string]string{loadbalancer.NodeAnnotation: by} }
	}
	for _, c := range []struct {
		service *corev1.Service
		nodes   []*corev1.Node
		on      []string
		want    string
	}{
		{balanced("s", announced("a")), both, nil, "a"},
		{balanced("s", announced("b")), both, nil, "b"},
		{balanced("s", announced("a")), []*corev1.Node{node("a", false), node("b", true)}, nil, "b"},
		{balanced("s", announced("a"), local), both, []string{"b"}, "b"},
		{balanced("s", announced("a"), local), both, nil, ""},
	} {
		out := newLedger(cfg).decide(c.service, c.nodes, []*discoveryv1.EndpointSlice{endpointsOn("s", c.on...)})
		if out.problem != nil || out.node != c.want || join(out.addresses) != "192.0.2.10" {
			t.Errorf("%v: %+v, want %q", c.service.Annotations, out, c.want)
		}
	}
}

// Whatever Services come, go, and ask for, and however often they are looked at and in what
// state, no two have one address or port, whoever has nothing is told why, deciding again
// decides the same, and a ledger that reads what was written goes on where the other was.
func TestNothingIsGivenTwice(t *testing.T) {
	nodes := []*corev1.Node{node("a", true, "192.0.2.1"), node("b", true, "192.0.2.2")}
	pools := []loadbalancer.Pool{pool(t, "lan", "192.0.2.10-192.0.2.13", "2001:db8::/127")}
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Config{ReservedPorts: []int32{22}}
		if rapid.Bool().Draw(rt, "pools") {
			cfg.Pools = pools
		}
		l, stored := newLedger(cfg), map[string]*corev1.Service{}
		for i := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(rt, "service")
			s := stored[name]
			switch rapid.SampledFrom([]string{"make", "look", "look again", "delete", "restart"}).Draw(rt, "what") {
			case "make":
				if s != nil {
					continue
				}
				s = balanced(name, onPort(rapid.Int32Range(80, 82).Draw(rt, "port")))
				s.UID = types.UID(fmt.Sprint(name, i))
				if rapid.Bool().Draw(rt, "dual") {
					dual(rapid.SampledFrom([]corev1.IPFamilyPolicy{corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack}).Draw(rt,
						"policy"))(s)
				}
				if len(cfg.Pools) > 0 && rapid.Bool().Draw(rt, "wants") {
					wants(rapid.SampledFrom([]string{"192.0.2.10", "192.0.2.13", "192.0.2.99"}).Draw(rt, "ip"))(s)
				}
				stored[name] = s
				l.adopt(s)
			case "look", "look again":
				if s == nil {
					continue
				}
				out := l.decide(s, nodes, nil)
				// What was read may be older than what was written: it decides the same.
				old := s.DeepCopy()
				old.Status = corev1.ServiceStatus{}
				if again := l.decide(old, nodes, nil); got(again) != got(out) {
					rt.Fatalf("%s first, then %s", got(out), got(again))
				}
				s.Status.LoadBalancer.Ingress = nil
				for _, a := range out.addresses {
					has(a.String())(s)
				}
				if (len(out.addresses) == 0) == (out.problem == nil) {
					rt.Fatalf("%v and %v", out.addresses, out.problem)
				}
			case "delete":
				if s != nil {
					l.release(ownerOf(s))
					delete(stored, name)
				}
			case "restart":
				l = newLedger(cfg)
				for _, s := range stored {
					l.adopt(s)
				}
				for _, s := range stored {
					if len(s.Status.LoadBalancer.Ingress) == 0 {
						continue
					}
					var was []netip.Addr
					for _, in := range s.Status.LoadBalancer.Ingress {
						was = append(was, netip.MustParseAddr(in.IP))
					}
					if out := l.decide(s, nodes, nil); !slices.Equal(out.addresses, was) && s.Spec.IPFamilyPolicy != nil &&
						*s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack {
						rt.Fatalf("%s had %v and gets %s after a restart", s.Name, was, got(out))
					}
				}
			}
			nothingTwice(rt, cfg, stored)
		}
	})
}

func nothingTwice(rt *rapid.T, cfg Config, stored map[string]*corev1.Service) {
	seen := map[string]string{}
	for name, s := range stored {
		if len(s.Status.LoadBalancer.Ingress) == 0 {
			continue
		}
		var all []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			all = append(all, in.IP)
		}
		if len(cfg.Pools) == 0 {
			all = []string{fmt.Sprint(s.Spec.Ports[0].Port)}
		}
		for _, a := range all {
			if other, ok := seen[a]; ok {
				rt.Fatalf("%s and %s both have %s", name, other, a)
			}
			seen[a] = name
		}
	}
}
