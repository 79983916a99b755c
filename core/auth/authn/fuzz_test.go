// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"net/http/httptest"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// FuzzToken: no text is a token but those that somebody signed or knows.
func FuzzToken(f *testing.F) {
	const known = "known"
	k := newKnower(f,
		map[string]authenticationv1.TokenReviewStatus{known: {Authenticated: true, User: authenticationv1.UserInfo{Username: "jane"}}})
	hook, err := NewWebhook(WebhookConfig{File: k.kubeconfig(f), Audiences: []string{audience}, CacheTTL: time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	a, err := New(Config{Audiences: []string{audience}, Webhook: hook})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		"eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.", "a.b.c", "abcdef.0123456789abcdef", "..", known + " ",
		"eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ.e30.AAAA",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		r := httptest.NewRequest("GET", "/api", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		resp, ok, err := a.AuthenticateRequest(r)
		if ok && (err != nil || resp.User.GetName() != "jane") {
			t.Errorf("%q is %v, %v", token, resp, err)
		}
	})
}
