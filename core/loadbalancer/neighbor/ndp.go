// SPDX-License-Identifier: Apache-2.0

package neighbor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/net/ipv6"
)

// ndp speaks Neighbor Discovery (RFC 4861) over one Ethernet interface.
type ndp struct {
	on   *net.Interface
	conn *ipv6.PacketConn

	mu     sync.Mutex
	joined map[netip.Addr]bool // solicited-node groups
}

const (
	ndpLength  = 24
	hopLimit   = 255 // lower: it came from another link
	solicited  = 0x40
	override   = 0x20
	optionFrom = 1 // source link-layer address
	optionTo   = 2 // target link-layer address
)

func openNDP(on *net.Interface) (*ndp, error) {
	socket, err := net.ListenPacket("ip6:ipv6-icmp", "::") //nolint:noctx // it opens a socket, and waits for nothing
	if err != nil {
		return nil, fmt.Errorf("open a socket for Neighbor Discovery: %w", err)
	}
	conn := ipv6.NewPacketConn(socket)
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeNeighborSolicitation)
	err = errors.Join(conn.SetICMPFilter(&filter), conn.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagInterface, true),
		conn.SetMulticastHopLimit(hopLimit), conn.SetHopLimit(hopLimit), conn.SetMulticastInterface(on), conn.SetMulticastLoopback(false))
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("hear Neighbor Discovery on %s: %w", on.Name, err)
	}
	return &ndp{on: on, conn: conn, joined: map[netip.Addr]bool{}}, nil
}

func (n *ndp) next() (question, error) {
	buf := make([]byte, 1500)
	for {
		length, control, from, err := n.conn.ReadFrom(buf)
		if err != nil {
			return question{}, err
		}
		if control == nil || control.HopLimit != hopLimit || control.IfIndex != n.on.Index {
			continue
		}
		source, ok := from.(*net.IPAddr)
		if !ok {
			continue
		}
		ip, _ := netip.AddrFromSlice(source.IP)
		if q, ok := parseSolicitation(buf[:length], ip); ok {
			return q, nil
		}
	}
}

// parseSolicitation reads who asks for an address.
func parseSolicitation(b []byte, from netip.Addr) (question, bool) {
	if len(b) < ndpLength || b[0] != byte(ipv6.ICMPTypeNeighborSolicitation) || b[1] != 0 {
		return question{}, false
	}
	q := question{about: netip.AddrFrom16([16]byte(b[8:24])), from: from}
	for rest := b[ndpLength:]; len(rest) >= 8; {
		length := int(rest[1]) * 8
		if length == 0 || length > len(rest) {
			return question{}, false
		}
		if rest[0] == optionFrom && length == 8 {
			q.hardware = slices.Clone(rest[2:8])
		}
		rest = rest[length:]
	}
	return q, !q.about.IsMulticast()
}

// answer to somebody without an address goes to all nodes: that one finds out whether the address is free.
func (n *ndp) answer(q question) error {
	if q.from.IsUnspecified() {
		return n.advertise(q.about, netip.IPv6LinkLocalAllNodes(), override)
	}
	return n.advertise(q.about, q.from, solicited|override)
}

func (n *ndp) announce(ip netip.Addr) error {
	return n.advertise(ip, netip.IPv6LinkLocalAllNodes(), override)
}

func (n *ndp) advertise(about, to netip.Addr, flags byte) error {
	b := make([]byte, 8, ndpLength+8) // the kernel fills in the checksum
	b[0], b[4] = byte(ipv6.ICMPTypeNeighborAdvertisement), flags
	b = append(b, about.AsSlice()...)
	b = append(append(b, optionTo, 1), n.on.HardwareAddr...)
	control := &ipv6.ControlMessage{HopLimit: hopLimit, IfIndex: n.on.Index}
	if _, err := n.conn.WriteTo(b, control, &net.IPAddr{IP: to.AsSlice(), Zone: n.on.Name}); err != nil {
		return fmt.Errorf("advertise %s on %s: %w", about, n.on.Name, err)
	}
	return nil
}

// hear joins the groups by which these addresses are asked for, and leaves others.
func (n *ndp) hear(addresses []netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	wanted := map[netip.Addr]bool{}
	for _, a := range addresses {
		wanted[groupOf(a)] = true
	}
	var errs []error
	for g := range n.joined {
		if !wanted[g] {
			errs = append(errs, n.conn.LeaveGroup(n.on, &net.IPAddr{IP: g.AsSlice()}))
			delete(n.joined, g)
		}
	}
	for g := range wanted {
		if n.joined[g] {
			continue
		}
		if err := n.conn.JoinGroup(n.on, &net.IPAddr{IP: g.AsSlice()}); err != nil {
			errs = append(errs, fmt.Errorf("join %s on %s: %w", g, n.on.Name, err))
			continue
		}
		n.joined[g] = true
	}
	return errors.Join(errs...)
}

// groupOf is the solicited-node multicast address of an address (RFC 4291).
func groupOf(a netip.Addr) netip.Addr {
	ip := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: ip[13], 14: ip[14], 15: ip[15]})
}

func (n *ndp) Close() error { return n.conn.Close() }
