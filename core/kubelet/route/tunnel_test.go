// SPDX-License-Identifier: Apache-2.0

package route

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// host is a network namespace, which the test's thread enters to act there.
type host struct {
	fd int
}

// newHost makes a namespace and stays in it.
func newHost(t *testing.T) host {
	t.Helper()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	ip(t, "link", "set", "lo", "up")
	return host{int(f.Fd())}
}

func (h host) enter(t *testing.T) {
	t.Helper()
	if err := unix.Setns(h.fd, unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// connectTo gives the namespace that the thread is in a link to another, each with its address.
func (h host) connectTo(t *testing.T, other host, link, own, others string) {
	t.Helper()
	h.enter(t)
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link, MTU: 1500}, PeerName: link, PeerNamespace: netlink.NsFd(other.fd)}
	if err := netlink.LinkAdd(v); err != nil {
		t.Fatal(err)
	}
	ip(t, "addr", "add", own, "dev", link, "nodad")
	ip(t, "link", "set", link, "up")
	other.enter(t)
	ip(t, "addr", "add", others, "dev", link, "nodad")
	ip(t, "link", "set", link, "up")
}

func config(t *testing.T, name, address string) Config {
	t.Helper()
	mtu, err := MTU(Auto, netip.MustParseAddr(address), 0, clusters)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Node: name, Cluster: clusters, Names: linuxhost.NamesOf("routetest"), Backend: Auto, MTU: mtu,
		Log: slog.New(slog.DiscardHandler),
	}
}

// Two machines with a router in between, and a third on the link of the first: packets of
// full size arrive, and by the tunnel only where there is no shorter way.
func TestTunnel(t *testing.T) {
	for family, a := range map[string][6]string{
		"over IPv4": {"192.0.2.1", "192.0.2.254", "198.51.100.2", "198.51.100.254", "192.0.2.3", "/24"},
		"over IPv6": {"2001:db8:1::1", "2001:db8:1::254", "2001:db8:2::2", "2001:db8:2::254", "2001:db8:1::3", "/64"},
	} {
		t.Run(family, func(t *testing.T) { testTunnel(t, a[0], a[1], a[2], a[3], a[4], a[5]) })
	}
}

func testTunnel(t *testing.T, one, routerOne, two, routerTwo, neighbour, mask string) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	router, first, second := newHost(t), newHost(t), newHost(t)
	router.enter(t)
	for _, path := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	first.connectTo(t, router, "one", one+mask, routerOne+mask)
	second.connectTo(t, router, "two", two+mask, routerTwo+mask)
	nodes := []*corev1.Node{
		dual(node("one", "10.1.1.0/24", one, time.Hour), "fd00:1:0:1::/64", ""),
		dual(node("two", "10.1.2.0/24", two, time.Hour), "fd00:1:0:2::/64", ""),
		dual(node("near", "10.1.3.0/24", neighbour, time.Hour), "fd00:1:0:3::/64", ""),
	}
	bridges := map[string]string{"one": "fd00:1:0:1::1/64", "two": "fd00:1:0:2::1/64"}
	ends := map[string]host{"one": first, "two": second}
	ways := map[string]string{"one": routerOne, "two": routerTwo}
	addresses := map[string]string{"one": one, "two": two}
	names := linuxhost.NamesOf("routetest")
	guards := map[string]*guard{}
	for name := range ends {
		guards[name] = &guard{table: names.Table("tunnel"), bridge: names.Bridge()}
	}
	apply := func(name string, nodes []*corev1.Node) map[Route]error {
		ends[name].enter(t)
		return config(t, name, addresses[name]).apply(t.Context(), nodes, guards[name])
	}
	for name, way := range ways {
		ends[name].enter(t)
		ip(t, "route", "add", "default", "via", way)
		ip(t, "link", "add", names.Bridge(), "type", "bridge")
		ip(t, "addr", "add", bridges[name], "dev", names.Bridge(), "nodad")
		ip(t, "link", "set", names.Bridge(), "up")
		for range 2 {
			if failed := apply(name, nodes); len(failed) > 0 {
				t.Fatalf("%s: %v", name, failed)
			}
		}
	}
	// A pod's packet of full size, which nobody may break, and the answer.
	first.enter(t)
	reach(t, "10.1.2.0", second, first, true)
	reach(t, "fd00:1:0:2::1", second, first, true)

	if got := ip(t, "-6", "route", "show", "fd00:1:0:2::/64"); !strings.Contains(got, "via fd00:1:0:2::1 dev wpxroutetest") {
		t.Errorf("the route of IPv6 to the far node is %q", got)
	}
	if got := ip(t, "-6", "route", "show", "fd00:1:0:3::/64"); netip.MustParseAddr(one).Is6() &&
		!strings.Contains(got, "via "+neighbour+" dev one") {
		t.Errorf("the route of IPv6 to the near node is %q", got)
	}
	if got := ip(t, "route", "show", "10.1.2.0/24"); !strings.Contains(got, "via 10.1.2.0 dev wpxroutetest") {
		t.Errorf("the route to the far node is %q", got)
	}
	if got := ip(t, "route", "show", "10.1.3.0/24"); netip.MustParseAddr(one).Is4() && !strings.Contains(got, "via "+neighbour+" dev one") {
		t.Errorf("the route to the near node is %q", got)
	}

	// One that is no node, or no longer, gets nothing into the tunnel.
	stranger := dual(node("two", "10.1.2.0/24", neighbour, time.Hour), "fd00:1:0:2::/64", "")
	if failed := apply("one", []*corev1.Node{nodes[0], stranger}); len(failed) > 0 {
		t.Fatal(failed)
	}
	if got := ip(t, "neigh", "show", "dev", "wpxroutetest") + ip(t, "route"); strings.Contains(got, two) || strings.Contains(got,
		"dev wpxroutetest via") {
		t.Errorf("a node that left is known still:\n%s", got)
	}
	if fdb, err := netlink.NeighList(deviceIndex(t), unix.AF_BRIDGE); err != nil || strings.Contains(forwardingOf(fdb), two) {
		t.Errorf("a node that left is in the forwarding database: %v %v", fdb, err)
	}
	// The way back leads through the tunnel all the same, so that only the guard can hold it.
	ip(t, "route", "replace", "10.1.2.0/24", "dev", "wpxroutetest")
	reach(t, "10.1.1.0", first, second, false)
	first.enter(t)
	ip(t, "-6", "route", "replace", "fd00:1:0:2::/64", "dev", "wpxroutetest")
	reach(t, "fd00:1:0:1::1", first, second, false)
	first.enter(t)

	if failed := apply("one", nodes[:1]); len(failed) > 0 {
		t.Fatal(failed)
	}
	if _, err := netlink.LinkByName("wpxroutetest"); err == nil {
		t.Error("a node that is alone keeps its tunnel")
	}
}

func netlinkMTU(t *testing.T) int {
	t.Helper()
	l, err := netlink.LinkByName("wpxroutetest")
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().MTU
}

func deviceIndex(t *testing.T) int {
	t.Helper()
	l, err := netlink.LinkByName("wpxroutetest")
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().Index
}

func forwardingOf(all []netlink.Neigh) string {
	var out []string
	for _, n := range all {
		out = append(out, n.IP.String())
	}
	return strings.Join(out, " ")
}

// reach sends a datagram that fills the tunnel's MTU from one namespace to an address in
// another, where it must arrive, or must not.
func reach(t *testing.T, address string, at, from host, want bool) {
	t.Helper()
	at.enter(t)
	network, headers := "udp4", 20+8
	if netip.MustParseAddr(address).Is6() {
		network, headers = "udp6", 40+8
	}
	l, err := net.ListenPacket(network, net.JoinHostPort(address, "9"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from.enter(t)
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var refused error
		err := raw.Control(func(fd uintptr) {
			if network == "udp6" {
				refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
				return
			}
			refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		})
		return errors.Join(err, refused)
	}}
	c, err := d.DialContext(t.Context(), network, net.JoinHostPort(address, "9"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	size := netlinkMTU(t) - headers
	patience := 10 * time.Second
	if !want {
		patience = 300 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	arrived := make(chan int, 1)
	go func() {
		if n, _, err := l.ReadFrom(make([]byte, 2*size)); err == nil {
			arrived <- n
		}
	}()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		if _, err := c.Write(make([]byte, size)); err != nil && want {
			t.Fatalf("send a packet of full size: %v", err)
		}
		select {
		case n := <-arrived:
			if !want || n != size {
				t.Errorf("a packet of %d bytes arrived at %s (wanted: %v)", n, address, want)
			}
			return
		case <-ctx.Done():
			if want {
				t.Errorf("nothing arrives at %s", address)
			}
			return
		case <-again.C:
		}
	}
}

func TestHardwareAndNetworkIDs(t *testing.T) {
	a, b := hardware(netip.MustParseAddr("192.0.2.1")), hardware(netip.MustParseAddr("192.0.2.2"))
	if len(a) != 6 || a[0]&3 != 2 || a.String() == b.String() {
		t.Errorf("%s and %s: want two local addresses of one host each", a, b)
	}
	if id := networkID(cluster); id>>24 != 0 || id == networkID(netip.MustParsePrefix("10.2.0.0/16")) ||
		id != networkID(netip.MustParsePrefix("10.1.9.9/16")) {
		t.Errorf("network %x", id)
	}
}

// What a link carries decides what pods' links do.
func TestMTU(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	newHost(t)
	ip(t, "link", "add", "v0", "mtu", "1400", "type", "veth", "peer", "name", "v1")
	ip(t, "addr", "add", "192.0.2.1/24", "dev", "v0")
	ip(t, "link", "add", "v2", "mtu", "1320", "type", "veth", "peer", "name", "v3")
	ip(t, "addr", "add", "192.0.2.9/24", "dev", "v2")
	for _, c := range []struct {
		backend Backend
		address string
		wanted  int
		want    int
		err     string
	}{
		{Auto, "192.0.2.1", 0, 1350, ""},
		{VXLAN, "192.0.2.1", 0, 1350, ""},
		{Routes, "192.0.2.1", 0, 1400, ""},
		{Auto, "192.0.2.1", 1300, 1300, ""},
		{Auto, "192.0.2.1", 1351, 0, "the link v0 leaves 1350 bytes for a pod's packet, found 1351"},
		{Auto, "127.0.0.1", 0, 1450, ""},
		{Auto, "2001:db8::1", 0, 1430, ""},
		{Auto, "192.0.2.9", 0, 0, "the link v2 leaves 1270 bytes for a pod's packet, and at least 1280 are needed"},
	} {
		got, err := MTU(c.backend, netip.MustParseAddr(c.address), c.wanted, clusters)
		if got != c.want || c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
}
