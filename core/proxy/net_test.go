// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"
)

// lab is a node with pods and a client outside, each in a network namespace:
//
//	client 192.0.2.100 --- 192.0.2.1 node 10.244.0.1 --- pods 10.244.0.X
type lab struct {
	t      *testing.T
	prefix string
}

var labs atomic.Int64

const (
	nodeIP   = "192.0.2.1"
	clientIP = "192.0.2.100"
)

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t, fmt.Sprintf("wpt%d-%d-", os.Getpid(), labs.Add(1))}
	l.namespace("node")
	l.namespace("client")
	l.run("node", "ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", l.prefix+"client")
	l.run("node", "ip", "addr", "add", nodeIP+"/24", "dev", "up0")
	l.run("node", "ip", "link", "set", "up0", "up")
	l.run("client", "ip", "addr", "add", clientIP+"/24", "dev", "eth0")
	l.run("client", "ip", "link", "set", "eth0", "up")
	l.run("client", "ip", "route", "add", "default", "via", nodeIP)
	l.run("node", "ip", "route", "add", "default", "via", clientIP)
	l.run("node", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	return l
}

func (l *lab) namespace(name string) {
	l.t.Helper()
	command(l.t, "ip", "netns", "add", l.prefix+name)
	l.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", l.prefix+name).Run() })
	l.run(name, "ip", "link", "set", "lo", "up")
}

// pod makes a pod with the address 10.244.0.N.
func (l *lab) pod(n int) (name, ip string) {
	l.t.Helper()
	name, ip = fmt.Sprintf("pod%d", n), fmt.Sprintf("10.244.0.%d", n)
	l.namespace(name)
	l.run("node", "ip", "link", "add", "v"+name, "type", "veth", "peer", "name", "eth0", "netns", l.prefix+name)
	l.run("node", "ip", "addr", "add", "10.244.0.1/32", "dev", "v"+name)
	l.run("node", "ip", "link", "set", "v"+name, "up")
	l.run("node", "ip", "route", "add", ip+"/32", "dev", "v"+name)
	l.run(name, "ip", "addr", "add", ip+"/32", "dev", "eth0")
	l.run(name, "ip", "link", "set", "eth0", "up")
	l.run(name, "ip", "route", "add", "10.244.0.1/32", "dev", "eth0")
	l.run(name, "ip", "route", "add", "default", "via", "10.244.0.1")
	return name, ip
}

func (l *lab) run(ns string, args ...string) string {
	l.t.Helper()
	return command(l.t, append([]string{"ip", "netns", "exec", l.prefix + ns}, args...)...)
}

func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// in runs f on a thread inside a namespace. The thread is not used again.
func (l *lab) in(ns string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		h, err := netns.GetFromName(l.prefix + ns)
		if err == nil {
			err = netns.Set(h)
			_ = h.Close()
		}
		if err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// serve answers each connection with the pod's name and the client's address.
func (l *lab) serve(ns, network, address string) {
	l.t.Helper()
	err := l.in(ns, func() error {
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
	err = l.in(ns, func() error {
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

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("still not so: %s", what)
		case <-tick.C:
		}
	}
}

func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
