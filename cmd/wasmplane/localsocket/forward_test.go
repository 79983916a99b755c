// SPDX-License-Identifier: Apache-2.0

package localsocket

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
)

// TestStreamsGoBySockets: whoever knows the password reaches the server, by another way than its
// address; nobody else does, and nothing else is reached.
func TestStreamsGoBySockets(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer server.Close()
	f := &Forward{Address: "example.com:6443", Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
	}}
	at, err := f.URL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := f.URL(t.Context()); err != nil || again.String() != at.String() {
		t.Errorf("%v (%v), want %v", again, err, at)
	}
	get := func(proxy *url.URL, address string) (string, error) {
		transport := server.Client().Transport.(*http.Transport).Clone()
		transport.Proxy, transport.DialContext = http.ProxyURL(proxy), nil
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	if got, err := get(at, "example.com:6443"); err != nil || got != "hello" {
		t.Errorf("%q (%v)", got, err)
	}
	if got, err := get(at, "example.com:443"); err == nil {
		t.Errorf("another port: %q", got)
	}
	for _, user := range []*url.Userinfo{nil, url.UserPassword("socket", "guessed")} {
		other := *at
		other.User = user
		if got, err := get(&other, "example.com:6443"); err == nil {
			t.Errorf("as %v: %q", user, got)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if got, err := get(at, "example.com:6443"); err == nil {
		t.Errorf("when it is closed: %q", got)
	}
}

// TestAnotherServerAnswers: where neither the socket nor the server's own address is served, another server is reached,
// by streams too; where there is none either, both are named.
func TestAnotherServerAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "none")
	asked := ""
	failure := error(nil)
	others := func(_ context.Context, _, address string) (net.Conn, error) {
		asked = address
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		return near, failure
	}
	dial, proxy := First(socket, "https://"+gone, others)
	conn, err := dial(t.Context(), "tcp", gone)
	if err != nil || conn == nil || asked != gone {
		t.Fatalf("%v, %v; asked for %q", conn, err, asked)
	}
	stream := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+gone, http.NoBody)
	stream.Header.Set("Upgrade", "websocket")
	if at, err := proxy(stream); err != nil || at == nil {
		t.Errorf("streams go to %v, %v", at, err)
	}
	stream.Header.Del("Upgrade")
	if at, err := proxy(stream); err != nil || at != nil {
		t.Errorf("requests go to %v, %v", at, err)
	}
	failure = errors.New("no server of the cluster can be reached")
	if _, err := dial(t.Context(), "tcp", gone); !errors.Is(err, failure) || !strings.Contains(err.Error(), gone) {
		t.Errorf("nobody answers: %v", err)
	}
	alone, _ := First(socket, "https://"+gone, nil)
	if _, err := alone(t.Context(), "tcp", gone); err == nil || errors.Is(err, failure) {
		t.Errorf("a server without others: %v", err)
	}
}

// The system accepts connections for a server that is stopped: another one is asked.
func TestASilentServerIsGivenUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	others := func(context.Context, string, string) (net.Conn, error) { return near, nil }
	dial, _ := First(filepath.Join(t.TempDir(), "none"), "https://"+l.Addr().String(), others)
	if conn, err := dial(t.Context(), "tcp", l.Addr().String()); err != nil || conn != near {
		t.Errorf("connected to %v, %v", conn, err)
	}

	living := httptest.NewTLSServer(http.NotFoundHandler())
	defer living.Close()
	at := living.Listener.Addr().String()
	dial, _ = First(filepath.Join(t.TempDir(), "none"), living.URL, others)
	conn, err := dial(t.Context(), "tcp", at)
	if err != nil || conn == near {
		t.Fatalf("a server that answers: connected to %v, %v", conn, err)
	}
	_ = conn.Close()
}
