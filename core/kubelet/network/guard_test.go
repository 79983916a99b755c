// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/ipv6"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/netlab"
)

const (
	gateway6, podA, podB = "fd00:1::1", "fd00:1::a", "fd00:1::b"
	outside              = "fd00:9::1"
)

// street is a node with its bridge, and two pods on it.
type street struct {
	netlab.Lab
	t *testing.T
	c Config
}

func newStreet(t *testing.T) *street {
	t.Helper()
	c, err := testConfig(t, "10.1.2.0/24", "fd00:1::/64").validate()
	if err != nil {
		t.Fatal(err)
	}
	s := &street{netlab.New(t), t, c}
	for _, name := range []string{"node", "a", "b"} {
		s.Namespace(name)
	}
	hostcheck.LoadBridgeFilter(t.Context())
	s.in("node", func() error {
		if err := write(map[string]string{"net/bridge/bridge-nf-call-ip6tables": "1", "net/ipv6/conf/all/forwarding": "1"}); err != nil {
			return err
		}
		return ensureBridge(c)
	})
	s.Run("node", "ip", "link", "add", "outside", "type", "bridge")
	s.Run("node", "ip", "addr", "add", outside+"/64", "dev", "outside", "nodad")
	s.Run("node", "ip", "link", "set", "outside", "up")
	for pod, address := range map[string]string{"a": podA, "b": podB} {
		s.Run("node", "ip", "link", "add", "v"+pod, "type", "veth", "peer", "name", "eth0", "netns", s.Name(pod))
		s.Run("node", "ip", "link", "set", "v"+pod, "master", c.Names.Bridge(), "up")
		s.Run(pod, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad")
		s.Run(pod, "ip", "addr", "add", address+"/64", "dev", "eth0", "nodad")
		s.Run(pod, "ip", "link", "set", "eth0", "up")
	}
	s.Run("a", "ip", "-6", "route", "add", outside, "via", gateway6)
	return s
}

func (s *street) in(namespace string, do func() error) {
	s.t.Helper()
	if err := s.In(namespace, do); err != nil {
		s.t.Fatal(err)
	}
}

// message is sent by pod a to all nodes of the link, as a router or neighbour sends it.
func (s *street) message(body ...byte) {
	s.t.Helper()
	s.in("a", func() error {
		socket, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		defer socket.Close()
		on, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		conn := ipv6.NewPacketConn(socket)
		_, err = conn.WriteTo(body, &ipv6.ControlMessage{HopLimit: 255, IfIndex: on.Index},
			&net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: "eth0"})
		return err
	})
}

func (s *street) advertiseRouter() {
	s.message(134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0)
}

func (s *street) advertiseGateway(hardware string) {
	mac, err := net.ParseMAC(hardware)
	if err != nil {
		s.t.Fatal(err)
	}
	b := []byte{136, 0, 0, 0, 0x20, 0, 0, 0}
	b = append(b, netip.MustParseAddr(gateway6).AsSlice()...)
	s.message(append(append(b, 2, 1), mac...)...)
}

// arrives sends a datagram from an address of pod a, again and again, until it is where it is to
// be; what a sent before has been dealt with then.
func (s *street) arrives(at, from, to string) bool {
	s.t.Helper()
	var got net.PacketConn
	s.in(at, func() (err error) {
		got, err = net.ListenPacket("udp6", net.JoinHostPort(to, "0"))
		return err
	})
	defer got.Close()
	arrived := make(chan struct{})
	go func() {
		if _, _, err := got.ReadFrom(make([]byte, 8)); err == nil {
			close(arrived)
		}
	}()
	var c net.Conn
	s.in("a", func() (err error) {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
		c, err = d.DialContext(s.t.Context(), "udp6", got.LocalAddr().String())
		return err
	})
	defer c.Close()
	is := false
	netlab.Eventually(s.t, "a datagram arrives, or twenty do not", func() bool {
		_, _ = c.Write([]byte("x"))
		select {
		case <-arrived:
			is = true
			return true
		default:
			tries[from]++
			return tries[from]%20 == 0
		}
	})
	return is
}

// tries by source.
var tries = map[string]int{}

func TestNobodyOnTheBridgeIsARouter(t *testing.T) {
	s := newStreet(t)
	defaultOf := func() string { return s.Run("b", "ip", "-6", "route", "show", "default") }
	knows := func(mac string) bool { return strings.Contains(s.Run("b", "ip", "neigh", "show", gateway6), mac) }
	own := strings.TrimSpace(s.Run("a", "cat", "/sys/class/net/eth0/address"))
	remember := func() {
		s.Run("b", "ip", "neigh", "replace", gateway6, "lladdr", "02:00:00:00:00:01", "nud", "stale", "dev", "eth0")
	}

	// Without the guard all of it works: this is no test that cannot fail.
	netlab.Eventually(t, "an advertisement makes a router", func() bool {
		s.advertiseRouter()
		return strings.Contains(defaultOf(), "proto ra")
	})
	remember()
	netlab.Eventually(t, "an advertisement takes the gateway's address", func() bool {
		s.advertiseGateway(own)
		return knows(own)
	})

	s.Run("b", "ip", "-6", "route", "flush", "default")
	for range 2 {
		s.in("node", func() error { return guard(t.Context(), s.c) })
	}
	remember()
	s.advertiseRouter()
	s.advertiseGateway(own)
	if !s.arrives("b", podA, podB) {
		t.Error("pods do not reach each other")
	}
	if got := defaultOf(); got != "" {
		t.Errorf("a pod has made itself the router: %s", got)
	}
	if knows(own) {
		t.Error("a pod has taken the gateway's address")
	}
}

func TestForgedSourcesStay(t *testing.T) {
	s := newStreet(t)
	const forged = "2001:db8::66"
	s.Run("a", "ip", "addr", "add", forged+"/128", "dev", "eth0", "nodad")
	if !s.arrives("node", forged, outside) {
		t.Fatal("without the guard nothing arrives")
	}
	s.in("node", func() error { return guard(t.Context(), s.c) })
	if s.arrives("node", forged, outside) {
		t.Error("a packet of a source that is no pod's left the bridge")
	}
	if !s.arrives("node", podA, outside) {
		t.Error("a pod's own packets do not arrive")
	}
	s.c.PodCIDRs = s.c.PodCIDRs[:1]
	s.in("node", func() error { return guard(t.Context(), s.c) })
	if rules := s.Run("node", "nft", "list", "tables", "ip6"); strings.Contains(rules, guardPurpose) {
		t.Errorf("a node without IPv6 keeps the table:\n%s", rules)
	}
}

// A link that follows its router goes on with that when the machine begins to forward.
func TestRoutersAreKept(t *testing.T) {
	s := newStreet(t)
	s.Run("b", "ip", "link", "add", "vethx", "type", "bridge")
	netlab.Eventually(t, "an advertisement makes a router", func() bool {
		s.advertiseRouter()
		return strings.Contains(s.Run("b", "ip", "-6", "route", "show", "default"), "proto ra")
	})
	s.in("b", func() error {
		wanted := s.c.wantedSysctls()
		if wanted["net/ipv6/conf/eth0/accept_ra"] != "2" || wanted["net/ipv6/conf/vethx/accept_ra"] != "" {
			return fmt.Errorf("wanted %v", wanted)
		}
		for name := range wanted { // what this namespace has none of
			if _, err := os.Stat(sysctlRoot + name); err != nil {
				delete(wanted, name)
			}
		}
		return write(wanted)
	})
	if got := s.Run("b", "cat", "/proc/sys/net/ipv6/conf/all/forwarding"); strings.TrimSpace(got) != "1" {
		t.Fatalf("forwarding is %q", got)
	}
	if got := s.Run("b", "ip", "-6", "route", "show", "default"); !strings.Contains(got, "proto ra") {
		t.Errorf("the router is forgotten: %q", got)
	}
}
