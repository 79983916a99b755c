// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/dial/dialtest"
)

// TestAServiceThatKnowsTokensIsNotBelievedWithoutBounds: what it answers costs no more
// than an answer may, and it sends nobody elsewhere with the tokens that it is shown.
func TestAServiceThatKnowsTokensIsNotBelievedWithoutBounds(t *testing.T) {
	s := dialtest.New(t)
	for place, want := range s.Hostile() {
		hook, err := NewWebhook(WebhookConfig{File: s.Kubeconfig(t, place), Timeout: time.Minute, CacheTTL: -1})
		if err != nil {
			t.Fatal(err)
		}
		if resp, ok, err := hook.AuthenticateToken(t.Context(), "token"); ok || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", place, resp, err)
		}
	}
	if n := s.Reached.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
	<-s.Let
}

// TestAProvidersAnswersAreBounded: its description and its keys are read at once by the
// library, so they end where a real one's never come to. The metadata service is no provider.
func TestAProvidersAnswersAreBounded(t *testing.T) {
	bomb := strings.Repeat(" ", providerAnswer)
	var p *provider
	mux := http.NewServeMux()
	describe := func(more string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			issuer := p.URL + strings.TrimSuffix(r.URL.Path, "/.well-known/openid-configuration")
			_ = json.NewEncoder(w).Encode(map[string]any{
				"issuer": issuer, "jwks_uri": p.URL + "/keys",
				"id_token_signing_alg_values_supported": []string{"ES256"},
			})
			_, _ = w.Write([]byte(more))
		}
	}
	mux.HandleFunc("/large/.well-known/openid-configuration", describe(bomb))
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"keys":[]}` + bomb)) })
	mux.HandleFunc("/.well-known/openid-configuration", describe(""))
	p = newProvider(t)
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	const names = "  claimMappings:\n    username: {claim: sub, prefix: ''}\n"
	w := newStructuredWorld(t, "jwt:\n"+p.entry(names))
	const want = "is larger than 1048576 bytes"
	await(t, "keys", want, func() error {
		_, err := w.ask("GET", "/api", p.token(t, nil))
		return err
	})
	for issuer, want := range map[string]string{p.URL + "/large": want, "https://169.254.169.254": "link-local"} {
		w.write(t, "jwt:\n"+strings.Replace(p.entry(names), p.URL, issuer, 1))
		config, err := w.s.read()
		if err != nil {
			t.Fatal(err)
		}
		providers, health, err := w.s.start(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		await(t, issuer, want, health[0].HealthCheck)
		providers.stop()
	}
}

// await asks until the error is the one that is expected: providers are asked in the background.
func await(t *testing.T, name, want string, ask func() error) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		err := ask()
		if err != nil && strings.Contains(err.Error(), want) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
