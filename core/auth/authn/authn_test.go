// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/pki"
)

const audience = "https://kubernetes.default.svc"

// world is an authenticator over a real PKI, a token file and counted service account tokens.
type world struct {
	*Authenticator
	pki    *pki.Authority
	tokens *counted
	now    time.Time
}

type counted struct{ asked int }

func (c *counted) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c.asked++
	switch token {
	case "sa":
		auds, _ := authenticator.AudiencesFrom(ctx)
		found := authenticator.Audiences{audience, "vault"}.Intersect(auds)
		if len(found) == 0 {
			return nil, false, errors.New("token audiences do not match")
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "system:serviceaccount:ns:sa"}, Audiences: found}, true, nil
	case "expired":
		return nil, false, errors.New("service account token has expired")
	}
	return nil, false, nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	a, err := pki.Open(pki.Config{Dir: filepath.Join(dir, "pki")})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(file, []byte("secret,jane,u1,\"dev,ops\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{pki: a, tokens: &counted{}, now: time.Now()}
	w.Authenticator, err = New(Config{
		ClientCAs:  pool(a.ClusterCA()),
		FrontProxy: &FrontProxy{CAs: pool(a.FrontProxyCA()), Names: []string{"front-proxy-client"}},
		TokenFile:  file, ServiceAccounts: w.tokens, Audiences: []string{audience},
		Now: func() time.Time { return w.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func pool(c *x509.Certificate) func() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(c)
	return func() *x509.CertPool { return p }
}

func (w *world) client(t *testing.T, id pki.Identity) func(*http.Request) {
	t.Helper()
	pair, err := w.pki.Client(id)
	if err != nil {
		t.Fatal(err)
	}
	return func(r *http.Request) {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Certificate().Leaf}}
	}
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

func header(k, v string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(k, v) }
}

func TestWhoIsWho(t *testing.T) {
	w := newWorld(t)
	other, err := pki.Open(pki.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	stranger := (&world{pki: other}).client(t, pki.BreakGlass())
	type edits = []func(*http.Request)
	for _, c := range []struct {
		name, method, path string
		edits              edits
		user               string // empty: Unauthorized
		groups             []string
	}{
		{"certificate", "GET", "/api", edits{w.client(t, pki.Node("n1"))}, "system:node:n1", []string{"system:nodes", "system:authenticated"}},
		{"static token", "POST", "/api", edits{bearer("secret")}, "jane", []string{"dev", "ops", "system:authenticated"}},
		{"service account", "GET", "/api", edits{bearer("sa")}, "system:serviceaccount:ns:sa", []string{"system:authenticated"}},
		{"front proxy", "GET", "/api", edits{w.client(t, pki.FrontProxyClient()), header("X-Remote-User", "bob"), header("X-Remote-Group", "g")}, "bob", []string{"g", "system:authenticated"}},
		{"headers without the proxy's certificate", "GET", "/api", edits{header("X-Remote-User", "bob")}, "", nil},
		{"headers with an ordinary certificate", "GET", "/api", edits{w.client(t, pki.Scheduler()), header("X-Remote-User", "bob")}, "system:kube-scheduler", []string{"system:authenticated"}},
		{"certificate of a foreign authority", "GET", "/api", edits{stranger}, "", nil},
		{"a foreign certificate does not spoil a good token", "GET", "/api", edits{stranger, bearer("secret")}, "jane", []string{"dev", "ops", "system:authenticated"}},
		{"unknown token", "GET", "/api", edits{bearer("guess")}, "", nil},
		{"nothing", "GET", "/api", nil, "", nil},
		{"nothing, health", "GET", "/readyz", nil, user.Anonymous, []string{"system:unauthenticated"}},
		{"nothing, write to health", "POST", "/readyz", nil, "", nil},
		{"a wrong token is not anonymous", "GET", "/readyz", edits{bearer("expired")}, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, c.path, nil)
			for _, e := range c.edits {
				e(r)
			}
			resp, ok, err := w.AuthenticateRequest(r)
			if c.user == "" {
				if ok {
					t.Fatalf("let in as %s", resp.User.GetName())
				}
				return
			}
			if err != nil || !ok {
				t.Fatalf("refused: %v", err)
			}
			if resp.User.GetName() != c.user || !slices.Equal(resp.User.GetGroups(), c.groups) {
				t.Errorf("is %s in %q", resp.User.GetName(), resp.User.GetGroups())
			}
			if r.Header.Get("Authorization") != "" {
				t.Error("the token is still on the request")
			}
		})
	}
}

func TestARenewedPoolAndAnEndedCertificateCount(t *testing.T) {
	w := newWorld(t)
	edit := w.client(t, pki.Scheduler())
	ask := func() bool {
		r := httptest.NewRequest("GET", "/api", nil)
		edit(r)
		_, ok, _ := w.AuthenticateRequest(r)
		return ok
	}
	for range 2 {
		if !ask() {
			t.Fatal("refused")
		}
	}
	w.now = w.now.Add(2 * 365 * 24 * time.Hour)
	if ask() {
		t.Error("a certificate that has ended was believed")
	}
}

// A certificate that is refused is so on the next request, though its chain was verified a
// moment before; who registers a node is told apart.
// A name ends where it ends, and not at a NUL (CVE-2026-47778).
func TestANameInACertificateIsTheWholeName(t *testing.T) {
	w := newWorld(t)
	for _, id := range []pki.Identity{
		{Name: "a", User: "admin\x00.example.com", Groups: []string{"system:masters\x00", "dev\x00,system:masters"}},
		{Name: "b", User: "\x00admin", Groups: []string{"\x00system:masters"}},
	} {
		r := httptest.NewRequest("GET", "/api", nil)
		w.client(t, id)(r)
		response, ok, err := w.AuthenticateRequest(r)
		if err != nil || !ok {
			continue // refused altogether
		}
		got := response.User
		if got.GetName() != id.User || slices.Contains(got.GetGroups(), "system:masters") || slices.Contains(got.GetGroups(), "dev") {
			t.Errorf("%q in %q became %q in %q", id.User, id.Groups, got.GetName(), got.GetGroups())
		}
	}
}

func TestACertificateIsRefused(t *testing.T) {
	w := newWorld(t)
	refuse, registers := false, false
	a, err := New(Config{
		ClientCAs: pool(w.pki.ClusterCA()), Audiences: []string{audience},
		RefuseCertificate: func(_ context.Context, c *x509.Certificate, r bool) error {
			if registers = r; refuse && c.Subject.CommonName == "system:node:n" {
				return errors.New("removed")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(id pki.Identity, method, path string) bool {
		r := httptest.NewRequest(method, path, nil)
		w.client(t, id)(r)
		_, ok, _ := a.AuthenticateRequest(r)
		return ok
	}
	for range 2 { // the second time from what was kept
		if !ask(pki.Node("n"), "GET", "/api/v1/nodes") || registers {
			t.Fatal("a node is refused, or taken to register")
		}
	}
	refuse = true
	if ask(pki.Node("n"), "POST", "/api/v1/nodes") || !registers {
		t.Error("a node that is refused registers")
	}
	if ask(pki.Node("n"), "GET", "/api/v1/pods") || registers {
		t.Error("a node that is refused reads")
	}
	if !ask(pki.Node("m"), "GET", "/api/v1/pods") || !ask(pki.Scheduler(), "GET", "/api/v1/pods") {
		t.Error("others are refused too")
	}
}

func TestGoodTokensAreRememberedBadOnesAreNot(t *testing.T) {
	w := newWorld(t)
	ask := func(token string) {
		r := httptest.NewRequest("GET", "/api", nil)
		bearer(token)(r)
		_, _, _ = w.AuthenticateRequest(r)
	}
	for range 3 {
		ask("sa")
	}
	if w.tokens.asked != 1 {
		t.Errorf("a good token was checked %d times", w.tokens.asked)
	}
	w.now = w.now.Add(11 * time.Second)
	ask("sa")
	if w.tokens.asked != 2 {
		t.Error("an old answer was believed")
	}
	ask("expired")
	ask("expired")
	if w.tokens.asked < 4 {
		t.Error("a bad answer was kept")
	}
}

func TestReviewToken(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		token string
		auds  []string
		ok    bool
	}{
		{"sa", nil, true},
		{"sa", []string{"vault"}, true},
		{"sa", []string{"elsewhere"}, false},
		{"secret", nil, true},
		{"secret", []string{"vault"}, false},
		{"guess", nil, false},
		{"expired", nil, false},
	} {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: c.token, Audiences: c.auds}}
		if err := w.ReviewToken(t.Context(), review); err != nil {
			t.Fatal(err)
		}
		if review.Status.Authenticated != c.ok {
			t.Errorf("%s for %q: %+v", c.token, c.auds, review.Status)
		}
		if c.ok && !slices.Contains(review.Status.User.Groups, user.AllAuthenticated) {
			t.Errorf("%s: groups %q", c.token, review.Status.User.Groups)
		}
	}
	if err := w.ReviewToken(t.Context(), &authenticationv1.TokenReview{}); err == nil {
		t.Error("an empty token was reviewed")
	}
}
