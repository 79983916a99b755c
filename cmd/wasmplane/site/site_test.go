// SPDX-License-Identifier: Apache-2.0

package site

import (
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
)

func anyPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func TestTheAPIIsReachedAtLoopbackAndAtTheNodesAddress(t *testing.T) {
	defer goleak.VerifyNone(t)
	port := anyPort(t)
	c := config.Default()
	c.APIServer.Listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	// 127.0.0.2 stands in for the node's address; as such it would be loopback.
	dir := datadir.Dir(t.TempDir())
	s := Site{
		Options:   process.Options{Config: c, Dir: dir, Logger: slog.New(slog.DiscardHandler)},
		Advertise: netip.MustParseAddr("127.0.0.1"), Port: port,
	}
	single, err := s.Listen(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for network, at := range map[string]string{"tcp": c.APIServer.Listen, "unix": dir.Socket()} {
		dialled, err := net.Dial(network, at)
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := single.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = dialled.Close(), accepted.Close()
	}
	if _, err := s.Listen(t.Context(), true); err == nil {
		t.Error("a port in use was not noticed")
	}
	_ = single.Close()
}

func TestPortZeroIsAnyFreeOne(t *testing.T) {
	c := config.Default()
	c.APIServer.Listen = "127.0.0.1:0"
	s, err := findSite(t.Context(), process.Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	if s.Port == 0 || s.Options.Config.APIServer.Listen != net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) ||
		c.APIServer.Listen != "127.0.0.1:0" {
		t.Errorf("port %d, listening at %s; the caller's own configuration says %s", s.Port, s.Options.Config.APIServer.Listen,
			c.APIServer.Listen)
	}
}
