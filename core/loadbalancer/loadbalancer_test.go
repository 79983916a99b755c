// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

func TestRanges(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.64/28":           "192.0.2.64 192.0.2.79",
		"192.0.2.70/28":           "192.0.2.64 192.0.2.79",
		"192.0.2.10-192.0.2.20":   "192.0.2.10 192.0.2.20",
		"192.0.2.10 - 192.0.2.20": "192.0.2.10 192.0.2.20",
		"192.0.2.7":               "192.0.2.7 192.0.2.7",
		"2001:db8::/126":          "2001:db8:: 2001:db8::3",
		"":                        "", "x": "", "192.0.2.20-192.0.2.10": "", "192.0.2.1-2001:db8::1": "", "192.0.2.1-": "",
		"127.0.0.0/24": "", "224.0.0.1": "", "0.0.0.0/0": "", "fe80::1": "", "169.254.1.1-169.254.1.2": "", "::ffff:192.0.2.1": "",
		"2001:db8::1%eth0": "",
	} {
		r, err := ParseRange(text)
		if got := fmt.Sprint(r.First, " ", r.Last); err == nil && got != want || err != nil && want != "" {
			t.Errorf("%q: %s, %v; want %q", text, got, err, want)
		}
	}
}

func TestFree(t *testing.T) {
	r, err := ParseRange("255.255.255.252-255.255.255.255")
	if err != nil {
		t.Fatal(err)
	}
	taken := map[netip.Addr]bool{}
	for range 4 {
		a, ok := r.Free(false, func(a netip.Addr) bool { return taken[a] })
		if !ok || taken[a] {
			t.Fatal(a, ok)
		}
		taken[a] = true
	}
	if a, ok := r.Free(false, func(a netip.Addr) bool { return taken[a] }); ok {
		t.Errorf("a full range gives %s", a)
	}
	if a, ok := r.Free(true, func(netip.Addr) bool { return false }); ok {
		t.Errorf("IPv6 address %s of an IPv4 range", a)
	}
}

func TestOverlaps(t *testing.T) {
	r, _ := ParseRange("192.0.2.10-192.0.2.20")
	for text, want := range map[string]bool{
		"192.0.2.0/24": true, "192.0.2.16/29": true, "192.0.2.0/29": false, "192.0.2.8/30": true,
		"2001:db8::/32": false,
	} {
		if got := r.Overlaps(netip.MustParsePrefix(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestOurs(t *testing.T) {
	for i, c := range []struct {
		spec corev1.ServiceSpec
		want bool
	}{
		{corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}, true},
		{corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(Class)}, true},
		{corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To("example.com/other")}, false},
		{corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}, false},
	} {
		if Ours(&corev1.Service{Spec: c.spec}) != c.want {
			t.Errorf("case %d", i)
		}
	}
}

func TestWanted(t *testing.T) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	s.Spec.LoadBalancerIP = "192.0.2.1"
	if got, err := Wanted(s); err != nil || fmt.Sprint(got) != "[192.0.2.1]" {
		t.Error(got, err)
	}
	s.Annotations[AddressesAnnotation] = "192.0.2.2, 2001:db8::2"
	if got, err := Wanted(s); err != nil || fmt.Sprint(got) != "[192.0.2.2 2001:db8::2]" {
		t.Error(got, err)
	}
	s.Annotations[AddressesAnnotation] = "192.0.2.2,router"
	if got, err := Wanted(s); err == nil {
		t.Error(got)
	}
}

// The choice does not depend on the order, stays with who has it, and moves only the
// addresses of a node that goes.
func TestElection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 1, 5, rapid.ID).Draw(t, "nodes")
		address := netip.AddrFrom4([4]byte{192, 0, 2, rapid.Byte().Draw(t, "address")})
		first := Elect(address, nodes, "")
		other := slices.Clone(nodes)
		slices.Reverse(other)
		if again := Elect(address, other, ""); again != first || !slices.Contains(nodes, first) {
			t.Fatalf("%q, then %q, of %v", first, again, nodes)
		}
		current := rapid.SampledFrom(nodes).Draw(t, "current")
		if got := Elect(address, nodes, current); got != current {
			t.Fatalf("%s had it, and %s gets it", current, got)
		}
		gone := rapid.SampledFrom(nodes).Draw(t, "gone")
		left := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == gone })
		if now := Elect(address, left, ""); gone != first && now != first {
			t.Fatalf("%s goes, and the address moves from %s to %s", gone, first, now)
		}
	})
	if got := Elect(netip.Addr{}, nil, "a"); got != "" {
		t.Errorf("%q is elected of nobody", got)
	}
}
