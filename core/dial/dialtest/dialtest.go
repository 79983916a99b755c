// SPDX-License-Identifier: Apache-2.0

// Package dialtest has servers with hostile answers, for tests of clients of other servers.
package dialtest

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// Server answers by the path: /endless a JSON text that never ends, /headers a MiB of headers
// thirty times over, /redirect to /reached, which counts.
type Server struct {
	*httptest.Server
	// Reached is how often somebody followed the redirect.
	Reached atomic.Int32
	// Let is how many endless answers were given up by the client.
	Let chan struct{}
}

// New starts a server. It ends with the test.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{Let: make(chan struct{}, 100)}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasPrefix(r.URL.Path, "/endless"):
			s.endless(w)
		case strings.HasPrefix(r.URL.Path, "/headers"):
			for i := range 30 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 1<<20))
			}
		case strings.HasPrefix(r.URL.Path, "/redirect"):
			http.Redirect(w, r, s.URL+"/reached", http.StatusTemporaryRedirect)
		default:
			s.Reached.Add(1)
			http.Error(w, "{}", http.StatusTeapot)
		}
	}))
	tb.Cleanup(s.Close)
	return s
}

func (s *Server) endless(w http.ResponseWriter) {
	part := []byte(strings.Repeat("x", 64<<10))
	_, err := w.Write([]byte(`{"x":"`))
	for err == nil {
		_, err = w.Write(part)
	}
	s.Let <- struct{}{}
}

// CA is the server's certificate in PEM.
func (s *Server) CA() []byte { return authority(s.Server) }

func authority(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// Kubeconfig is a file that leads to a place with the server's certificate.
func (s *Server) Kubeconfig(tb testing.TB, url string) string {
	tb.Helper()
	return Kubeconfig(tb, s.Server, url, "secret")
}

// Kubeconfig is a file that leads to url with the certificate of a server, by a bearer token; "" = without credentials.
func Kubeconfig(tb testing.TB, s *httptest.Server, url, token string) string {
	tb.Helper()
	dir := tb.TempDir()
	ca, file := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]\nusers: [{name: u, user: {token: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n", url, ca, token)
	for name, data := range map[string][]byte{ca: authority(s), file: []byte(text)} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return file
}

// Metadata is where clouds' machines ask about themselves.
const Metadata = "https://169.254.169.254/latest"

// Hostile are the places that a webhook's client must come back from with an error, and
// a part of what it says.
func (s *Server) Hostile() map[string]string {
	return map[string]string{
		s.URL + "/endless": "is larger than", s.URL + "/headers": "", s.URL + "/redirect": "redirect",
		Metadata: "link-local",
	}
}
