// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
)

// memory keeps claims as the store does: creates are exclusive, updates compare and swap.
type memory struct {
	mu        sync.Mutex
	addresses map[string]*networkingv1.IPAddress
	ports     corev1.RangeAllocation
	writes    int // of ports
}

func (m *memory) Claim(_ context.Context, o *networkingv1.IPAddress) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.addresses[o.Name] != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "ipaddresses"}, o.Name)
	}
	m.addresses[o.Name] = o
	return nil
}

func (m *memory) Release(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.addresses, name)
	return nil
}

func (m *memory) Taken(string) bool { return false }

func (m *memory) Read(context.Context) (*corev1.RangeAllocation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ports.DeepCopy(), nil
}

func (m *memory) Update(_ context.Context, change func(*corev1.RangeAllocation) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.ports.DeepCopy()
	if err := change(next); err != nil {
		return err
	}
	// Through the stored form, as the registry does.
	b, err := EncodeRange(next)
	if err != nil {
		return err
	}
	stored, err := DecodeRange(b)
	if err != nil {
		return err
	}
	m.ports = *stored
	m.writes++
	return nil
}

func (m *memory) claims(t *testing.T, a *Allocator) string {
	t.Helper()
	r, _ := m.Read(t.Context())
	p, err := a.ports.allocator(r)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d addresses, %d ports", len(m.addresses), p.Used())
}

func newAllocator(t *testing.T, cidrs ...string) (*Allocator, *memory) {
	t.Helper()
	m := &memory{addresses: map[string]*networkingv1.IPAddress{}}
	cfg := Config{Failed: func(err error) { t.Error(err) }}
	for _, c := range cidrs {
		p, err := NewAddressPool(c, m)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Pools = append(cfg.Pools, p)
	}
	var err error
	if cfg.Ports, err = NewPortRange(30000, 30099, m); err != nil {
		t.Fatal(err)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a, m
}

func service(kind core.ServiceType, ports ...int32) *core.Service {
	s := &core.Service{}
	s.Name, s.Namespace = "web", "default"
	s.Spec.Type = kind
	s.Spec.Selector = map[string]string{"a": "b"}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, core.ServicePort{Name: fmt.Sprint("p", p), Port: p, Protocol: core.ProtocolTCP})
	}
	return s
}

// A service's life: made, exposed, hidden again, turned into a name, deleted.
func TestAServiceGetsKeepsAndGivesBack(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24")
	ctx := t.Context()
	s := service(core.ServiceTypeClusterIP, 80, 443)
	claims, err := a.Create(ctx, s, false)
	if err != nil {
		t.Fatal(err)
	}
	claims.Commit(ctx)
	if !strings.HasPrefix(s.Spec.ClusterIP, "10.96.0.") || len(s.Spec.ClusterIPs) != 1 || s.Spec.IPFamilies[0] != core.IPv4Protocol ||
		*s.Spec.IPFamilyPolicy != core.IPFamilyPolicySingleStack {
		t.Errorf("%+v", s.Spec)
	}
	if o := m.addresses[s.Spec.ClusterIP]; o == nil || o.Spec.ParentRef.Name != "web" ||
		o.Labels["ipaddress.kubernetes.io/managed-by"] != "ipallocator.k8s.io" {
		t.Errorf("claim %+v", o)
	}
	update := func(change func(*core.Service), want string) {
		t.Helper()
		next := s.DeepCopy()
		change(next)
		claims, err := a.Update(ctx, next, s.DeepCopy(), false)
		if err != nil {
			t.Fatal(err)
		}
		claims.Commit(ctx)
		if got := m.claims(t, a); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		s = next
	}
	update(func(s *core.Service) { s.Spec.Type = core.ServiceTypeNodePort }, "1 addresses, 2 ports")
	first := s.Spec.Ports[0].NodePort
	update(func(s *core.Service) {
		// What a manifest that names none of the allocated values asks for.
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 0, 0
	}, "1 addresses, 2 ports")
	if s.Spec.Ports[0].NodePort != first {
		t.Errorf("node port changed from %d to %d", first, s.Spec.Ports[0].NodePort)
	}
	update(func(s *core.Service) { s.Spec.Ports = s.Spec.Ports[:1] }, "1 addresses, 1 ports")
	update(func(s *core.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = core.ServiceTypeLoadBalancer, core.ServiceExternalTrafficPolicyLocal
	}, "1 addresses, 2 ports")
	update(func(s *core.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = core.ServiceTypeClusterIP, ""
		s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort = 0, 0
	}, "1 addresses, 0 ports")
	update(func(s *core.Service) {
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = core.ServiceTypeExternalName, "", nil
		s.Spec.ExternalName, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "a.example", nil, nil
	}, "0 addresses, 0 ports")
	update(func(s *core.Service) { s.Spec.Type, s.Spec.ExternalName = core.ServiceTypeNodePort, "" }, "1 addresses, 1 ports")
	a.Released(ctx, s)
	if got := m.claims(t, a); got != "0 addresses, 0 ports" {
		t.Errorf("after delete: %s", got)
	}
}

func TestWishesAreGrantedOrRefusedInUpstreamsWords(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24")
	ctx := t.Context()
	taken := service(core.ServiceTypeNodePort, 80)
	taken.Spec.ClusterIP, taken.Spec.Ports[0].NodePort = "10.96.0.10", 30080
	if _, err := a.Create(ctx, taken, false); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*core.Service)
		err    string
	}{
		"taken address": {
			func(s *core.Service) { s.Spec.ClusterIP = "10.96.0.10" },
			`spec.clusterIPs: Invalid value: ["10.96.0.10"]: failed to allocate IP 10.96.0.10: provided IP is already allocated`,
		},
		"address outside": {
			func(s *core.Service) { s.Spec.ClusterIP = "10.97.0.1" },
			`failed to allocate IP 10.97.0.1: the provided IP (10.97.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/24`,
		},
		"network address": {func(s *core.Service) { s.Spec.ClusterIP = "10.96.0.0" }, `not in the valid range`},
		"broadcast":       {func(s *core.Service) { s.Spec.ClusterIP = "10.96.0.255" }, `not in the valid range`},
		"taken port": {
			func(s *core.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = core.ServiceTypeNodePort, 30080 },
			`spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated`,
		},
		"port outside": {
			func(s *core.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = core.ServiceTypeNodePort, 80 },
			`provided port is not in the valid range. The range of valid ports is 30000-30099`,
		},
		"two families": {
			func(s *core.Service) { s.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicyRequireDualStack) },
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`,
		},
		"IPv6": {
			func(s *core.Service) { s.Spec.IPFamilies = []core.IPFamily{core.IPv6Protocol} },
			`spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := service(core.ServiceTypeClusterIP, 80)
			tc.change(s)
			_, err := a.Create(ctx, s, false)
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v", err)
			}
			if got := m.claims(t, a); got != "1 addresses, 1 ports" {
				t.Errorf("refused, and left %s", got)
			}
		})
	}
	dry := service(core.ServiceTypeNodePort, 80)
	if _, err := a.Create(ctx, dry, true); err != nil || dry.Spec.ClusterIP == "" || dry.Spec.Ports[0].NodePort == 0 {
		t.Errorf("dry run: %v %+v", err, dry.Spec)
	}
	if got := m.claims(t, a); got != "1 addresses, 1 ports" {
		t.Errorf("a dry run left %s", got)
	}
}

// Each node port was a write that the next one waited for: a Service of 3,000 ports took seventeen seconds.
func TestNodePortsAreClaimedTogether(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24")
	ctx := t.Context()
	numbers := func(n int) (out []int32) {
		for i := range n {
			out = append(out, int32(i+1))
		}
		return out
	}
	wide := service(core.ServiceTypeNodePort, numbers(99)...)
	// A wish is not given away to a port before it that takes any.
	wide.Spec.Ports[98].NodePort = 30050
	claims, err := a.Create(ctx, wide, false)
	if err != nil || m.writes != 1 || m.claims(t, a) != "1 addresses, 99 ports" || wide.Spec.Ports[98].NodePort != 30050 {
		t.Fatalf("%v: %d writes, %s", err, m.writes, m.claims(t, a))
	}
	claims.Commit(ctx)
	given := map[int32]bool{}
	for _, port := range wide.Spec.Ports {
		given[port.NodePort] = true
	}
	if len(given) != 99 || given[0] {
		t.Errorf("%d ports were given: %v", len(given), given)
	}

	two := service(core.ServiceTypeNodePort, 80, 443)
	_, err = a.Create(ctx, two, false)
	if err == nil || err.Error() != "Internal error occurred: failed to allocate a nodePort: range is full" || m.writes != 1 ||
		m.claims(t, a) != "1 addresses, 99 ports" {
		t.Errorf("two where one is left: %v, %d writes, %s", err, m.writes, m.claims(t, a))
	}
	for _, dry := range []bool{false, true} {
		_, err = a.Create(ctx, service(core.ServiceTypeNodePort, numbers(101)...), dry)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.ports: Invalid value: 101: need 101 node ports, and the cluster has 100 (30000-30099)") {
			t.Errorf("more than there are: %v", err)
		}
	}

	fewer := wide.DeepCopy()
	fewer.Spec.Ports = fewer.Spec.Ports[:1]
	claims, err = a.Update(ctx, fewer, wide.DeepCopy(), false)
	if err != nil || m.writes != 1 {
		t.Fatalf("nothing is added: %v, %d writes", err, m.writes)
	}
	claims.Commit(ctx)
	if m.writes != 2 || m.claims(t, a) != "1 addresses, 1 ports" {
		t.Errorf("98 less: %d writes, %s", m.writes, m.claims(t, a))
	}
	claims, err = a.Update(ctx, wide, fewer, false)
	if err != nil || m.writes != 3 || m.claims(t, a) != "1 addresses, 99 ports" {
		t.Fatalf("98 more: %v, %d writes, %s", err, m.writes, m.claims(t, a))
	}
	claims.Revert(ctx)
	if m.writes != 4 || m.claims(t, a) != "1 addresses, 1 ports" {
		t.Errorf("taken back: %d writes, %s", m.writes, m.claims(t, a))
	}
}

// Two ports of one number share a node port, unless they ask for different ones; what a
// dry run shows is refused where a write would be.
func TestPortsOfOneNumber(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24")
	ctx := t.Context()
	s := service(core.ServiceTypeNodePort, 53, 53, 53)
	s.Spec.Ports[1].Protocol, s.Spec.Ports[2].Protocol = core.ProtocolUDP, core.ProtocolSCTP
	s.Spec.Ports[1].NodePort, s.Spec.Ports[2].NodePort = 30053, 30054
	if _, err := a.Create(ctx, s, false); err != nil {
		t.Fatal(err)
	}
	if got := s.Spec.Ports; got[0].NodePort != 30053 || got[1].NodePort != 30053 || got[2].NodePort != 30054 ||
		m.claims(t, a) != "1 addresses, 2 ports" {
		t.Errorf("%+v, %s", got, m.claims(t, a))
	}
	for _, dry := range []bool{false, true} {
		s := service(core.ServiceTypeNodePort, 80, 81)
		s.Spec.Ports[1].NodePort = 30054
		_, err := a.Create(ctx, s, dry)
		if err == nil || !strings.Contains(err.Error(), "spec.ports[1].nodePort: Invalid value: 30054: provided port is already allocated") {
			t.Errorf("dry %v: %v", dry, err)
		}
		s = service(core.ServiceTypeNodePort, 80, 81)
		s.Spec.Ports[1].NodePort, s.Spec.Ports[0].NodePort = 30060, 30060
		_, err = a.Create(ctx, s, dry)
		if err == nil || !strings.Contains(err.Error(), "spec.ports[1].nodePort: Invalid value: 30060: provided port is already allocated") {
			t.Errorf("dry %v, twice: %v", dry, err)
		}
	}
	if got := m.claims(t, a); got != "1 addresses, 2 ports" {
		t.Errorf("refused, and left %s", got)
	}
}

func TestTwoFamilies(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24", "fd00:10::/112")
	ctx := t.Context()
	s := service(core.ServiceTypeClusterIP, 80)
	s.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicyPreferDualStack)
	claims, err := a.Create(ctx, s, false)
	if err != nil || len(s.Spec.ClusterIPs) != 2 || !strings.HasPrefix(s.Spec.ClusterIPs[1], "fd00:10::") {
		t.Fatalf("%v %+v", err, s.Spec)
	}
	claims.Commit(ctx)
	single := s.DeepCopy()
	single.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicySingleStack)
	claims, err = a.Update(ctx, single, s, false)
	if err != nil || len(single.Spec.ClusterIPs) != 1 {
		t.Fatalf("%v %+v", err, single.Spec)
	}
	claims.Revert(ctx)
	if got := m.claims(t, a); got != "2 addresses, 0 ports" {
		t.Errorf("reverted: %s", got)
	}
	claims.Commit(ctx)
	if got := m.claims(t, a); got != "1 addresses, 0 ports" {
		t.Errorf("committed: %s", got)
	}
	headless := service(core.ServiceTypeClusterIP, 80)
	headless.Spec.ClusterIP, headless.Spec.Selector = core.ClusterIPNone, nil
	if _, err := a.Create(ctx, headless, false); err != nil || len(headless.Spec.IPFamilies) != 2 {
		t.Errorf("%v %+v", err, headless.Spec)
	}
}

// A full range is refused, never given twice, however many ask at once.
func TestARangeIsGivenOutOnce(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/26")
	var group sync.WaitGroup
	var mu sync.Mutex
	given, full := map[string]bool{}, 0
	for range 80 {
		group.Go(func() {
			s := service(core.ServiceTypeClusterIP, 80)
			_, err := a.Create(t.Context(), s, false)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && given[s.Spec.ClusterIP]:
				t.Errorf("%s was given twice", s.Spec.ClusterIP)
			case err == nil:
				given[s.Spec.ClusterIP] = true
			case strings.Contains(err.Error(), "range is full"):
				full++
			default:
				t.Error(err)
			}
		})
	}
	group.Wait()
	if len(given) != 62 || full != 18 || len(m.addresses) != 62 {
		t.Errorf("%d given, %d refused", len(given), full)
	}
}

func FuzzDecodeRange(f *testing.F) {
	b, err := EncodeRange(&corev1.RangeAllocation{Range: "30000-30099", Data: []byte{1, 2}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeRange(b); err == nil {
			p := &PortRange{ports: mustRange(t)}
			if a, err := p.allocator(r); err == nil {
				a.Used()
			}
		}
	})
}

func mustRange(t *testing.T) (out utilnet.PortRange) {
	t.Helper()
	if err := out.Set("30000-30099"); err != nil {
		t.Fatal(err)
	}
	return out
}

// Clients of old versions send an external name's policy; upstream takes it and shows none.
func TestAnExternalNameHasNoInternalTrafficPolicy(t *testing.T) {
	a, _ := newAllocator(t, "10.96.0.0/24")
	ctx := t.Context()
	local := core.ServiceInternalTrafficPolicyLocal
	name := service(core.ServiceTypeExternalName)
	name.Spec.ExternalName, name.Spec.InternalTrafficPolicy = "a.example", &local
	if _, err := a.Create(ctx, name, false); err != nil || name.Spec.InternalTrafficPolicy != nil {
		t.Errorf("created: policy %v, %v", name.Spec.InternalTrafficPolicy, err)
	}
	before := service(core.ServiceTypeClusterIP, 80)
	before.Spec.InternalTrafficPolicy = &local
	claims, err := a.Create(ctx, before, false)
	if err != nil || before.Spec.InternalTrafficPolicy == nil {
		t.Fatalf("a Service with an address keeps its policy: %v, %v", before.Spec.InternalTrafficPolicy, err)
	}
	claims.Commit(ctx)
	turned := before.DeepCopy()
	turned.Spec.Type, turned.Spec.ExternalName = core.ServiceTypeExternalName, "a.example"
	turned.Spec.ClusterIP, turned.Spec.ClusterIPs = "", nil
	turned.Spec.IPFamilies, turned.Spec.IPFamilyPolicy = nil, nil
	if _, err := a.Update(ctx, turned, before, false); err != nil || turned.Spec.InternalTrafficPolicy != nil {
		t.Errorf("turned into a name: policy %v, %v", turned.Spec.InternalTrafficPolicy, err)
	}
}
