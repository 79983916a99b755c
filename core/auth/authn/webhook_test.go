// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/wasmplane/wasmplane/core/dial/dialtest"
)

// knower is a service that knows tokens.
type knower struct {
	*httptest.Server
	asked  atomic.Int32
	down   atomic.Bool
	caller atomic.Value // the Authorization header of the last question
}

func newKnower(tb testing.TB, known map[string]authenticationv1.TokenReviewStatus) *knower {
	tb.Helper()
	k := &knower{}
	k.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.asked.Add(1)
		k.caller.Store(r.Header.Get("Authorization"))
		var review authenticationv1.TokenReview
		if k.down.Load() {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.APIVersion != "authentication.k8s.io/v1" {
			http.Error(w, fmt.Sprint(review, err), http.StatusBadRequest)
			return
		}
		review.Status = known[review.Spec.Token]
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	tb.Cleanup(k.Close)
	return k
}

// kubeconfig says how to reach the service.
func (k *knower) kubeconfig(tb testing.TB) string {
	tb.Helper()
	return dialtest.Kubeconfig(tb, k.Server, k.URL+"/review", "apiserver")
}

func TestAServiceKnowsTokens(t *testing.T) {
	yes := authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
		Username: "jane", UID: "7", Groups: []string{"dev"}, Extra: map[string]authenticationv1.ExtraValue{"example.com/team": {"a"}},
	}}
	elsewhere := yes
	elsewhere.Audiences = []string{"vault"}
	k := newKnower(t, map[string]authenticationv1.TokenReviewStatus{"good": yes, "other": elsewhere, "broken": {Error: "malformed"}})
	hook, err := NewWebhook(WebhookConfig{File: k.kubeconfig(t), Audiences: []string{"wasmplane"}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Audiences: []string{"wasmplane"}, Webhook: hook, TokenCacheTTL: -1})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(token string) (*authenticator.Response, bool, error) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		return a.AuthenticateRequest(r)
	}
	for range 3 {
		resp, ok, err := ask("good")
		if !ok || err != nil || resp.User.GetName() != "jane" || !slices.Equal(resp.User.GetGroups(), []string{"dev", "system:authenticated"}) ||
			resp.User.GetExtra()["example.com/team"][0] != "a" {
			t.Fatalf("%v, %t, %v", resp, ok, err)
		}
	}
	if n := k.asked.Load(); n != 1 || k.caller.Load() != "Bearer apiserver" {
		t.Errorf("asked %d times, as %q", n, k.caller.Load())
	}
	for token, want := range map[string]string{"other": "", "unknown": "", "broken": "malformed"} {
		resp, ok, err := ask(token)
		if ok || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %t, %v", token, resp, ok, err)
		}
	}
	// A token for another audience is one, for who asks about that audience.
	resp, ok, err := a.AuthenticateToken(authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault"}), "other")
	if !ok || err != nil || !slices.Equal(resp.Audiences, authenticator.Audiences{"vault"}) {
		t.Errorf("for vault: %v, %t, %v", resp, ok, err)
	}
}

// Who shows a token that nobody can judge is refused: not let in, and not taken for anonymous.
func TestAServiceThatDoesNotAnswerLetsNobodyIn(t *testing.T) {
	k := newKnower(t,
		map[string]authenticationv1.TokenReviewStatus{"good": {Authenticated: true, User: authenticationv1.UserInfo{Username: "jane"}}})
	file := k.kubeconfig(t)
	hook, err := NewWebhook(WebhookConfig{File: file, Audiences: []string{"wasmplane"}, CacheTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Audiences: []string{"wasmplane"}, Webhook: hook, AnonymousPaths: []string{"/livez"}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() bool {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/livez", nil)
		r.Header.Set("Authorization", "Bearer good")
		_, ok, _ := a.AuthenticateRequest(r)
		return ok
	}
	k.down.Store(true)
	if ask() {
		t.Error("somebody was let in")
	}
	k.down.Store(false)
	if !ask() {
		t.Error("the failure was remembered")
	}
	k.down.Store(true)
	if !ask() {
		t.Error("the answer was not remembered")
	}
	// A file that is read again forgets what was answered; a broken one changes nothing.
	if err := hook.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ask() {
		t.Error("an answer outlives the file")
	}
	k.down.Store(false)
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := hook.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a broken file: %v", err)
	}
	if !ask() {
		t.Error("a broken file changed something")
	}
	if _, err := NewWebhook(WebhookConfig{File: k.kubeconfig(t), Version: "v2"}); err == nil {
		t.Error("version v2 was taken")
	}
}
