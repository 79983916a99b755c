// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/pki"
)

// A cluster changes its signing key and its issuer; old tokens go on until the
// old key and the old issuer are dropped.
func TestSigningKeyAndIssuerAreChanged(t *testing.T) {
	authority, err := pki.Open(pki.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	const newIssuer = "https://new.example.com"
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public := filepath.Join(dir, "new.key"), filepath.Join(dir, "new.pub")
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		private: {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}, public: {Type: "PUBLIC KEY", Bytes: der},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	signer, err := satoken.ReadSigningKey(private)
	if err != nil {
		t.Fatal(err)
	}
	published, err := satoken.ReadKeys([]string{public})
	if err != nil || len(published) != 1 {
		t.Fatalf("%d keys, %v", len(published), err)
	}
	client := fake.NewClientset(account())
	issue := func(issuer string, key any) string {
		t.Helper()
		s, err := satoken.NewSigner(issuer, key)
		if err != nil {
			t.Fatal(err)
		}
		i, err := NewIssuer(IssuerConfig{Signer: s, Objects: NewLiveObjects(client), Audiences: []string{audience}})
		if err != nil {
			t.Fatal(err)
		}
		request := &authenticationv1.TokenRequest{}
		if err := i.Issue(t.Context(), account(), request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	old, next := issue(audience, authority.ServiceAccountKey()), issue(newIssuer, signer)
	for _, step := range []struct {
		name      string
		issuers   []string
		keys      []any
		old, next bool
	}{
		{"before", []string{audience}, []any{authority.ServiceAccountKey()}, true, false},
		{"the next key is known", []string{audience, newIssuer}, []any{authority.ServiceAccountKey(), published[0]}, true, true},
		{"the next key signs", []string{newIssuer, audience}, []any{signer, authority.ServiceAccountKey()}, true, true},
		{"the old issuer is dropped", []string{newIssuer}, []any{signer, authority.ServiceAccountKey()}, false, true},
		{"the old key is dropped", []string{newIssuer, audience}, []any{signer}, false, true},
	} {
		keys, err := satoken.StaticKeys(step.keys...)
		if err != nil {
			t.Fatal(err)
		}
		a, err := New(Config{
			Audiences: []string{audience}, TokenCacheTTL: -1,
			ServiceAccounts: satoken.NewAuthenticator(step.issuers, keys, []string{audience}, NewLiveObjects(client)),
		})
		if err != nil {
			t.Fatal(err)
		}
		for token, want := range map[string]bool{old: step.old, next: step.next} {
			r := httptest.NewRequest("GET", "/api", nil)
			bearer(token)(r)
			if _, ok, err := a.AuthenticateRequest(r); ok != want {
				t.Errorf("%s: accepted %t, want %t: %v", step.name, ok, want, err)
			}
		}
	}
}

// An account that was deleted and made anew is another one: what was handed out
// in its name before is refused.
func TestAnAccountMadeAnewIsAnotherOne(t *testing.T) {
	authority, err := pki.Open(pki.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(account())
	s, err := satoken.NewSigner(audience, authority.ServiceAccountKey())
	if err != nil {
		t.Fatal(err)
	}
	i, err := NewIssuer(IssuerConfig{Signer: s, Objects: NewLiveObjects(client), Audiences: []string{audience}})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := satoken.StaticKeys(authority.ServiceAccountKey())
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{
		Audiences: []string{audience}, TokenCacheTTL: -1,
		ServiceAccounts: satoken.NewAuthenticator([]string{audience}, keys, []string{audience}, NewLiveObjects(client)),
	})
	if err != nil {
		t.Fatal(err)
	}
	request, foreign := &authenticationv1.TokenRequest{}, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}},
	}
	for _, r := range []*authenticationv1.TokenRequest{request, foreign} {
		if err := i.Issue(t.Context(), account(), r); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(token string) bool {
		r := httptest.NewRequest("GET", "/api", nil)
		bearer(token)(r)
		_, ok, _ := a.AuthenticateRequest(r)
		return ok
	}
	if !ask(request.Status.Token) {
		t.Fatal("a good token was refused")
	}
	if ask(foreign.Status.Token) {
		t.Error("a token for another audience was accepted")
	}
	accounts := client.CoreV1().ServiceAccounts("ns")
	if err := accounts.Delete(t.Context(), "sa", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if ask(request.Status.Token) {
		t.Error("the token of a deleted account was accepted")
	}
	anew := account()
	anew.UID = "sa-2"
	if _, err := accounts.Create(t.Context(), anew, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if ask(request.Status.Token) {
		t.Error("the token of the account's namesake was accepted")
	}
}
