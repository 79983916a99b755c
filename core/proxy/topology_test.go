// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// meant is an endpoint for the zones and nodes that words name: "zone/a", "node/n1".
func meant(ip string, places ...string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: ptr.To("n9"), Hints: &discoveryv1.EndpointHints{}}
	for _, word := range places {
		switch what, name, _ := strings.Cut(word, "/"); what {
		case "zone":
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: name})
		case "node":
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: name})
		}
	}
	return e
}

func here(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	e.NodeName = ptr.To("n1")
	return e
}

func leaving(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
	return e
}

func notReady(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false), Terminating: ptr.To(false)}
	return e
}

// TestWhichEndpointsHintsLeave has upstream's cases of pkg/proxy/topology.go: what pods of the node n1 in zone a, and what
// comes from outside, is sent to.
func TestWhichEndpointsHintsLeave(t *testing.T) {
	type list = []discoveryv1.Endpoint
	local := ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	for _, c := range []struct {
		name      string
		endpoints list
		zoneless  bool // the node has no zone
		internal  *corev1.ServiceInternalTrafficPolicy
		external  corev1.ServiceExternalTrafficPolicy
		inside    string
		outside   string // "" as inside
	}{
		{name: "no hints", endpoints: list{meant("10.0.0.1"), meant("10.0.0.2")}, inside: "1 2"},
		{
			name:      "of this zone",
			endpoints: list{meant("10.0.0.1", "zone/a"), meant("10.0.0.2", "zone/b"), meant("10.0.0.3", "zone/a")}, inside: "1 3",
		},
		{name: "for several zones", endpoints: list{meant("10.0.0.1", "zone/b", "zone/a"), meant("10.0.0.2", "zone/b")}, inside: "1"},
		{
			name:      "one has no hint",
			endpoints: list{meant("10.0.0.1", "zone/a"), meant("10.0.0.2", "zone/b"), meant("10.0.0.3")}, inside: "1 2 3",
		},
		{
			name:      "one that is not ready has no hint",
			endpoints: list{meant("10.0.0.1", "zone/a"), meant("10.0.0.2", "zone/b"), notReady(meant("10.0.0.3"))}, inside: "1",
		},
		{name: "none for this zone", endpoints: list{meant("10.0.0.1", "zone/c"), meant("10.0.0.2", "zone/b")}, inside: "1 2"},
		{
			name:      "the one for this zone is not ready",
			endpoints: list{notReady(meant("10.0.0.1", "zone/a")), meant("10.0.0.2", "zone/b")}, inside: "2",
		},
		{
			name:      "the one for this zone is leaving",
			endpoints: list{leaving(meant("10.0.0.1", "zone/a")), meant("10.0.0.2", "zone/b")}, inside: "2",
		},
		{
			name:      "all are leaving",
			endpoints: list{leaving(meant("10.0.0.1", "zone/a")), leaving(meant("10.0.0.2", "zone/b"))}, inside: "1 2",
		},
		{
			name: "the node has no zone", zoneless: true,
			endpoints: list{meant("10.0.0.1", "zone/a"), meant("10.0.0.2", "zone/b")}, inside: "1 2",
		},
		{
			name:      "of this node",
			endpoints: list{meant("10.0.0.1", "node/n1", "zone/a"), meant("10.0.0.2", "node/n2", "zone/a")}, inside: "1",
		},
		{
			name: "of this node, which has no zone", zoneless: true,
			endpoints: list{meant("10.0.0.1", "node/n1"), meant("10.0.0.2", "node/n2")}, inside: "1",
		},
		{
			name:      "none for this node",
			endpoints: list{meant("10.0.0.1", "node/n3", "zone/a"), meant("10.0.0.2", "node/n2", "zone/b")}, inside: "1",
		},
		{name: "none for this node or zone", endpoints: list{meant("10.0.0.1", "node/n3"), meant("10.0.0.2", "node/n2")}, inside: "1 2"},
		{
			name:      "one has no hint for nodes",
			endpoints: list{meant("10.0.0.1", "node/n1", "zone/b"), meant("10.0.0.2", "zone/a")}, inside: "2",
		},
		{
			name: "internal policy Local wins", internal: local,
			endpoints: list{here(meant("10.0.0.1", "zone/b")), meant("10.0.0.2", "zone/a")}, inside: "1", outside: "2",
		},
		{
			name: "external policy Local wins", external: corev1.ServiceExternalTrafficPolicyLocal, inside: "2", outside: "1",
			endpoints: list{here(meant("10.0.0.1", "zone/b")), meant("10.0.0.2", "zone/a")},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			pl := v4()
			if pl.zone = "a"; c.zoneless {
				pl.zone = ""
			}
			s := slice("web", "n9")
			s.Endpoints = c.endpoints
			web := service("web", vip, nodePort(30080), func(s *corev1.Service) {
				s.Spec.InternalTrafficPolicy = c.internal
				if c.external != "" {
					s.Spec.ExternalTrafficPolicy = c.external
				}
			})
			p := pl.plan(web, one(s))
			if got := reached(p, p.elements[elementKey{mapServices, vip + " . tcp . 80"}], ""); got != c.inside {
				t.Errorf("inside: %q, want %q: %+v", got, c.inside, p.chains)
			}
			want := c.outside
			if want == "" {
				want = c.inside
			}
			if got := reached(p, p.elements[elementKey{mapNodePorts, "tcp . 30080"}], "saddr"); got != want {
				t.Errorf("outside: %q, want %q: %+v", got, want, p.chains)
			}
		})
	}
}

// reached are the last numbers of the addresses that a verdict leads to, by rules without the word.
func reached(p *plan, verdict, without string) string {
	to := strings.TrimPrefix(verdict, "goto ")
	for _, r := range p.chains[to].rules {
		if _, next, jumps := strings.Cut(r, "goto "); jumps && (without == "" || !strings.Contains(r, without)) {
			return reached(p, next, without)
		}
		var found []string
		for n := 1; n < 10; n++ {
			if strings.Contains(r, fmt.Sprintf("10.0.0.%d", n)) {
				found = append(found, fmt.Sprint(n))
			}
		}
		if len(found) > 0 {
			return strings.Join(found, " ")
		}
	}
	return ""
}

// Hints choose among the endpoints and never leave none; without a hint in one of them, they choose nothing.
func TestHintsLeaveSomeEndpoint(t *testing.T) {
	places := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "n1"}), 0, 2, rapid.ID)
	rapid.Check(t, func(rt *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) endpoint {
			return endpoint{local: rapid.Bool().Draw(rt, "local"), zones: places.Draw(rt, "zones"), nodes: places.Draw(rt, "nodes")}
		}), 0, 5).Draw(rt, "endpoints")
		got := nearest(all, "n1", rapid.SampledFrom([]string{"", "a"}).Draw(rt, "zone"))
		bare := slices.ContainsFunc(all, func(e endpoint) bool { return len(e.zones) == 0 })
		bareOfNodes := slices.ContainsFunc(all, func(e endpoint) bool { return len(e.nodes) == 0 })
		if len(got) > len(all) || (len(got) == 0) != (len(all) == 0) || bare && bareOfNodes && len(got) != len(all) {
			rt.Fatalf("%+v of %+v", got, all)
		}
	})
}

// TestPacketsStayInTheZone sends connections through the kernel's table while the node's label changes.
func TestPacketsStayInTheZone(t *testing.T) {
	l := newLab(t)
	a, aIP := l.pod(5)
	b, bIP := l.pod(6)
	client, _ := l.pod(7)
	for _, pod := range []string{a, b} {
		l.serve(pod, "tcp", ":8080")
	}
	in := func(zone string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{}}}
		if zone != "" {
			n.Labels[corev1.LabelTopologyZone] = zone
		}
		return n
	}
	s := slice("web", "n2")
	s.Endpoints = []discoveryv1.Endpoint{meant(aIP, "zone/a"), meant(bIP, "zone/b")}
	stranger := in("b")
	stranger.Name = "n2"
	r := start(t, l, in("a"), stranger, service("web", vip, nodePort(30080)), s)
	defer r.stop()
	answering := func() string {
		seen := map[string]bool{}
		for range 30 {
			got, err := r.get(client, vip+":80")
			if err != nil {
				t.Fatal(err)
			}
			seen[strings.Fields(got)[0]] = true
		}
		return fmt.Sprint(seen)
	}
	until := func(what string, pods ...string) {
		t.Helper()
		want := map[string]bool{}
		for _, p := range pods {
			want[p] = true
		}
		deadline := time.Now().Add(30 * time.Second)
		for got := answering(); got != fmt.Sprint(want); got = answering() {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %s answer, want %v", what, got, want)
			}
		}
	}
	until("in zone a", a)
	r.want("client", nodeIP+":30080", a)
	r.put(in("b"))
	until("moved to zone b", b)
	r.put(in(""))
	until("in no zone", a, b)
	r.put(in("a"))
	until("in zone a again", a)
	bare := s.DeepCopy()
	bare.Endpoints[1].Hints = nil
	r.put(bare)
	until("with an endpoint without a hint", a, b)
}

// Where 10250 was taken the kubelet listens elsewhere, and only the node says where.
func TestThePortOfTheKubeletIsNoServices(t *testing.T) {
	p := &Proxy{cfg: Config{Node: "n1", ReservedTCPPorts: []int32{10250, 22}}, wake: make(chan struct{}, 1)}
	node := func(name string, port int32) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		return n
	}
	s := &side{table: &table{}}
	for _, step := range []struct {
		node  *corev1.Node
		want  []int32
		anew  bool
		woken bool
	}{
		{node("n1", 0), []int32{22, 10250}, true, false}, // the first time
		{node("n2", 4711), []int32{22, 10250}, false, false},
		{node("n1", 10250), []int32{22, 10250}, false, true},
		{node("n1", 39001), []int32{22, 10250, 39001}, true, true},
		{node("n1", 39001), []int32{22, 10250, 39001}, false, false},
	} {
		s.broken = false
		p.nodeChanged(step.node)
		s.reserve(p.reserved())
		woken := false
		select {
		case <-p.wake:
			woken = true
		default:
		}
		if !slices.Equal(s.table.reserved, step.want) || s.broken != step.anew || woken != step.woken {
			t.Errorf("%s at %d: reserved %v, written anew %v, woken %v; want %+v", step.node.Name,
				step.node.Status.DaemonEndpoints.KubeletEndpoint.Port, s.table.reserved, s.broken, woken, step)
		}
	}
}
