// SPDX-License-Identifier: Apache-2.0

package localsocket

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
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
