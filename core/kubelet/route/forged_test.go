// SPDX-License-Identifier: Apache-2.0

package route

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// pair are two machines on one link with a tunnel between them, and a pod of the first, whose
// packets to other machines leave with the first one's address.
type pair struct {
	first, second, pod host
	apply              map[string]func() // what keeps the routes of a machine calls now and then
}

const (
	firstAddress, secondAddress = "192.0.2.1", "192.0.2.2"
	firstInside, secondInside   = "10.1.1.0", "10.1.2.0"
)

// newPair stays in one of the namespaces: the test's thread has to be locked.
func newPair(t *testing.T) pair {
	t.Helper()
	p := pair{newHost(t), newHost(t), newHost(t), map[string]func(){}}
	p.first.connectTo(t, p.second, "wire", firstAddress+"/24", secondAddress+"/24")
	p.first.connectTo(t, p.pod, "pod", "10.1.1.1/24", "10.1.1.7/24")
	ip(t, "route", "add", "default", "via", "10.1.1.1")
	p.first.enter(t)
	names := config(t, "one", firstAddress).Names
	ip(t, "link", "add", names.Bridge(), "type", "bridge")
	ip(t, "link", "set", "pod", "master", names.Bridge())
	ip(t, "addr", "flush", "dev", "pod")
	ip(t, "addr", "add", "10.1.1.1/24", "dev", names.Bridge())
	ip(t, "link", "set", names.Bridge(), "up")
	for path, value := range map[string]string{
		"/proc/sys/net/ipv4/ip_forward": "1", "/proc/sys/net/ipv4/conf/all/rp_filter": "0",
		"/proc/sys/net/ipv4/conf/" + names.Bridge() + "/rp_filter": "0",
	} {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	nft(t, `table ip pods {
		chain postrouting {
			type nat hook postrouting priority srcnat
			ip saddr 10.1.1.0/24 ip daddr != 10.1.0.0/16 masquerade
		}
	}`)
	nodes := []*corev1.Node{node("one", "10.1.1.0/24", firstAddress, time.Hour), node("two", "10.1.2.0/24", secondAddress, time.Hour)}
	for name, at := range map[string]struct {
		host
		address string
	}{"one": {p.first, firstAddress}, "two": {p.second, secondAddress}} {
		at.enter(t)
		c := config(t, name, at.address)
		c.Backend = VXLAN
		g := &guard{table: c.Names.Table("tunnel"), bridge: c.Names.Bridge()}
		p.apply[name] = func() {
			t.Helper()
			at.enter(t)
			if failed := c.apply(t.Context(), nodes, g); len(failed) > 0 {
				t.Fatalf("%s: %v", name, failed)
			}
		}
		p.apply[name]()
	}
	return p
}

func nft(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

// datagram is an IPv4 packet with UDP. Checksums of UDP may be left out.
func datagram(from, to string, port uint16, payload []byte) []byte {
	b := make([]byte, 28, 28+len(payload))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(payload)))
	copy(b[12:], netip.MustParseAddr(from).AsSlice())
	copy(b[16:], netip.MustParseAddr(to).AsSlice())
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(b[20:], 40000)
	binary.BigEndian.PutUint16(b[22:], port)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(payload)))
	return append(b, payload...)
}

// inTunnel is what the tunnel of a node takes: a packet, with the headers of VXLAN and Ethernet.
func inTunnel(node string, packet []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, 1<<27)
	b = binary.BigEndian.AppendUint32(b, uint32(networkID(cluster))<<8)
	b = append(b, hardware(netip.MustParseAddr(node))...)
	b = append(b, 2, 0, 0, 0, 0, 1, 8, 0)
	return append(b, packet...)
}

// send sends a datagram to a node's tunnel, as any program may.
func (h host) send(t *testing.T, node string, payload []byte) {
	t.Helper()
	h.enter(t)
	c, err := net.Dial("udp4", net.JoinHostPort(node, fmt.Sprint(Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write(payload); err != nil {
		t.Fatal(err)
	}
}

// spoof sends a packet with whatever addresses it has, for which raw sockets are needed.
func (h host) spoof(t *testing.T, to string, packet []byte) {
	t.Helper()
	h.enter(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(to).As4()}); err != nil {
		t.Fatal(err)
	}
}

// first that arrives of what is sent over and over, at an address inside of the tunnel.
func arrives(t *testing.T, at host, inside string, send func()) string {
	t.Helper()
	at.enter(t)
	l, err := net.ListenPacket("udp4", net.JoinHostPort(inside, "9"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b := make([]byte, 100)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		send()
		if err := l.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, _, err := l.ReadFrom(b); err == nil {
			return string(b[:n])
		}
	}
	return "nothing"
}

// A pod writes packets of its own into the tunnel, by the address of its node that they leave
// with, or by another node's that it writes into them. They would be from any pod it likes.
func TestPodsSendNothingIntoTheTunnel(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	p := newPair(t)
	packet := func(node, to, what string) []byte {
		return inTunnel(node, datagram("10.1.1.99", to, 9, []byte(what)))
	}
	if got := arrives(t, p.second, secondInside, func() {
		p.pod.send(t, secondAddress, packet(secondAddress, secondInside, "a pod's"))
		p.first.send(t, secondAddress, packet(secondAddress, secondInside, "a node's"))
	}); got != "a node's" {
		t.Errorf("at another node arrives %s", got)
	}
	if got := arrives(t, p.first, firstInside, func() {
		forged := packet(firstAddress, firstInside, "a pod's")
		p.pod.spoof(t, firstAddress, datagram(secondAddress, firstAddress, Port, forged))
		p.second.send(t, firstAddress, packet(firstAddress, firstInside, "a node's"))
	}); got != "a node's" {
		t.Errorf("at its own node arrives %s", got)
	}
}

// Whoever flushes the rules of the machine opens the tunnel for a moment only.
func TestTheGuardOfTheTunnelComesBack(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	p := newPair(t)
	p.first.enter(t)
	nft(t, "flush ruleset")
	p.apply["one"]()
	if got := arrives(t, p.first, firstInside, func() {
		packet := func(what string) []byte {
			return inTunnel(firstAddress, datagram("10.1.1.99", firstInside, 9, []byte(what)))
		}
		p.pod.spoof(t, firstAddress, datagram(secondAddress, firstAddress, Port, packet("a pod's")))
		p.second.send(t, firstAddress, packet("a node's"))
	}); got != "a node's" {
		t.Errorf("after a flush arrives %s", got)
	}
}

// A pod's host port, or a Service that has the nodes' addresses, may ask for the tunnel's
// port: the packets of all other pods would be theirs.
func TestNobodyTakesTheTunnelsPackets(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	p := newPair(t)
	for _, h := range []host{p.first, p.second} {
		h.enter(t)
		nft(t, `table ip thief {
			chain in { type nat hook prerouting priority -101; udp dport 4789 dnat to 10.1.1.7:4789; }
			chain out { type nat hook output priority -101; udp dport 4789 dnat to 10.1.1.7:4789; }
		}`)
	}
	if got := arrives(t, p.second, secondInside, func() {
		p.first.enter(t)
		c, err := net.Dial("udp4", net.JoinHostPort(secondInside, "9"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Write([]byte("through the tunnel")); err != nil {
			t.Fatal(err)
		}
	}); got != "through the tunnel" {
		t.Errorf("at the other node arrives %s", got)
	}
}
