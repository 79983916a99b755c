// SPDX-License-Identifier: Apache-2.0

package neighbor

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// arp speaks the address resolution protocol (RFC 826) over one Ethernet interface.
type arp struct {
	on   *net.Interface
	file *os.File // of a packet socket
	raw  func([]byte, *unix.SockaddrLinklayer) error
}

const (
	arpLength  = 28
	arpRequest = 1
	arpReply   = 2
)

func openARP(on *net.Interface) (*arp, error) {
	// The kernel fills in Ethernet's header, and hands over what is behind it. Nothing is
	// heard before the socket is bound.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket for ARP: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ARP), Ifindex: on.Index}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("hear ARP on %s: %w", on.Name, err)
	}
	file := os.NewFile(uintptr(fd), "arp "+on.Name)
	conn, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &arp{on: on, file: file, raw: func(packet []byte, to *unix.SockaddrLinklayer) (err error) {
		if controlErr := conn.Write(func(fd uintptr) bool {
			err = unix.Sendto(int(fd), packet, 0, to)
			return err != unix.EAGAIN // it is the system call's own
		}); controlErr != nil {
			return controlErr
		}
		return err
	}}, nil
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func (a *arp) next() (question, error) {
	buf := make([]byte, 128)
	for {
		n, err := a.file.Read(buf)
		if err != nil {
			return question{}, err
		}
		if q, ok := parseARP(buf[:n]); ok {
			return q, nil
		}
	}
}

// parseARP reads a request of an IPv4 address over Ethernet.
func parseARP(b []byte) (question, bool) {
	if len(b) < arpLength || binary.BigEndian.Uint16(b) != 1 || binary.BigEndian.Uint16(b[2:]) != unix.ETH_P_IP || b[4] != 6 || b[5] != 4 ||
		binary.BigEndian.Uint16(b[6:]) != arpRequest {
		return question{}, false
	}
	q := question{about: netip.AddrFrom4([4]byte(b[24:28])), from: netip.AddrFrom4([4]byte(b[14:18])), hardware: slices.Clone(b[8:14])}
	// Who asks for the address that it has itself announces it.
	return q, q.about != q.from
}

func (a *arp) answer(q question) error { return a.send(arpReply, q.about, q.from, q.hardware) }

// announce sends a gratuitous request, which most systems update their entries by (RFC 5227).
func (a *arp) announce(ip netip.Addr) error {
	return a.send(arpRequest, ip, ip, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
}

func (a *arp) hear([]netip.Addr) error { return nil } // requests are broadcast

func (a *arp) send(operation uint16, sender, target netip.Addr, to net.HardwareAddr) error {
	b := make([]byte, 0, arpLength)
	b = binary.BigEndian.AppendUint16(b, 1)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, 6, 4)
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, a.on.HardwareAddr...), sender.AsSlice()...)
	b = append(append(b, to...), target.AsSlice()...)
	address := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ARP), Ifindex: a.on.Index, Halen: 6}
	copy(address.Addr[:], to)
	if err := a.raw(b, address); err != nil {
		return fmt.Errorf("send ARP for %s on %s: %w", sender, a.on.Name, err)
	}
	return nil
}

func (a *arp) Close() error { return a.file.Close() }
