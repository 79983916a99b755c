// SPDX-License-Identifier: Apache-2.0

package route

import (
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	cluster  = netip.MustParsePrefix("10.1.0.0/16")
	cluster6 = netip.MustParsePrefix("fd00:1::/56")
	clusters = []netip.Prefix{cluster, cluster6}
)

func node(name, podCIDR, address string, age time.Duration) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1_000_000, 0).Add(-age))},
		Spec:       corev1.NodeSpec{PodCIDR: podCIDR},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: name},
			{Type: corev1.NodeInternalIP, Address: address},
		}},
	}
}

func to(prefix, via string) Route {
	return Route{To: netip.MustParsePrefix(prefix), Via: netip.MustParseAddr(via), End: netip.MustParseAddr(via)}
}

// dual is a node with ranges and addresses of both families.
func dual(n *corev1.Node, podCIDR, address string) *corev1.Node {
	n.Spec.PodCIDRs = []string{n.Spec.PodCIDR, podCIDR}
	if address != "" {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return n
}

// What nodes say of themselves leads no traffic astray.
func TestWanted(t *testing.T) {
	nodes := []*corev1.Node{
		node("thief", "10.1.2.0/24", "192.0.2.66", time.Minute),
		node("thief-of-half", "10.1.2.128/25", "192.0.2.66", time.Minute),
		node("own-thief", "10.1.1.0/24", "192.0.2.66", 3*time.Hour),
		node("own", "10.1.1.0/24", "192.0.2.1", time.Hour),
		node("two", "10.1.2.0/24", "192.0.2.2", time.Hour),
		node("three", "10.1.3.0/24", "192.0.2.3", time.Hour),
		node("new", "", "192.0.2.4", time.Hour),
		node("no-address", "10.1.5.0/24", "", time.Hour),
		node("outside", "10.9.0.0/24", "192.0.2.6", time.Hour),
		node("everything", "10.1.0.0/16", "192.0.2.7", 2*time.Hour),
		node("default", "0.0.0.0/0", "192.0.2.8", 2*time.Hour),
		node("by-loopback", "10.1.6.0/24", "127.0.0.1", time.Hour),
		node("by-a-pod", "10.1.7.0/24", "10.1.2.9", time.Hour),
		node("by-us", "10.1.8.0/24", "192.0.2.1", time.Hour),
		node("six", "10.1.9.0/24", "fd00::1", time.Hour),
	}
	want := []Route{to("10.1.9.0/24", "fd00::1"), to("10.1.3.0/24", "192.0.2.3"), to("10.1.2.0/24", "192.0.2.2")}
	own, got := Wanted(nodes, "own", []netip.Prefix{cluster})
	if !slices.Equal(own, []Route{to("10.1.1.0/24", "192.0.2.1")}) || !slices.Equal(got, want) {
		t.Errorf("own %v, routes %v, want %v", own, got, want)
	}
}

// Each family's pods are reached by the node's address of that family, where it has one; a
// range that is not the node's leads nowhere in either family.
func TestWantedOfBothFamilies(t *testing.T) {
	nodes := []*corev1.Node{
		dual(node("own", "10.1.1.0/24", "192.0.2.1", time.Hour), "fd00:1:0:1::/64", "2001:db8::1"),
		dual(node("two", "10.1.2.0/24", "192.0.2.2", time.Hour), "fd00:1:0:2::/64", "2001:db8::2"),
		dual(node("three", "10.1.3.0/24", "192.0.2.3", time.Hour), "fd00:1:0:3::/64", ""),
		dual(node("thief", "10.1.4.0/24", "192.0.2.4", time.Minute), "fd00:1:0:2::/64", "2001:db8::4"),
		dual(node("by-us", "10.1.5.0/24", "192.0.2.5", time.Minute), "fd00:1:0:5::/64", "2001:db8::1"),
		dual(node("by-a-pod", "10.1.6.0/24", "192.0.2.6", time.Minute), "fd00:1:0:6::/64", "fd00:1:0:2::9"),
		dual(node("outside", "10.1.7.0/24", "192.0.2.7", time.Minute), "fd00:2::/64", "2001:db8::7"),
		dual(node("link-local", "10.1.8.0/24", "192.0.2.8", time.Minute), "fd00:1:0:8::/64", "fe80::8"),
	}
	six := func(prefix, via, end string) Route {
		r := to(prefix, via)
		r.End = netip.MustParseAddr(end)
		return r
	}
	want := []Route{
		to("10.1.3.0/24", "192.0.2.3"), six("fd00:1:0:3::/64", "192.0.2.3", "192.0.2.3"),
		to("10.1.2.0/24", "192.0.2.2"), six("fd00:1:0:2::/64", "2001:db8::2", "192.0.2.2"),
		to("10.1.6.0/24", "192.0.2.6"), to("10.1.5.0/24", "192.0.2.5"), to("10.1.8.0/24", "192.0.2.8"),
		six("fd00:1:0:8::/64", "192.0.2.8", "192.0.2.8"), to("10.1.7.0/24", "192.0.2.7"), to("10.1.4.0/24", "192.0.2.4"),
	}
	own, got := Wanted(nodes, "own", clusters)
	byRange := func(a, b Route) int { return a.To.Addr().Compare(b.To.Addr()) }
	slices.SortFunc(got, byRange)
	slices.SortFunc(want, byRange)
	if len(own) != 2 || !slices.Equal(got, want) {
		t.Errorf("own %v, routes\n%v, want\n%v", own, got, want)
	}
}

// In a network namespace of its own: routes come, change, go; others' stay.
func TestApply(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	ip := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	ip("link", "set", "lo", "up")
	ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
	ip("addr", "add", "192.0.2.1/24", "dev", "v0")
	ip("link", "set", "v0", "up")
	ip("link", "set", "v1", "up")
	ip("route", "add", "10.1.9.0/24", "via", "192.0.2.9")                // an operator's
	ip("route", "add", "10.2.0.0/24", "via", "192.0.2.9", "proto", "87") // of another cluster
	routes := func() string { return ip("route", "show") }

	for range 2 {
		failed := Apply([]netip.Prefix{cluster}, 0, []Route{
			to("10.1.2.0/24", "192.0.2.2"), to("10.1.3.0/24", "192.0.2.3"),
			to("10.1.4.0/24", "198.51.100.4"),
		})
		if err := failed[to("10.1.4.0/24", "198.51.100.4")]; len(failed) != 1 || err == nil || !strings.Contains(err.Error(),
			"on no link of this machine") {
			t.Errorf("refused: %v", failed)
		}
		for _, want := range []string{"10.1.2.0/24 via 192.0.2.2 dev v0", "10.1.3.0/24 via 192.0.2.3 dev v0"} {
			if strings.Count(routes(), want) != 1 {
				t.Errorf("there is not one route %q:\n%s", want, routes())
			}
		}
	}
	if failed := Apply([]netip.Prefix{cluster}, 0, []Route{to("10.1.2.0/24", "192.0.2.22")}); len(failed) != 0 {
		t.Errorf("refused: %v", failed)
	}
	if got := routes(); !strings.Contains(got, "10.1.2.0/24 via 192.0.2.22") || strings.Contains(got, "192.0.2.2 ") || strings.Contains(got,
		"10.1.3.0/24") {
		t.Errorf("routes:\n%s", got)
	}
	if err := Remove(cluster); err != nil {
		t.Fatal(err)
	}
	got := routes()
	for _, stays := range []string{"10.1.9.0/24 via 192.0.2.9", "10.2.0.0/24 via 192.0.2.9"} {
		if !strings.Contains(got, stays) {
			t.Errorf("%s is gone:\n%s", stays, got)
		}
	}
	if strings.Contains(got, "10.1.2.0/24") {
		t.Errorf("a route is left:\n%s", got)
	}
}
