// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/netlab"
)

// balancedAt makes a Service of type LoadBalancer that has an address.
func balancedAt(ip string, ranges ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyCluster
		s.Spec.LoadBalancerSourceRanges = ranges
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip, IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)}}
	}
}

func at(port int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port = port }
}

func TestLoadBalancers(t *testing.T) {
	l := newLab(t)
	one, oneIP := l.pod(5)
	two, twoIP := l.pod(6)
	l.serve(one, "tcp", ":8080")
	l.serve(two, "tcp", ":8080")
	r := start(t, l,
		service("any", "10.96.0.11", balancedAt("198.51.100.11")), slice("any", "n1", oneIP),
		service("kept", "10.96.0.12", balancedAt("198.51.100.12"), localOnly), slice("kept", "n1", twoIP),
		service("away", "10.96.0.13", balancedAt("198.51.100.13"), localOnly), slice("away", "n2", twoIP),
		service("some", "10.96.0.14",
			balancedAt("198.51.100.14", "192.0.2.0/24", "192.0.2.64/26", " 203.0.113.0/24")), slice("some", "n1", oneIP),
		service("others", "10.96.0.15", nodePort(30080), balancedAt("198.51.100.15", "203.0.113.0/24")), slice("others", "n1", oneIP),
		service("kept-some", "10.96.0.16", balancedAt("198.51.100.16", "192.0.2.0/24"), localOnly), slice("kept-some", "n1", twoIP),
		service("nobody", "10.96.0.17", balancedAt("198.51.100.17")),
	)
	defer r.stop()
	silent := func(t *testing.T, from, to string) {
		t.Helper()
		if got, err := r.getWithin(1500*time.Millisecond, from, to); !timedOut(err) {
			t.Errorf("%s to %s: %q, %v; want silence", from, to, got, err)
		}
	}
	t.Run("from outside, with the node's address, so that the answer comes back by here", func(*testing.T) {
		r.want("client", "198.51.100.11:80", one+" 10.244.0.1")
	})
	t.Run("with the client's address where traffic stays on the node", func(*testing.T) {
		r.want("client", "198.51.100.12:80", two+" "+clientIP)
		r.want("client", "198.51.100.16:80", two+" "+clientIP)
	})
	t.Run("from inside they lead to any endpoint, with the pod's address", func(*testing.T) {
		r.want(one, "198.51.100.13:80", two+" "+oneIP)
		r.want("node", "198.51.100.13:80", two)
	})
	t.Run("without an endpoint here it is silent", func(t *testing.T) { silent(t, "client", "198.51.100.13:80") })
	t.Run("without any it refuses", func(*testing.T) { r.refused("client", "198.51.100.17:80") })
	t.Run("clients of the source ranges get through, and only they", func(t *testing.T) {
		r.want("client", "198.51.100.14:80", one)
		silent(t, "client", "198.51.100.15:80")
		silent(t, two, "198.51.100.14:80")
	})
	t.Run("source ranges are the load balancer's alone", func(*testing.T) {
		r.want("client", nodeIP+":30080", one)
		r.want(two, "10.96.0.15:80", one)
	})
	t.Run("ranges that change hold at once", func(t *testing.T) {
		r.put(service("others", "10.96.0.15", nodePort(30080), balancedAt("198.51.100.15", "192.0.2.100/32")))
		netlab.Eventually(t, "the client gets through", func() bool {
			got, err := r.getWithin(time.Second, "client", "198.51.100.15:80")
			return err == nil && strings.HasPrefix(got, one)
		})
	})
}

// A Service that has the node's own address gets neither what the machine is reached by, nor
// what a process of it listens at, nor another's node port.
func TestTheNodesOwnAddresses(t *testing.T) {
	l := newLab(t)
	one, oneIP := l.pod(5)
	two, twoIP := l.pod(6)
	l.serve(one, "tcp", ":8080")
	l.serve(two, "tcp", ":8080")
	l.serve("node", "tcp", ":22")
	process := listenIn(t, l, "node", "0.0.0.0:8081", "the node")
	own := listenIn(t, l, "node", nodeIP+":8082", "the node")
	r := start(t, l,
		service("web", "10.96.0.11", balancedAt(nodeIP)), slice("web", "n1", oneIP),
		service("ssh", "10.96.0.12", balancedAt(nodeIP), at(22)), slice("ssh", "n1", oneIP),
		service("api", "10.96.0.13", balancedAt(nodeIP), at(6443)),
		service("thief", "10.96.0.14", balancedAt(nodeIP), at(8081)), slice("thief", "n1", oneIP),
		service("robber", "10.96.0.15", balancedAt(nodeIP), at(8082)), slice("robber", "n1", oneIP),
		service("empty", "10.96.0.16", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{nodeIP} }, at(8083)),
		service("ported", "10.96.0.17", nodePort(30080)), slice("ported", "n1", twoIP),
		service("over", "10.96.0.18", balancedAt(nodeIP), at(30080)), slice("over", "n1", oneIP),
	)
	defer r.stop()
	r.want("client", nodeIP+":80", one)
	r.want(two, nodeIP+":80", one)
	r.want("node", nodeIP+":80", one)
	r.want("client", nodeIP+":22", "node")
	r.want("node", nodeIP+":22", "node")
	r.want("client", nodeIP+":8081", "the node")
	r.want("client", nodeIP+":8082", "the node")
	r.want("client", nodeIP+":30080", two)
	r.refused("client", nodeIP+":6443") // by the machine itself: nobody listens
	r.refused("client", nodeIP+":8083")
	// What nobody listens at any more is the Service's.
	_ = process.Close()
	_ = own.Close()
	for _, to := range []string{":8081", ":8082"} {
		netlab.Eventually(t, "the Service has the port", func() bool {
			got, err := r.getWithin(time.Second, "client", nodeIP+to)
			return err == nil && strings.HasPrefix(got, one)
		})
	}
}

// listenIn answers connections in a namespace until it is closed.
func listenIn(t *testing.T, l *lab, ns, address, answer string) io.Closer {
	t.Helper()
	var s net.Listener
	if err := l.In(ns, func() (err error) {
		var c net.ListenConfig
		s, err = c.Listen(t.Context(), "tcp4", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, answer)
			_ = c.Close()
		}
	}()
	return s
}

func TestLoadBalancersThatAreProxiesAreLeftAlone(t *testing.T) {
	p := v4().plan(service("web", vip, balancedAt("198.51.100.11"), func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress[0].IPMode = ptr.To(corev1.LoadBalancerIPModeProxy)
	}), one(slice("web", "n1", "10.0.0.1")))
	for k := range p.elements {
		if strings.HasPrefix(k.key, "198.51") {
			t.Errorf("%v is ours", k)
		}
	}
}

func TestSourceRanges(t *testing.T) {
	for _, c := range []struct {
		ranges []string
		want   string
	}{
		{nil, ""},
		{[]string{"10.0.0.0/8"}, "ip saddr != { 10.0.0.0/8 } drop; goto x"},
		{[]string{"10.1.0.0/16", "192.0.2.1/32 ", "10.0.0.0/8", "10.0.0.0/8"}, "ip saddr != { 10.0.0.0/8, 192.0.2.1/32 } drop; goto x"},
		{[]string{"10.0.0.0/8", "0.0.0.0/0"}, ""},
		{[]string{"2001:db8::/32"}, "drop"},
	} {
		rules, restricted := v4().sourceRanges(service("web", vip, balancedAt("198.51.100.11", c.ranges...)), "x")
		if got := strings.Join(rules, "; "); got != c.want || restricted != (c.want != "") {
			t.Errorf("%v: %q, %v", c.ranges, got, restricted)
		}
	}
}

// However ranges lie in each other, those that are left are apart and allow the same clients.
func TestSourceRangesAllowWhatTheySay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		one := rapid.SampledFrom([]string{"10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32", "192.0.2.0/24", "192.0.2.128/25"})
		ranges := rapid.SliceOfN(one, 1, 6).Draw(rt, "ranges")
		rules, _ := v4().sourceRanges(service("web", vip, balancedAt("198.51.100.11", ranges...)), "x")
		list := strings.Split(strings.TrimSuffix(strings.TrimPrefix(rules[0], "ip saddr != { "), " } drop"), ", ")
		for i, a := range list {
			for _, b := range list[i+1:] {
				if mustPrefix(a).Overlaps(mustPrefix(b)) {
					rt.Fatalf("%v leads to %v", ranges, list)
				}
			}
		}
		for _, wanted := range ranges {
			if !slices.ContainsFunc(list, func(p string) bool {
				return mustPrefix(p).Contains(mustPrefix(wanted).Addr()) && mustPrefix(p).Bits() <= mustPrefix(wanted).Bits()
			}) {
				rt.Fatalf("%s is not in %v", wanted, list)
			}
		}
	})
}

// A load balancer sends nothing more to a node whose last endpoint is on its way out.
func TestHealthCountsWhatIsReady(t *testing.T) {
	local := service("web", vip, balancedAt("198.51.100.11"), localOnly, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 32000 })
	list := slice("web", "n1", "10.0.0.1", "10.0.0.2")
	if p := v4().plan(local, one(list)); p.health == nil || p.health.Local != 2 {
		t.Errorf("%+v", p.health)
	}
	for i := range list.Endpoints {
		list.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
	}
	p := v4().plan(local, one(list))
	if p.health == nil || p.health.Local != 0 {
		t.Errorf("%+v", p.health)
	}
	if len(p.elements) == 0 || p.elements[elementKey{mapServices, "198.51.100.11 . tcp . 80"}] == "" {
		t.Errorf("connections that come nevertheless are not served: %v", p.elements)
	}
}
