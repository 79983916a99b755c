// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// States of a socket in the kernel's tables: a TCP socket that accepts, and a UDP
// socket that takes datagrams from anybody.
const (
	tcpListen      = "0A"
	udpUnconnected = "07"
)

// checkFree refuses mappings of ports that are the host's: those of the
// configuration, and those on which a process of the host listens. The rules of a
// mapping come before every socket, so the process would lose its clients.
func checkFree(c *portmapConf) error {
	var listening []listener
	reserved := map[string][]int{"tcp": c.ReservedTCPPorts, "udp": c.ReservedUDPPorts}
	for _, m := range c.RuntimeConfig.PortMaps {
		if slices.Contains(reserved[m.Protocol], m.HostPort) {
			return fmt.Errorf("hostPort %d/%s is reserved for the node itself; choose another one", m.HostPort, m.Protocol)
		}
		if listening == nil {
			var err error
			if listening, err = listeners(); err != nil {
				return err
			}
		}
		for _, l := range listening {
			if l.clashes(m) {
				return fmt.Errorf("hostPort %d/%s is taken: a process of the node listens at %s; choose another one", m.HostPort, m.Protocol, l.at)
			}
		}
	}
	return nil
}

// listener is a socket of the host's network namespace.
type listener struct {
	protocol string
	at       netip.AddrPort
}

func (l listener) clashes(m portMapping) bool {
	if l.protocol != m.Protocol || int(l.at.Port()) != m.HostPort {
		return false
	}
	asked, err := netip.ParseAddr(m.HostIP) // checked when it was read; none means every address
	return err != nil || asked.IsUnspecified() || l.at.Addr().IsUnspecified() || asked.Unmap() == l.at.Addr()
}

// listeners reads the sockets of this process's network namespace, which is the host's.
func listeners() ([]listener, error) {
	out := []listener{}
	for _, t := range []struct{ file, protocol, state string }{
		{"tcp", "tcp", tcpListen}, {"tcp6", "tcp", tcpListen}, {"udp", "udp", udpUnconnected}, {"udp6", "udp", udpUnconnected},
	} {
		f, err := os.Open("/proc/thread-self/net/" + t.file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("look for listeners of the node: %w", err)
		}
		found, err := readSockets(f, t.protocol, t.state)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("look for listeners of the node in %s: %w", f.Name(), err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// readSockets reads a table of proc_net(5): the second field is the local address,
// the fourth the state.
func readSockets(r io.Reader, protocol, state string) ([]listener, error) {
	var out []listener
	lines := bufio.NewScanner(r)
	lines.Scan() // the heading
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != state {
			continue
		}
		at, err := parseSocket(fields[1])
		if err != nil {
			return nil, err
		}
		out = append(out, listener{protocol: protocol, at: at})
	}
	return out, lines.Err()
}

// parseSocket reads ADDRESS:PORT in hexadecimal digits; the address is in words of
// four bytes, the lowest byte first.
func parseSocket(s string) (netip.AddrPort, error) {
	address, port, ok := strings.Cut(s, ":")
	raw, err := hex.DecodeString(address)
	n, portErr := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || portErr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("expected an address and a port in hexadecimal digits, found %q", s)
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	a, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("expected an IPv4 or IPv6 address, found %q", address)
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), nil
}
