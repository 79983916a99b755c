// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/knftables"
)

func v4() planner { return planner{family: family{word: "ip"}, node: "n1"} }

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func one(s *discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return []*discoveryv1.EndpointSlice{s}
}

func TestWhichEndpointsAreUsed(t *testing.T) {
	condition := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	for _, c := range []struct {
		name       string
		conditions []discoveryv1.EndpointConditions
		want       string
	}{
		{"ready ones only", []discoveryv1.EndpointConditions{condition(true, true, false), condition(false, true, true), condition(false, false, false)}, "10.0.0.1"},
		{"leaving ones when there is no other", []discoveryv1.EndpointConditions{condition(false, true, true), condition(false, false, true)}, "10.0.0.1"},
		{"none", []discoveryv1.EndpointConditions{condition(false, false, true)}, ""},
		{"unknown is ready", []discoveryv1.EndpointConditions{{}}, "10.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := slice("web", "n1")
			for i, cond := range c.conditions {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0." + string(rune('1'+i))}, Conditions: cond})
			}
			var got []string
			for _, e := range v4().endpoints(one(s), &service("web", vip).Spec.Ports[0], func(endpoint) bool { return true }) {
				got = append(got, e.at.Addr().String())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestServicesThatAreNotOurs(t *testing.T) {
	for name, change := range map[string]func(*corev1.Service){
		"headless":          func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} },
		"external":          func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName },
		"labelled headless": func(s *corev1.Service) { s.Labels = map[string]string{corev1.IsHeadlessService: ""} },
		"another's":         func(s *corev1.Service) { s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"} },
	} {
		if p := v4().plan(service("web", vip, change), one(slice("web", "n1", "10.0.0.1"))); len(p.chains)+len(p.elements) > 0 {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// A slice's own labels count too: whoever adds one to it takes its endpoints out of the Service.
func TestSlicesThatAreNotOurs(t *testing.T) {
	for _, label := range []string{corev1.IsHeadlessService, "service.kubernetes.io/service-proxy-name"} {
		taken := slice("web", "n1", "10.0.0.1")
		taken.Labels[label] = ""
		p := v4().plan(service("web", vip, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.HealthCheckNodePort = 32000
		}), []*discoveryv1.EndpointSlice{taken})
		if _, served := p.elements[elementKey{mapServices, vip + " . tcp . 80"}]; served || p.health.Local != 0 {
			t.Errorf("%s: the endpoint is used: %+v, %+v", label, p.elements, p.health)
		}
		if got := p.elements[elementKey{mapNoIPs, vip + " . tcp . 80"}]; got == "" {
			t.Errorf("%s: connections are not refused: %+v", label, p.elements)
		}
	}
}

func TestInternalTrafficStaysOnTheNodeWhereTheServiceSaysSo(t *testing.T) {
	local := service("web", vip, func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	})
	p := v4().plan(local, one(slice("web", "n2", "10.0.0.1")))
	if got := p.elements[elementKey{mapNoIPs, vip + " . tcp . 80"}]; got != "goto drop-packets" {
		t.Errorf("%q in %+v", got, p.elements)
	}
}

// Whatever Services come and go, applying the changes one by one leads to the
// table that writing everything anew does.
func TestChangesLeadToTheSameTableAsAWholeRewrite(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, fake := newState(), knftables.NewFake(knftables.IPv4Family, testTable)
		tab := &table{family: family{word: "ip"}, name: testTable, nft: fake, sockets: ptr.To(true)}
		if err := tab.rewrite(context.Background(), s.whole()); err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "service")
			change := s.apply(map[types.NamespacedName]*plan{{Namespace: "default", Name: name}: v4().plan(drawService(rt, name))})
			if err := tab.update(context.Background(), change); err != nil {
				rt.Fatal(err)
			}
		}
		stepwise := lines(fake.Dump())
		again := knftables.NewFake(knftables.IPv4Family, testTable)
		tab.nft = again
		if err := tab.rewrite(context.Background(), s.whole()); err != nil {
			rt.Fatal(err)
		}
		if atOnce := lines(again.Dump()); !slices.Equal(stepwise, atOnce) {
			rt.Fatalf("stepwise\n%s\nat once\n%s", strings.Join(stepwise, "\n"), strings.Join(atOnce, "\n"))
		}
	})
}

func lines(dump string) []string {
	all := strings.Split(strings.TrimSpace(dump), "\n")
	slices.Sort(all)
	return all
}

// drawService makes a Service, or none, with shared addresses and endpoints on purpose.
func drawService(rt *rapid.T, name string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	if rapid.Bool().Draw(rt, "gone") {
		return nil, nil
	}
	s := service(name, rapid.SampledFrom([]string{vip, "10.96.0.11"}).Draw(rt, "ip"))
	if rapid.Bool().Draw(rt, "node port") {
		nodePort(rapid.Int32Range(30080, 30081).Draw(rt, "port"))(s)
		if rapid.Bool().Draw(rt, "local") {
			localOnly(s)
		}
	}
	if rapid.Bool().Draw(rt, "sticky") {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(rapid.Int32Range(10, 11).Draw(rt, "seconds"))},
		}
	}
	ips := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}), 0, 3, rapid.ID).Draw(rt, "endpoints")
	return s, one(slice(name, rapid.SampledFrom([]string{"n1", "n2"}).Draw(rt, "node"), ips...))
}
