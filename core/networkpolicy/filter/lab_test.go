// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/core/networkpolicy/policytest"
)

// lab is a node whose pods hang on a bridge, as the bridge plugin of CNI wires them,
// and what is beyond the node, each in a network namespace of its own. Pod N has the
// addresses 10.0.0.N and fd00::N; those of the others are all in "far".
type lab struct {
	netlab.Lab
	t testing.TB
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{netlab.New(t), t}
	l.Namespace("node")
	l.node("ip", "link", "add", "br0", "type", "bridge")
	l.node("ip", "link", "set", "br0", "up")
	l.node("ip", "addr", "add", "10.0.1.1/32", "dev", "br0")
	l.node("ip", "addr", "add", "fd00:1::1/128", "dev", "br0", "nodad")
	for _, name := range []string{
		"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables",
	} {
		l.Sysctl("node", name, "1")
	}
	for n := 1; n <= policytest.PodsHere; n++ {
		l.end(podName(n), "v"+podName(n), n, n)
		l.node("ip", "link", "set", "v"+podName(n), "master", "br0")
		l.node("ip", "link", "set", "v"+podName(n), "type", "bridge_slave", "hairpin", "on")
	}
	l.end("far", "vfar", policytest.PodsHere+1, policytest.Ends)
	l.node("ip", "addr", "add", "10.0.1.1/32", "dev", "vfar")
	l.node("ip", "addr", "add", "fd00:1::1/128", "dev", "vfar", "nodad")
	for n := 1; n <= policytest.Ends; n++ {
		to := "br0"
		if n > policytest.PodsHere {
			to = "vfar"
		}
		l.node("ip", "route", "add", v4(n)+"/32", "dev", to)
		l.node("ip", "-6", "route", "add", v6(n)+"/128", "dev", to)
	}
	return l
}

func podName(n int) string { return fmt.Sprint("pod", n) }
func v4(n int) string      { return fmt.Sprint("10.0.0.", n) }
func v6(n int) string      { return fmt.Sprint("fd00::", n) }

// end makes a namespace that has some of the addresses.
func (l *lab) end(name, link string, from, to int) {
	l.t.Helper()
	l.Namespace(name)
	l.node("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", l.Name(name))
	l.node("ip", "link", "set", link, "up")
	for n := from; n <= to; n++ {
		l.Run(name, "ip", "addr", "add", v4(n)+"/32", "dev", "eth0")
		l.Run(name, "ip", "addr", "add", v6(n)+"/128", "dev", "eth0", "nodad")
	}
	l.Run(name, "ip", "link", "set", "eth0", "up")
	for n := 1; name != "far" && n <= policytest.PodsHere; n++ {
		if n != from {
			l.Run(name, "ip", "route", "add", v4(n)+"/32", "dev", "eth0", "src", v4(from))
			l.Run(name, "ip", "-6", "route", "add", v6(n)+"/128", "dev", "eth0", "src", v6(from))
		}
	}
	l.Run(name, "ip", "route", "add", "default", "via", "10.0.1.1", "dev", "eth0", "onlink", "src", v4(from))
	l.Run(name, "ip", "-6", "route", "add", "default", "via", "fd00:1::1", "dev", "eth0", "onlink", "src", v6(from))
}

func (l *lab) node(args ...string) string {
	l.t.Helper()
	return l.Run("node", args...)
}

func (l *lab) must(name string, f func() error) {
	l.t.Helper()
	if err := l.In(name, f); err != nil {
		l.t.Fatal(err)
	}
}

// owner is the namespace that has an address.
func owner(ip netip.Addr) string {
	if ip.String() == policytest.ThisNode4 || ip.String() == policytest.ThisNode6 {
		return "node"
	}
	b := ip.AsSlice()
	if n := int(b[len(b)-1]); n <= policytest.PodsHere {
		return podName(n)
	}
	return "far"
}

// post collects what arrives at UDP ports of all ends.
type post struct {
	mu      sync.Mutex
	arrived map[string]bool
	turn    chan struct{}
	senders map[netip.Addr]*net.UDPConn
	lab     *lab
}

var ports = []uint16{79, 80, 81, 83}

// everybody are the addresses at which something listens: those of pods, of what is beyond the node, and of the node.
func everybody() []netip.Addr {
	list := []netip.Addr{netip.MustParseAddr(policytest.ThisNode4), netip.MustParseAddr(policytest.ThisNode6)}
	for n := 1; n <= policytest.Ends; n++ {
		list = append(list, netip.MustParseAddr(v4(n)), netip.MustParseAddr(v6(n)))
	}
	return list
}

func (l *lab) newPost() *post {
	p := &post{arrived: map[string]bool{}, turn: make(chan struct{}), senders: map[netip.Addr]*net.UDPConn{}, lab: l}
	listen := func(network, address string) *net.UDPConn {
		a, err := net.ResolveUDPAddr(network, address)
		if err != nil {
			l.t.Fatal(err)
		}
		c, err := net.ListenUDP(network, a)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for _, ip := range everybody() {
		l.must(owner(ip), func() error {
			p.senders[ip] = listen("udp", netip.AddrPortFrom(ip, 0).String())
			for _, port := range ports {
				c := listen("udp", netip.AddrPortFrom(ip, port).String())
				_ = c.SetReadBuffer(1 << 20)
				go p.collect(c)
			}
			return nil
		})
	}
	l.must("node", func() error {
		p.senders[netip.Addr{}] = listen("udp", ":0")
		return nil
	})
	return p
}

func (p *post) collect(c *net.UDPConn) {
	buf := make([]byte, 256)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.arrived[string(buf[:n])] = true
		close(p.turn)
		p.turn = make(chan struct{})
		p.mu.Unlock()
	}
}

func (p *post) send(from netip.Addr, to netip.AddrPort, what string) {
	p.lab.t.Helper()
	_, err := p.senders[from].WriteToUDPAddrPort([]byte(what), to)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		p.lab.t.Fatalf("send %s: %v", what, err)
	}
}

// await waits until all of these have arrived.
func (p *post) await(what []string) {
	p.lab.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		p.mu.Lock()
		var missing []string
		for _, w := range what {
			if !p.arrived[w] {
				missing = append(missing, w)
			}
		}
		turn := p.turn
		p.mu.Unlock()
		if len(missing) == 0 {
			return
		}
		select {
		case <-turn:
		case <-deadline.C:
			p.lab.t.Fatalf("did not arrive: %v", missing[:min(len(missing), 10)])
		}
	}
}

// fence returns when everything that was sent before, and was to arrive, has: what the
// node itself sends always arrives, and behind it.
func (p *post) fence(round string) {
	p.lab.t.Helper()
	var sent []string
	for _, ip := range everybody() {
		for _, port := range ports {
			what := fmt.Sprint("fence ", round, ip, port)
			sent = append(sent, what)
			p.send(netip.Addr{}, netip.AddrPortFrom(ip, port), what)
		}
	}
	p.await(sent)
}

func (p *post) has(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.arrived[what]
}
