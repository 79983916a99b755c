// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// startProxy runs a proxy between a socket and a port until the test ends.
func startProxy(t *testing.T) (socket, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// A short path: a socket's has 107 bytes at most.
	dir, err := os.MkdirTemp("", "proxy") //nolint:usetesting // t.TempDir has the test's name in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "csi.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil { // what a killed proxy left
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runProxy(ctx, socket, "tcp://"+address, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the proxy ended with %v", err)
		}
	})
	return socket, address
}

// dial tries until somebody listens, for a minute at most.
func dial(t *testing.T, network, address string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var d net.Dialer
	for {
		c, err := d.DialContext(ctx, network, address)
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			return c
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// TestProxy: what is said on the socket is heard on the port and the reverse, each
// connection by itself, and the end of one side is the end of the other.
func TestProxy(t *testing.T) {
	socket, address := startProxy(t)
	for i := range 3 {
		server := dial(t, "tcp", address)
		client := dial(t, "unix", socket)
		for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
			said := fmt.Sprintf("hello %d\n", i)
			if _, err := io.WriteString(way[0], said); err != nil {
				t.Fatal(err)
			}
			if heard, err := bufio.NewReader(way[1]).ReadString('\n'); err != nil || heard != said {
				t.Fatalf("heard %q (%v), want %q", heard, err, said)
			}
		}
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := server.Read(make([]byte, 1)); err == nil {
			t.Fatalf("read %d bytes from a client that has gone", n)
		}
	}
}

// TestProxyEndsWithOpenConnections: it does not wait for those who stay.
func TestProxyEndsWithOpenConnections(t *testing.T) {
	socket, address := startProxy(t)
	server, client := dial(t, "tcp", address), dial(t, "unix", socket)
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func TestEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"/csi/csi.sock": "unix /csi/csi.sock", "unix:///csi/csi.sock": "unix /csi/csi.sock", "tcp://:9000": "tcp :9000",
		"http://x": "", "": "", "tcp://": "",
	} {
		network, address, err := place(endpoint)
		if got := network + " " + address; (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q is %q (%v), want %q", endpoint, got, err, want)
		}
	}
}
