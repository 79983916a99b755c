// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/netlab"
)

// say sends one Ethernet frame from a pod's link.
func (l *lab) say(t *testing.T, where string, protocol uint16, frame []byte) {
	t.Helper()
	l.must(where, func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		copy(frame[6:], dev.HardwareAddr)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		var big [2]byte
		binary.BigEndian.PutUint16(big[:], protocol)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(big[:]), Ifindex: dev.Index, Halen: 6})
	})
}

func (l *lab) mac(t *testing.T, where string) (mac net.HardwareAddr) {
	t.Helper()
	l.must(where, func() error {
		dev, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = dev.HardwareAddr
		}
		return err
	})
	return mac
}

// claim is an ARP message, to everybody, that says who has an address.
func claim(operation uint16, ip netip.Addr, mac net.HardwareAddr, to netip.Addr) []byte {
	f := make([]byte, 42)
	copy(f, "\xff\xff\xff\xff\xff\xff")
	copy(f[12:], "\x08\x06\x00\x01\x08\x00\x06\x04")
	binary.BigEndian.PutUint16(f[20:], operation)
	copy(f[22:], mac)
	copy(f[28:], ip.AsSlice())
	copy(f[32:], "\xff\xff\xff\xff\xff\xff")
	copy(f[38:], to.AsSlice())
	return f
}

// advertisement says, to all nodes, who has an IPv6 address (RFC 4861, section 4.4); kind 134 is a router's.
func advertisement(kind byte, from, target netip.Addr, mac net.HardwareAddr) []byte {
	f := make([]byte, 14+40+32)
	copy(f, "\x33\x33\x00\x00\x00\x01")
	copy(f[12:], "\x86\xdd\x60\x00\x00\x00\x00\x20\x3a\xff")
	copy(f[22:], from.AsSlice())
	copy(f[38:], netip.MustParseAddr("ff02::1").AsSlice())
	if kind == 134 {
		f = f[:14+40+24]
		f[19] = 24
	}
	m := f[54:]
	m[0] = kind
	if kind == 136 {
		m[4] = 0x20 // override
		copy(m[8:], target.AsSlice())
		copy(m[24:], "\x02\x01")
		copy(m[26:], mac)
	} else {
		m[4], m[6], m[7] = 64, 0xff, 0xff
		copy(m[16:], "\x01\x01")
		copy(m[18:], mac)
	}
	return checksummed(f)
}

// checksummed fills in the checksum of a message in an IPv6 packet without further headers.
func checksummed(f []byte) []byte {
	m := f[54:]
	m[2], m[3] = 0, 0
	sum := uint32(len(m) + 0x3a)
	for i := 22; i < len(f); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum))
	return f
}

// question is a neighbour (135) or router (133) solicitation: who is asked learns where the asker has its address
// (RFC 4861, section 7.2.3).
func question(kind byte, from, target netip.Addr, mac net.HardwareAddr) []byte {
	f := advertisement(136, from, target, mac)
	m := f[54:]
	m[0], m[4] = kind, 0
	if kind == 133 {
		copy(m[8:], m[24:32])
		f, m = f[:14+40+16], m[:16]
		f[19] = 16
	}
	m[len(m)-8] = 1 // the asker's own hardware address
	return checksummed(f)
}

// tagged is a frame with VLAN 0, which receivers take as if it had none (IEEE 802.1Q: a priority alone).
func tagged(frame []byte) []byte {
	return slices.Concat(frame[:12], []byte{0x81, 0, 0, 0}, frame[12:])
}

// A hostile pod says that it is another one, and the gateway. Without the table the others believe it, so that
// the test would see it; with the table nobody does.
func TestAPodDoesNotTakeAnothersAddress(t *testing.T) {
	l := newLab(t)
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, withIPs(somePod(1, "here"), 1),
		withIPs(somePod(2, "here"), 2), withIPs(somePod(3, "here"), 3))
	l.Sysctl("pod2", "net.ipv6.conf.eth0.accept_ra", "2")
	ip := netip.MustParseAddr
	gateway, gateway6 := ip("10.0.1.1"), ip("fd00:1::1")
	evil := l.mac(t, "pod1")
	// What pod 2 and the node know of addresses before each lie, which is the truth.
	truth := func() {
		for address, mac := range map[string]net.HardwareAddr{v4(3): l.mac(t, "pod3"), v6(3): l.mac(t, "pod3")} {
			l.Run("pod2", "ip", "neigh", "replace", address, "lladdr", mac.String(), "dev", "eth0", "nud", "stale")
			l.node("ip", "neigh", "replace", address, "lladdr", mac.String(), "dev", "br0", "nud", "stale")
		}
		bridge := strings.Fields(l.node("cat", "/sys/class/net/br0/address"))[0]
		for _, address := range []netip.Addr{gateway, gateway6} {
			l.Run("pod2", "ip", "neigh", "replace", address.String(), "lladdr", bridge, "dev", "eth0", "nud", "stale")
		}
	}
	answers := func(say func(uint16, []byte)) {
		for _, a := range []netip.Addr{ip(v4(3)), gateway} {
			say(unix.ETH_P_ARP, claim(1, a, evil, ip(v4(2))))
			say(unix.ETH_P_ARP, claim(2, a, evil, ip(v4(2))))
			say(unix.ETH_P_ARP, claim(2, a, evil, gateway))
		}
		for _, a := range []netip.Addr{ip(v6(3)), gateway6} {
			say(unix.ETH_P_IPV6, advertisement(136, ip(v6(1)), a, evil))
		}
		say(unix.ETH_P_IPV6, advertisement(134, ip("fe80::bad"), netip.Addr{}, evil))
	}
	questions := func(say func(uint16, []byte)) {
		for _, a := range []netip.Addr{ip(v6(3)), gateway6} {
			say(unix.ETH_P_IPV6, question(135, a, ip(v6(2)), evil))
		}
		say(unix.ETH_P_IPV6, question(135, ip(v6(3)), gateway6, evil))
	}
	plain := func(protocol uint16, frame []byte) { l.say(t, "pod1", protocol, frame) }
	priority := func(_ uint16, frame []byte) { l.say(t, "pod1", unix.ETH_P_8021Q, tagged(frame)) }
	// Each form of the lies, and how much of it there is to believe.
	forms := []struct {
		name string
		lie  func()
		of   []string
	}{
		{"answers", func() { answers(plain) }, []string{""}},
		{"answers with a VLAN tag", func() { answers(priority) }, []string{""}},
		{"questions", func() { questions(plain) }, []string{"IPv6"}},
		{"questions with a VLAN tag", func() { questions(priority) }, []string{"IPv6"}},
		{"a host that asks for routers", func() { plain(unix.ETH_P_IPV6, question(133, ip(v6(3)), netip.Addr{}, evil)) }, []string{"the node", "IPv6"}},
	}
	believed := func(where, dev string, address netip.Addr) bool {
		return strings.Contains(l.Run(where, "ip", "neigh", "show", address.String(), "dev", dev), evil.String())
	}
	victims := map[string]func() bool{
		"a pod, of a pod's IPv4 address":       func() bool { return believed("pod2", "eth0", ip(v4(3))) },
		"a pod, of a pod's IPv6 address":       func() bool { return believed("pod2", "eth0", ip(v6(3))) },
		"a pod, of the gateway's IPv4 address": func() bool { return believed("pod2", "eth0", gateway) },
		"a pod, of the gateway's IPv6 address": func() bool { return believed("pod2", "eth0", gateway6) },
		"the node, of a pod's IPv4 address":    func() bool { return believed("node", "br0", ip(v4(3))) },
		"the node, of a pod's IPv6 address":    func() bool { return believed("node", "br0", ip(v6(3))) },
		"a pod, of a router": func() bool {
			return strings.Contains(l.Run("pod2", "ip", "-6", "route", "show", "default"), "fe80::bad")
		},
	}
	deceives := func(of []string, name string) bool {
		return !slices.ContainsFunc(of, func(part string) bool { return !strings.Contains(name, part) })
	}
	for _, form := range forms {
		for name, victim := range victims {
			if deceives(form.of, name) {
				truth()
				netlab.Eventually(t, name+" is deceived without the table by "+form.name, func() bool { form.lie(); return victim() })
				l.Run("pod2", "ip", "-6", "route", "flush", "default")
			}
		}
	}
	f, _ := l.start(t, client, nil)
	for n := 1; n <= 3; n++ {
		if err := f.Guard(t.Context(), somePod(n, "here"), []string{v4(n), v6(n)}, "v"+podName(n)); err != nil {
			t.Fatal(err)
		}
	}
	truth()
	for _, form := range forms {
		form.lie()
	}
	// What comes after the lies, by the same ways, has arrived: so have they, or never will.
	fence := func(what string, arrived func() bool, say func()) {
		netlab.Eventually(t, what, func() bool { say(); return arrived() })
	}
	l.Run("pod2", "ip", "neigh", "flush", v4(1))
	fence("the pod says who it is", func() bool { return believed("pod2", "eth0", ip(v4(1))) }, func() {
		l.Run("pod2", "ip", "neigh", "replace", v4(1), "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "stale")
		l.say(t, "pod1", unix.ETH_P_ARP, claim(2, ip(v4(1)), evil, ip(v4(2))))
	})
	fence("the pod advertises its own address", func() bool { return believed("pod2", "eth0", ip(v6(1))) }, func() {
		l.Run("pod2", "ip", "neigh", "replace", v6(1), "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "stale")
		l.say(t, "pod1", unix.ETH_P_IPV6, advertisement(136, ip(v6(1)), ip(v6(1)), evil))
	})
	for name, victim := range victims {
		if victim() {
			t.Errorf("%s: the lie is believed", name)
		}
	}
	// Neighbours find each other as before, and a pod that is gone leaves nothing.
	l.Run("pod1", "ip", "neigh", "flush", "dev", "eth0")
	box := l.inbox(t, "pod3")
	for _, to := range []string{v4(3), v6(3)} {
		netlab.Eventually(t, "pod 1 reaches "+to, func() bool { return l.post(t, "pod1", "", to, "to "+to) == nil && box.has("to "+to) })
	}
	f.Forget(somePod(1, "here"))
	netlab.Eventually(t, "the link of a pod that is gone is nobody's",
		func() bool { return !strings.Contains(l.nft("list", "table", "bridge", "wp-lab-policy"), "vpod1") })
}
