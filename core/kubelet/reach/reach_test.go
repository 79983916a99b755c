// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// dns answers every question in this way, until the test ends.
func dns(t *testing.T, code dnsmessage.RCode) (address string) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if err := m.Unpack(buf[:n]); err != nil {
				continue
			}
			m.Response, m.RCode, m.Additionals = true, code, nil
			if answer, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-ended })
	return c.LocalAddr().String()
}

func TestWhatIsReached(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	const name = "kubernetes.default.svc.cluster.local."
	targets := []Target{
		{Kind: TCP, Address: l.Addr().String()},
		{Kind: TCP, Address: gone.Addr().String()},
		{Kind: DNS, Address: dns(t, dnsmessage.RCodeNameError), Question: name},
		{Kind: DNS, Address: dns(t, dnsmessage.RCodeServerFailure), Question: name},
		{Kind: DNS, Address: dns(t, dnsmessage.RCodeRefused), Question: name},
		{Kind: DNS, Address: silent.LocalAddr().String(), Question: name},
	}
	if err := Validate(targets); err != nil {
		t.Fatal(err)
	}
	got := Try(t.Context(), targets)
	for i, want := range []Result{{}, {"connection refused", true}, {}, {}, {}, {Problem: "no answer within 2s"}} {
		if got[i] != want {
			t.Errorf("%+v: %+v, want %+v", targets[i], got[i], want)
		}
	}
}

func TestOnlyAddressesAreTried(t *testing.T) {
	for _, c := range []struct {
		targets []Target
		no      string
	}{
		{[]Target{{Kind: TCP, Address: "example.com:80"}}, "target 0: expected IP:PORT"},
		{[]Target{{Kind: TCP, Address: "192.0.2.1"}}, "expected IP:PORT"},
		{[]Target{{Kind: "http", Address: "192.0.2.1:80"}}, "expected the kind tcp, or dns"},
		{[]Target{{Kind: DNS, Address: "192.0.2.1:53"}}, "with a question"},
		{make([]Target, Most+1), "at most 256 targets"},
	} {
		if err := Validate(c.targets); err == nil || !strings.Contains(err.Error(), c.no) {
			t.Errorf("%v; want %q", err, c.no)
		}
	}
}
