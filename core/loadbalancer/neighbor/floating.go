// SPDX-License-Identifier: Apache-2.0

package neighbor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/netdump"
	"github.com/wasmplane/wasmplane/core/run"
)

// A floating address is on an interface of the one machine that keeps it. The kernel is told
// that it lasts for two seconds, and told again four times in that time: a process that is killed or stopped
// takes its address along, as no other machine could take it away.
const (
	lasting = 2 // seconds, of which the kernel counts whole ones
	refresh = time.Second / 2
)

// An address is asked for so often, and an answer waited for so long each time: a question may be lost.
const (
	questions = 3
	answered  = 250 * time.Millisecond
)

// takenOver is how often an address that is new here is announced, with each refresh: for longer than the kernel of a machine whose process
// was killed answers for it beside this one.
const takenOver = 8

// attached is an interface with its addresses.
type attached struct {
	on  net.Interface
	own []netip.Prefix // but for floating ones
}

// LinkOf is the link of this machine in whose network a floating address is. The error is a
// sentence for the person who has chosen the address.
func LinkOf(ip netip.Addr) (net.Interface, error) {
	all, err := links()
	if err != nil {
		return net.Interface{}, err
	}
	return choose(all, ip)
}

func links() (out []attached, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("look at this machine's links: %w", err)
	}
	addresses, err := netdump.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("look at this machine's addresses: %w", err)
	}
	for _, on := range all {
		l := attached{on: on}
		for _, a := range addresses {
			p, err := netip.ParsePrefix(a.IPNet.String())
			if err == nil && a.LinkIndex == on.Index && !floats(a) && !p.Addr().IsLinkLocalUnicast() {
				l.own = append(l.own, p)
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// floats tells an address that Keep has put on an interface: alone in its network, and not for long.
func floats(a netlink.Addr) bool {
	ones, bits := a.Mask.Size()
	return ones == bits && 0 < a.ValidLft && a.ValidLft <= lasting
}

func choose(all []attached, ip netip.Addr) (net.Interface, error) {
	var networks []string
	var found *net.Interface
	for _, l := range all {
		for _, p := range l.own {
			if p.Addr() == ip {
				return net.Interface{}, fmt.Errorf("%s is this machine's own address (%s): choose one that no machine has", ip, l.on.Name)
			}
			if l.on.Flags&net.FlagUp == 0 || l.on.Flags&net.FlagLoopback != 0 || len(l.on.HardwareAddr) != 6 || p.IsSingleIP() ||
				p.Addr().Is4() != ip.Is4() {
				continue
			}
			networks = append(networks, p.Masked().String()+" at "+l.on.Name)
			if !p.Contains(ip) {
				continue
			}
			if first, last := ends(p); ip.Is4() && p.Bits() < 31 && (ip == first || ip == last) {
				return net.Interface{}, fmt.Errorf("%s is no host's address in %s: choose another one", ip, p.Masked())
			}
			if found == nil {
				found = &l.on
			}
		}
	}
	if found != nil {
		return *found, nil
	}
	if len(networks) == 0 {
		return net.Interface{}, fmt.Errorf("%s is in no network of this machine, which has none of its IP family on an Ethernet link", ip)
	}
	return net.Interface{}, fmt.Errorf("%s is in no network of this machine (%s): choose a free address of one of these", ip,
		strings.Join(networks, ", "))
}

// ends are the first and the last address of an IPv4 network.
func ends(p netip.Prefix) (first, last netip.Addr) {
	first = p.Masked().Addr()
	if !first.Is4() {
		return first, netip.Addr{}
	}
	b := first.As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return first, netip.AddrFrom4(b)
}

// Occupant asks the link who has an address that this machine has not; nil: nobody answers.
func Occupant(ctx context.Context, on net.Interface, ip netip.Addr) (net.HardwareAddr, error) {
	return ask(ctx, on, ip, questions)
}

// Answers is Occupant by one question: for an address of which it is known whose it was a moment ago, and that somebody waits for.
func Answers(ctx context.Context, on net.Interface, ip netip.Addr) (net.HardwareAddr, error) {
	return ask(ctx, on, ip, 1)
}

// Hardware is the address that this machine knows another one of the link by, without a question; nil: it knows none.
func Hardware(on net.Interface, ip netip.Addr) (net.HardwareAddr, error) {
	return entry(on, familyOf(ip), ip)
}

func familyOf(ip netip.Addr) int {
	if ip.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

func ask(ctx context.Context, on net.Interface, ip netip.Addr, questions int) (net.HardwareAddr, error) {
	family := familyOf(ip)
	for range questions {
		// What the kernel knew may be of a while ago. Who is not known cannot be forgotten.
		_ = netlink.NeighDel(&netlink.Neigh{LinkIndex: on.Index, Family: family, IP: ip.AsSlice()})
		if err := knock(ctx, ip); err != nil {
			return nil, err
		}
		has, err := known(ctx, on, family, ip)
		if err != nil || has != nil || ctx.Err() != nil {
			return has, err
		}
	}
	return nil, nil
}

// knock sends an empty datagram, so that the kernel asks who has the address.
func knock(ctx context.Context, ip netip.Addr) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", net.JoinHostPort(ip.String(), "9"))
	if err != nil {
		return fmt.Errorf("ask the link for %s: %w", ip, err)
	}
	_, _ = c.Write(nil) // whether it arrives nobody says
	return c.Close()
}

// known waits for the answer to the kernel's question.
func known(ctx context.Context, on net.Interface, family int, ip netip.Addr) (net.HardwareAddr, error) {
	const often = 10 * time.Millisecond
	for range int(answered / often) {
		if !run.Sleep(ctx, often) {
			return nil, nil
		}
		if has, err := entry(on, family, ip); has != nil || err != nil {
			return has, err
		}
	}
	return nil, nil
}

// entry is what the kernel has heard of an address.
func entry(on net.Interface, family int, ip netip.Addr) (net.HardwareAddr, error) {
	all, err := netdump.Neighbors(on.Index, family)
	if err != nil {
		return nil, fmt.Errorf("look at the neighbours on %s: %w", on.Name, err)
	}
	for _, n := range all {
		const heard = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
		if a, ok := netip.AddrFromSlice(n.IP); ok && a.Unmap() == ip && n.State&heard != 0 && len(n.HardwareAddr) > 0 {
			return slices.Clone(n.HardwareAddr), nil
		}
	}
	return nil, nil
}

// Keep has this machine have a floating address until ctx ends, and tells the link that it is here
// now. No packet of this machine's own leaves under it, but for answers.
func Keep(ctx context.Context, on net.Interface, ip netip.Addr, log *slog.Logger) error {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	left, told := takenOver, time.Now()
	for {
		if err := put(on, ip); err != nil {
			return errors.Join(err, Drop(on, ip))
		}
		if time.Since(told) > lasting*time.Second { // this process was held up, and the address was gone meanwhile
			left = takenOver
		}
		told = time.Now()
		if left > 0 {
			left--
			if err := announceOnce(on, ip); err != nil {
				log.WarnContext(ctx, "a virtual address could not be announced on its link", "address", ip, "interface", on.Name, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return Drop(on, ip)
		case <-tick.C:
		}
	}
}

func floating(ip netip.Addr) *netlink.Addr {
	return &netlink.Addr{
		IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())},
		// Neither is chosen as the address of what this machine sends: in IPv4 one that holds for a link,
		// in IPv6 one that is not preferred. Whether another has it Occupant has asked.
		Scope: scopeOf(ip), Flags: flagsOf(ip), ValidLft: lasting,
	}
}

func scopeOf(ip netip.Addr) int {
	if ip.Is4() {
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}

func flagsOf(ip netip.Addr) int {
	if ip.Is4() {
		return 0
	}
	return unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
}

func put(on net.Interface, ip netip.Addr) error {
	if err := netlink.AddrReplace(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: on.Index}}, floating(ip)); err != nil {
		return fmt.Errorf("put %s on %s: %w", ip, on.Name, err)
	}
	return nil
}

// Drop takes a floating address off an interface. One that is not there is as good.
func Drop(on net.Interface, ip netip.Addr) error {
	err := netlink.AddrDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: on.Index}}, floating(ip))
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("take %s off %s: %w", ip, on.Name, err)
	}
	return nil
}

// announceOnce says on the link that an address is here.
func announceOnce(on net.Interface, ip netip.Addr) (err error) {
	var w wire
	if ip.Is6() {
		w, err = openNDP(&on)
	} else {
		w, err = openARP(&on)
	}
	if err != nil {
		return err
	}
	return errors.Join(w.announce(ip), w.Close())
}
