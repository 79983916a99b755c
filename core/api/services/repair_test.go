// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"
)

// cluster has Services, and the claims of addresses in memory.
type cluster struct {
	*memory
	svcs []corev1.Service
}

func (c *cluster) Services(context.Context) ([]corev1.Service, error) { return c.svcs, nil }

func (c *cluster) IPAddresses(context.Context) ([]networkingv1.IPAddress, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []networkingv1.IPAddress
	for _, a := range c.addresses {
		out = append(out, *a)
	}
	return out, nil
}

func (c *cluster) add(name, ip string, ports ...int32) {
	svc := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	if ip != "" {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = ip, []string{ip}
	}
	for _, p := range ports {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{NodePort: p})
	}
	c.svcs = append(c.svcs, svc)
}

func (c *cluster) pass(t *testing.T, r *Repair) string {
	t.Helper()
	done, err := r.Pass(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if done.Empty() {
		return "in order"
	}
	slices.Sort(done.ClaimedAddresses)
	slices.Sort(done.FreedAddresses)
	var out []string
	for what, list := range map[string]string{
		"freed": fmt.Sprint(done.FreedPorts, done.FreedAddresses), "claimed": fmt.Sprint(done.ClaimedPorts, done.ClaimedAddresses),
	} {
		if list != "[] []" {
			out = append(out, what+" "+list)
		}
	}
	slices.Sort(out)
	return strings.Join(append(out, done.Shared...), "; ")
}

// A server ends between the claim and the Service: what nobody uses is free again
// after three passes, not before, since a write may be on its way.
func TestClaimsOfNobodyAreFreed(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24")
	c, r := &cluster{memory: m}, NewRepair(a)
	lost := &core.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "lost"}}
	if err := a.wanted(t.Context(), lost, core.IPv4Protocol, "10.96.0.7", false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.ports.claim(t.Context(), []int32{30007}); err != nil {
		t.Fatal(err)
	}
	for pass, want := range []string{"in order", "in order", "freed [30007] [10.96.0.7]", "in order"} {
		if got := c.pass(t, r); got != want {
			t.Errorf("pass %d: %s, expected %s", pass+1, got, want)
		}
	}
	if got := m.claims(t, a); got != "0 addresses, 0 ports" {
		t.Error(got)
	}
}

// A Service that is written late keeps its claims, and counting begins anew.
func TestALateServiceKeepsItsClaims(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24")
	c, r := &cluster{memory: m}, NewRepair(a)
	late := &core.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "late"}}
	if err := a.wanted(t.Context(), late, core.IPv4Protocol, "10.96.0.7", false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.ports.claim(t.Context(), []int32{30007}); err != nil {
		t.Fatal(err)
	}
	for range passesUnused - 1 {
		c.pass(t, r)
	}
	c.add("late", "10.96.0.7", 30007)
	for range passesUnused {
		if got := c.pass(t, r); got != "in order" {
			t.Error(got)
		}
	}
	c.svcs = nil
	if got := c.pass(t, r); got != "in order" {
		t.Errorf("the first pass without the Service: %s", got)
	}
}

// Services that came with a store whose claims did not.
func TestServicesWithoutClaimsGetThem(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24")
	c, r := &cluster{memory: m}, NewRepair(a)
	c.add("web", "10.96.0.7", 30001, 30001, 80) // 80 is of another range
	c.add("dns", "10.96.0.8", 30002)
	c.add("headless", corev1.ClusterIPNone)
	c.add("elsewhere", "10.200.0.1")
	if got := c.pass(t, r); got != "claimed [30001 30002] [10.96.0.7 10.96.0.8]" {
		t.Error(got)
	}
	if got := m.claims(t, a); got != "2 addresses, 2 ports" {
		t.Error(got)
	}
	c.add("thief", "10.96.0.8")
	if got := c.pass(t, r); got != "shop/thief 10.96.0.8, of shop/dns" {
		t.Error(got)
	}
}

// Another range of node ports over the same store: what is used moves along.
func TestAnotherRangeTakesOver(t *testing.T) {
	a, m := newAllocator(t, "10.96.0.0/24")
	c := &cluster{memory: m}
	if _, _, err := a.ports.claim(t.Context(), []int32{30007}); err != nil {
		t.Fatal(err)
	}
	var err error
	if a.ports, err = NewPortRange(31000, 31010, m); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.ports.claim(t.Context(), []int32{31000}); err == nil || !strings.Contains(err.Error(), "30000-30099") {
		t.Errorf("another range over the same claims: %v", err)
	}
	c.add("web", "", 31005, 30007)
	if got := c.pass(t, NewRepair(a)); got != "claimed [31005] []" {
		t.Error(got)
	}
	if _, _, err := a.ports.claim(t.Context(), []int32{31000}); err != nil {
		t.Error(err)
	}
}
