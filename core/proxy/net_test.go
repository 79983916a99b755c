// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/netlab"
)

// lab is a node with pods and a client outside, each in a network namespace:
//
//	client 192.0.2.100 --- 192.0.2.1 node 10.244.0.1 --- pods 10.244.0.X
type lab struct {
	netlab.Lab
	t *testing.T
}

const (
	nodeIP   = "192.0.2.1"
	clientIP = "192.0.2.100"
)

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{netlab.New(t), t}
	l.Namespace("node")
	l.Namespace("client")
	l.Run("node", "ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", l.Name("client"))
	l.Run("node", "ip", "addr", "add", nodeIP+"/24", "dev", "up0")
	l.Run("node", "ip", "link", "set", "up0", "up")
	l.Run("client", "ip", "addr", "add", clientIP+"/24", "dev", "eth0")
	l.Run("client", "ip", "link", "set", "eth0", "up")
	l.Run("client", "ip", "route", "add", "default", "via", nodeIP)
	l.Run("node", "ip", "route", "add", "default", "via", clientIP)
	l.Sysctl("node", "net.ipv4.ip_forward", "1")
	return l
}

// pod makes a pod with the address 10.244.0.N.
func (l *lab) pod(n int) (name, ip string) {
	l.t.Helper()
	name, ip = fmt.Sprintf("pod%d", n), fmt.Sprintf("10.244.0.%d", n)
	l.Namespace(name)
	l.Run("node", "ip", "link", "add", "v"+name, "type", "veth", "peer", "name", "eth0", "netns", l.Name(name))
	l.Run("node", "ip", "addr", "add", "10.244.0.1/32", "dev", "v"+name)
	l.Run("node", "ip", "link", "set", "v"+name, "up")
	l.Run("node", "ip", "route", "add", ip+"/32", "dev", "v"+name)
	l.Run(name, "ip", "addr", "add", ip+"/32", "dev", "eth0")
	l.Run(name, "ip", "link", "set", "eth0", "up")
	l.Run(name, "ip", "route", "add", "10.244.0.1/32", "dev", "eth0")
	l.Run(name, "ip", "route", "add", "default", "via", "10.244.0.1")
	return name, ip
}

// serve answers each connection with the pod's name and the client's address.
func (l *lab) serve(ns, network, address string) {
	l.t.Helper()
	err := l.In(ns, func() error {
		if network == "udp" {
			c, err := net.ListenPacket("udp", address)
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { _ = c.Close() })
			go func() {
				buf := make([]byte, 64)
				for {
					_, from, err := c.ReadFrom(buf)
					if err != nil {
						return
					}
					_, _ = c.WriteTo([]byte(ns+" "+host(from.String())), from)
				}
			}()
			return nil
		}
		s, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { _ = s.Close() })
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, ns+" "+host(c.RemoteAddr().String()))
				_ = c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func host(addrPort string) string { return netip.MustParseAddrPort(addrPort).Addr().Unmap().String() }

// get connects from a namespace and returns what the other side says.
func (l *lab) get(ns, address string) (answer string, err error) {
	return l.getWithin(10*time.Second, ns, address) // long enough on a busy machine
}

// getWithin is get with another patience, for connections that nothing is to answer.
func (l *lab) getWithin(patience time.Duration, ns, address string) (answer string, err error) {
	err = l.In(ns, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp4", address)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		b, err := io.ReadAll(c)
		answer = string(b)
		return err
	})
	return answer, err
}

func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
