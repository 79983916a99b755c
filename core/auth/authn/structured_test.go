// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/metrics/legacyregistry"
)

// provider is an OpenID Connect provider that signs what it is told to.
type provider struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": p.URL, "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(
			jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	})
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": p.URL, "aud": "wasmplane", "sub": "u1", "exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(all).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// entry is the provider in an AuthenticationConfiguration.
func (p *provider) entry(more string) string {
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
	return fmt.Sprintf("- issuer:\n    url: %s\n    audiences: [wasmplane]\n    certificateAuthority: |\n      %s\n%s",
		p.URL, strings.ReplaceAll(strings.TrimSpace(ca), "\n", "\n      "), more)
}

const mappings = `  claimMappings:
    username: {expression: '"corp:" + claims.email.split("@")[0]'}
    groups: {expression: 'claims.?roles.orValue([])'}
    extra:
    - {key: example.com/tenant, valueExpression: claims.tenant}
  claimValidationRules:
  - {expression: claims.email_verified == true, message: the address must be verified}
  - {expression: "claims.exp - claims.?nbf.orValue(claims.exp) <= 86400", message: too long}
  userValidationRules:
  - {expression: "!user.username.startsWith('system:')", message: reserved}
`

type structuredWorld struct {
	*Authenticator
	s    *Structured
	file string
	ctx  context.Context
}

func newStructuredWorld(t *testing.T, doc string) *structuredWorld {
	t.Helper()
	w := &structuredWorld{file: filepath.Join(t.TempDir(), "authn.yaml"), ctx: t.Context()}
	w.write(t, doc)
	var err error
	if w.s, err = NewStructured(StructuredConfig{
		File: w.file, OwnIssuers: []string{audience}, Audiences: []string{audience},
		Patience: time.Minute,
	}); err != nil {
		t.Fatal(err)
	}
	if w.Authenticator, err = New(Config{Structured: w.s, Audiences: []string{audience}}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *structuredWorld) write(t *testing.T, body string) {
	t.Helper()
	doc := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n" + body
	if err := os.WriteFile(w.file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *structuredWorld) ask(method, path, token string) (user.Info, error) {
	r := httptest.NewRequest(method, path, nil)
	if token != "" {
		bearer(token)(r)
	}
	resp, ok, err := w.AuthenticateRequest(r)
	if !ok {
		return nil, fmt.Errorf("refused: %w", err)
	}
	return resp.User, nil
}

// eventually asks until the providers have answered.
func (w *structuredWorld) eventually(t *testing.T, token string) user.Info {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		u, err := w.ask("GET", "/api", token)
		if err == nil {
			return u
		}
		select {
		case <-deadline:
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestTokensOfSeveralProviders(t *testing.T) {
	corp, partner := newProvider(t), newProvider(t)
	w := newStructuredWorld(t,
		"jwt:\n"+corp.entry(mappings)+partner.entry("  claimMappings:\n    username: {claim: sub, prefix: 'partner:'}\n"))
	good := map[string]any{"email": "ann@corp.example", "email_verified": true, "roles": []string{"dev"}, "tenant": "t1"}
	u := w.eventually(t, corp.token(t, good))
	if u.GetName() != "corp:ann" || !slices.Equal(u.GetGroups(), []string{"dev", "system:authenticated"}) ||
		u.GetExtra()["example.com/tenant"][0] != "t1" {
		t.Errorf("is %s in %q with %q", u.GetName(), u.GetGroups(), u.GetExtra())
	}
	if u := w.eventually(t, partner.token(t, nil)); u.GetName() != "partner:u1" {
		t.Errorf("is %s", u.GetName())
	}
	with := func(k string, v any) map[string]any {
		m := map[string]any{}
		for key, value := range good {
			m[key] = value
		}
		m[k] = v
		return m
	}
	for name, token := range map[string]string{
		"an unverified address": corp.token(t, with("email_verified", false)),
		"expired":               corp.token(t, with("exp", time.Now().Add(-time.Minute).Unix())),
		"for somebody else":     corp.token(t, with("aud", "elsewhere")),
		"of a stranger":         newProvider(t).token(t, good),
		"as the other provider": corp.token(t, with("iss", partner.URL)),
		"as the cluster itself": corp.token(t, with("iss", audience)),
		"without an end":        corp.token(t, with("exp", nil)),
	} {
		if u, err := w.ask("GET", "/api", token); err == nil {
			t.Errorf("a token %s was taken for %s", name, u.GetName())
		}
	}
}

func TestAFileIsTakenOnWhileItRuns(t *testing.T) {
	first, second := newProvider(t), newProvider(t)
	plain := "  claimMappings:\n    username: {claim: sub, prefix: ''}\n"
	w := newStructuredWorld(t, "jwt:\n"+first.entry(plain))
	w.eventually(t, first.token(t, nil))

	// A wrong file keeps the old one, and says what is wrong.
	w.write(t, "jwt:\n"+first.entry("  claimMappings:\n    username: {expression: 'claims.sub +'}\n"))
	if err := w.s.Reload(w.ctx); err == nil || !strings.Contains(err.Error(), "jwt[0].claimMappings.username.expression") ||
		!strings.Contains(err.Error(), w.file) {
		t.Errorf("a wrong expression: %v", err)
	}
	w.write(t, "jwt:\n"+first.entry(plain)+"unknown: 1\n")
	if err := w.s.Reload(w.ctx); err == nil {
		t.Error("an unknown field was taken")
	}
	w.write(t, "jwt:\n- issuer: {url: "+audience+", audiences: [x]}\n"+plain)
	if err := w.s.Reload(w.ctx); err == nil {
		t.Error("the cluster's own issuer was taken for a provider")
	}
	w.eventually(t, first.token(t, map[string]any{"sub": "u2"}))

	// A provider that does not answer keeps the old one too.
	gone := newProvider(t)
	gone.Close()
	w.s.cfg.Patience = 50 * time.Millisecond
	w.write(t, "jwt:\n"+gone.entry(plain))
	if err := w.s.Reload(w.ctx); err == nil {
		t.Error("a provider that does not answer was taken")
	}
	w.s.cfg.Patience = time.Minute

	known := first.token(t, nil) // in the token cache
	if _, err := w.ask("GET", "/api", known); err != nil {
		t.Fatal(err)
	}
	w.write(t, "jwt:\n"+second.entry(plain))
	if err := w.s.Reload(w.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ask("GET", "/api", second.token(t, nil)); err != nil {
		t.Error(err)
	}
	if _, err := w.ask("GET", "/api", known); err == nil {
		t.Error("a token of a removed provider is still good")
	}

	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]bool{}
	for _, f := range families {
		if f.GetName() == "apiserver_authentication_config_controller_automatic_reloads_total" {
			for _, m := range f.GetMetric() {
				counted[m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue() > 0
			}
		}
	}
	if !counted["success"] || !counted["failure"] {
		t.Errorf("reloads are counted as %v", counted)
	}
}

func TestWhoMayBeAnonymous(t *testing.T) {
	w := newStructuredWorld(t, "anonymous: {enabled: true, conditions: [{path: /healthz}]}\n")
	for _, c := range []struct {
		doc, path, token string
		ok               bool
	}{
		{"anonymous: {enabled: true, conditions: [{path: /healthz}]}\n", "/healthz", "", true},
		{"anonymous: {enabled: true, conditions: [{path: /healthz}]}\n", "/livez", "", false},
		{"anonymous: {enabled: true}\n", "/api/v1/namespaces/kube-public/configmaps/cluster-info", "", true},
		{"anonymous: {enabled: true}\n", "/api", "guess", false},
		{"anonymous: {enabled: false}\n", "/livez", "", false},
		{"", "/livez", "", true},
		{"", "/api", "", false},
	} {
		w.write(t, c.doc)
		if err := w.s.Reload(w.ctx); err != nil {
			t.Fatal(err)
		}
		u, err := w.ask("GET", c.path, c.token)
		if (err == nil) != c.ok || err == nil && u.GetName() != user.Anonymous {
			t.Errorf("%q: %s: %v", c.doc, c.path, err)
		}
	}
}

func TestAFileThatIsWrongIsRefusedAtStart(t *testing.T) {
	for _, doc := range []string{"", "kind: x", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: []\n"} {
		file := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewStructured(StructuredConfig{File: file}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", doc, err)
		}
	}
}
