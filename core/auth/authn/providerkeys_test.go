// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

const plainNames = "  claimMappings:\n    username: {claim: sub, prefix: ''}\n"

// A key of a megabit takes half a minute to check one signature with, and a token that names no key is checked with all.
func TestAProvidersKeysAreBounded(t *testing.T) {
	key := `{"kty":"EC","crv":"P-256","kid":"k%d","x":"AA","y":"AA"}`
	many := make([]string, maxProviderKeys+1)
	for i := range many {
		many[i] = fmt.Sprintf(key, i)
	}
	rsa := func(bits, exponent int) string {
		return `{"keys":[{"kty":"RSA","kid":"k","e":"` + strings.Repeat("A", exponent*4/3) + `AQAB","n":"` + strings.Repeat("_", bits/6) + `"}]}`
	}
	chain := `"` + strings.Repeat(`AA","`, maxChain) + `AA"`
	for name, c := range map[string]struct {
		keys http.HandlerFunc
		want string
	}{
		"many":         {text(`{"keys":[` + strings.Join(many, ",") + `]}`), "101 keys, and a provider may have 100"},
		"a large one":  {text(rsa(1<<20, 0)), "is an RSA key of 1048568 bits, and a key may have 8192"},
		"an exponent":  {text(rsa(2048, 30)), "has an RSA exponent of 33 bytes"},
		"certificates": {text(`{"keys":[{"kty":"RSA","kid":"k","e":"AQAB","n":"AAAA","x5c":[` + chain + `]}]}`), "has a chain of 21 certificates"},
		"depth":        {text(`{"keys":[` + strings.Repeat("[", 500000)), "is not JSON"},
		"no JSON":      {text(strings.Repeat("<html>", 20000)), "has 120000 bytes and is not JSON"},
		"redirects":    {to("/keys"), "stopped after 10 redirects"},
		"the metadata": {to("https://169.254.169.254/"), "link-local"},
	} {
		p := newProvider(t)
		mux := http.NewServeMux()
		mux.Handle("/", p.Config.Handler)
		mux.HandleFunc("/keys", c.keys)
		p.Config.Handler = mux
		w := newStructuredWorld(t, "jwt:\n"+p.entry(plainNames))
		await(t, name, c.want, func() error {
			_, err := w.ask("GET", "/api", p.token(t, nil))
			return err
		})
	}
}

func to(place string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, place, http.StatusFound) }
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

// A provider that does not answer is given up; the tokens of others are not held up.
func TestAProviderThatAnswersLateIsNotWaitedFor(t *testing.T) {
	good, slow := newProvider(t), newProvider(t)
	asked, let := make(chan struct{}, 100), make(chan struct{})
	mux := http.NewServeMux()
	mux.Handle("/", slow.Config.Handler)
	mux.HandleFunc("/keys", func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-let:
		case <-r.Context().Done():
		}
	})
	slow.Config.Handler = mux
	t.Cleanup(func() { close(let) }) // before its server is closed
	w := newStructuredWorld(t, "jwt:\n"+good.entry(plainNames)+slow.entry(plainNames))
	w.eventually(t, good.token(t, nil))
	await(t, "the slow one", "context canceled", func() error {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api", nil)
		bearer(slow.token(t, nil))(r)
		ctx, cancel := context.WithCancel(r.Context())
		gone := run.Go("whoever asks", func() error { // goes away once the keys are being waited for
			if run.Await(ctx, asked) {
				cancel()
			}
			return nil
		})
		defer func() { <-gone }()
		defer cancel()
		_, _, err := w.AuthenticateRequest(r.WithContext(ctx))
		return err
	})
	if u, err := w.ask("GET", "/api", good.token(t, map[string]any{"sub": "u2"})); err != nil || u.GetName() != "u2" {
		t.Errorf("a token of another provider: %v, %v", u, err)
	}
}

// Anybody can send tokens that name keys which nobody has.
func TestKeysAreFetchedOnceASecond(t *testing.T) {
	now := time.Unix(1000, 0)
	fetched := 0
	body := `{"keys":[]}`
	p := boundKeys(roundTrip(func(*http.Request) (*http.Response, error) {
		fetched++
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Cache-Control": {"max-age=1"}}, Body: io.NopCloser(strings.NewReader(body)),
		}, nil
	}))
	p.now = func() time.Time { return now }
	ask := func(url string) (string, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := p.RoundTrip(r)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		all, err := io.ReadAll(resp.Body)
		return resp.Header.Get("Cache-Control") + string(all), err
	}
	for range 1000 {
		if got, err := ask("https://a.example.com/keys"); got != "max-age=1"+body || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if fetched != 1 {
		t.Errorf("fetched %d times in one second", fetched)
	}
	now = now.Add(keysAtMost)
	body = `{"keys":[` + strings.Repeat(`{},`, 200) + `{}]}`
	for range 10 { // an answer that is refused counts too
		if _, err := ask("https://a.example.com/keys"); err == nil || !strings.Contains(err.Error(), "201 keys") {
			t.Error(err)
		}
	}
	if fetched != 2 {
		t.Errorf("fetched %d times in two seconds", fetched)
	}
	for i := range 1000 { // nor does it remember without an end
		if _, err := ask(fmt.Sprintf("https://a.example.com/%d", i)); err == nil {
			t.Error("accepted")
		}
	}
	if n := len(p.sets); n > maxKeySets {
		t.Errorf("%d key sets are remembered", n)
	}
	body, now = `{"issuer":"x"}`, now.Add(time.Hour)
	before := fetched
	for range 2 { // a provider's description is asked for while it starts, and not remembered
		if _, err := ask("https://a.example.com/keys"); err != nil {
			t.Error(err)
		}
	}
	if fetched != before+2 {
		t.Errorf("a description was fetched %d times of 2", fetched-before)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Tokens that nobody signed, or that are made to cost much, are nobody's, and nobody is asked about them.
func TestHostileTokens(t *testing.T) {
	p := newProvider(t)
	var elsewhere atomic.Int64
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	w := newStructuredWorld(t, "jwt:\n"+p.entry(plainNames))
	w.eventually(t, p.token(t, nil))
	mine, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{"iss": p.URL, "aud": "wasmplane", "sub": "u1", "exp": time.Now().Add(time.Hour).Unix()}
	signed := func(key any, alg jose.SignatureAlgorithm, o *jose.SignerOptions, claims any) *jose.JSONWebSignature {
		t.Helper()
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, o)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := json.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		s, err := signer.Sign(payload)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	compact := func(s *jose.JSONWebSignature) string {
		t.Helper()
		text, err := s.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	header := func(h string) string {
		parts := strings.Split(p.token(t, nil), ".")
		return base64.RawURLEncoding.EncodeToString([]byte(h)) + "." + parts[1] + "." + parts[2]
	}
	theirs := jose.JSONWebKey{Key: p.key, KeyID: "k"}
	public, err := json.Marshal(theirs.Public())
	if err != nil {
		t.Fatal(err)
	}
	large := map[string]any{"x": strings.Repeat("x", maxToken)}
	for k, v := range claims {
		large[k] = v
	}
	critical := (&jose.SignerOptions{}).WithHeader("crit", []string{"x"}).WithHeader("x", 1)
	for name, token := range map[string]string{
		"without a signature":     header(`{"alg":"none"}`),
		"by the public key":       compact(signed(public, jose.HS256, nil, claims)),
		"by a key that it brings": compact(signed(mine, jose.ES256, &jose.SignerOptions{EmbedJWK: true}, claims)),
		"by a key elsewhere": compact(signed(mine, jose.ES256, (&jose.SignerOptions{}).WithHeader("jku", other.URL).
			WithHeader("x5u", other.URL).WithHeader("kid", other.URL), claims)),
		"critical":       compact(signed(theirs, jose.ES256, critical, claims)),
		"many critical":  header(`{"alg":"ES256","kid":"k","crit":[` + strings.Repeat(`"x",`, 20000) + `"x"]}`),
		"in a token":     compact(signed(theirs, jose.ES256, (&jose.SignerOptions{}).WithContentType("JWT"), p.token(t, nil))),
		"as JSON":        signed(theirs, jose.ES256, nil, claims).FullSerialize(),
		"deep":           header(strings.Repeat(`{"a":`, 15000)),
		"a deep payload": header("{}")[:3] + "." + base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("[", 90000))) + ".AAAA",
		"a large header": header(`{"alg":"ES256","kid":"` + strings.Repeat("k", 90000) + `"}`),
		"of dots":        strings.Repeat(".", maxToken),
		"encrypted":      header(`{"alg":"PBES2-HS512+A256KW","enc":"A256GCM","p2c":2147483647,"p2s":"AAAA"}`) + ".AAAA.AAAA",
		"large":          compact(signed(theirs, jose.ES256, nil, large)),
	} {
		if u, err := w.ask("GET", "/api", token); err == nil {
			t.Errorf("a token %s is taken for %s", name, u.GetName())
		}
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		if err := w.ReviewToken(t.Context(), review); err != nil || review.Status.Authenticated {
			t.Errorf("a review of a token %s: %v, %v", name, review.Status, err)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("a token had somebody else asked %d times", n)
	}
	var long *tokenTooLongError
	if _, _, err := w.AuthenticateToken(t.Context(), compact(signed(theirs, jose.ES256, nil, large))); !errors.As(err, &long) {
		t.Errorf("a token that is too long: %v", err)
	}
	if _, err := w.ask("GET", "/api", p.token(t, map[string]any{"x": strings.Repeat("x", maxToken/2)})); err != nil {
		t.Errorf("a token within the bound: %v", err)
	}
}
